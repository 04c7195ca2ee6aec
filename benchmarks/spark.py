"""Spark reads topics: beside its own Parquet and file sources, and its connector for Kafka."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from benchmarks.counting_proxy import counting_proxy
from benchmarks.spark_load import RECORD_BYTES
from benchmarks.targets import GB, Target, kafka, tidelog
from tidelog.localstack.maven import JarsNotAvailable
from tidelog.localstack.s3_servers import S3Server, start_minio
from tidelog.localstack.spark_jars import kafka_connector_jars, s3a_jars

PARTITIONS = 4
SIZES = (1, 4)
"""GB of keys and values."""
RUNS = 3
FIRST_MS = 1_700_000_000_000
RANGE_SHARE = 0.01
"""Of offsets and of time, where a scan is pruned by them."""
MICROBATCHES = 40
FRESH_READS = 20
JOB_SECONDS_MAX = 3600.0
FLUSH_SECONDS_MAX = 1200

Contender: TypeAlias = dict[str, Any]


class Scan(NamedTuple):
    """One contender's quickest run."""

    seconds: float
    cpu_seconds: float
    """Of Spark: driver, JVM and Python workers."""


@dataclass(slots=True)
class SparkFigures:
    """What was measured. Scans by contender; sizes are those of keys and values."""

    parquet: list[tuple[str, float, dict[str, Scan]]] = field(default_factory=list)
    """By store and GB: `parquet` and `tidelog`, each `all` and `pruned`."""
    kafka: dict[str, Scan] = field(default_factory=dict)
    kafka_gb: float = 0.0
    requests_a_gb: dict[str, float] = field(default_factory=dict)
    microbatch_ms: dict[str, float] = field(default_factory=dict)
    fresh_p50_ms: float = 0.0
    fresh_max_ms: float = 0.0
    missing: list[tuple[str, str]] = field(default_factory=list)
    """What was not measured, and why."""


def measure_spark(folder: Path, cache: Path, share: float, without: list[str]) -> SparkFigures:
    """All of it, one contender after the other on the same records."""
    figures = SparkFigures()
    bucket = folder / "bucket"
    bucket.mkdir(parents=True)
    store = f"file://{bucket}"
    records = {size: max(1000, int(size * GB * share / RECORD_BYTES)) for size in SIZES}
    with tidelog("spark", store, folder / "tidelog") as target:
        for size, number in records.items():
            _say(f"filling {size} GB x {share:g} for Spark")
            _fill(target, _topic(size), number)
            _flush(target, _topic(size))
    for size, number in records.items():
        _say(f"Spark scans {size} GB x {share:g} from files")
        gigabytes = number * RECORD_BYTES / GB
        found = _scans({}, _against_parquet(store, _topic(size)))
        figures.parquet.append(("filesystem", gigabytes, found))
    # A jar that is not to be had is said in the report: the rest of a long run is not lost for it.
    try:
        if "minio" not in without:
            _measure_s3(figures, folder / "minio", cache, bucket, records)
    except JarsNotAvailable as error:
        figures.missing.append(("S3", str(error)))
    try:
        if "kafka" not in without:
            _measure_kafka(figures, folder / "kafka", cache, store, records[SIZES[0]])
    except JarsNotAvailable as error:
        figures.missing.append(("Spark's Kafka connector", str(error)))
    for what, why in figures.missing:
        _say(f"{what} was not measured: {why}")
    _measure_delays(figures, folder / "delays")
    return figures


def _measure_s3(
    figures: SparkFigures, folder: Path, cache: Path, bucket: Path, records: Mapping[int, int]
) -> None:
    jars = s3a_jars(cache)
    with start_minio(folder, cache) as server:
        _copy(bucket, server)
        settings = _s3a_settings(server, server.endpoint, jars)
        for size, number in records.items():
            _say(f"Spark scans {size} GB from MinIO")
            gigabytes = number * RECORD_BYTES / GB
            contenders = _against_parquet(
                f"s3://{server.bucket}", _topic(size), _s3_options(server, server.endpoint)
            )
            figures.parquet.append(("MinIO", gigabytes, _scans(settings, contenders)))
        gigabytes = records[SIZES[0]] * RECORD_BYTES / GB
        with counting_proxy(server.endpoint) as proxy:
            contenders = _against_parquet(
                f"s3://{server.bucket}", _topic(SIZES[0]), _s3_options(server, proxy.url)
            )
            for name, contender in contenders.items():
                proxy.requests.clear()
                _run(
                    {"kind": "once", "contender": contender}, _s3a_settings(server, proxy.url, jars)
                )
                figures.requests_a_gb[name] = proxy.requests.total() / gigabytes


def _measure_kafka(
    figures: SparkFigures, folder: Path, cache: Path, store: str, records: int
) -> None:
    jars = kafka_connector_jars(cache)
    topic = _topic(SIZES[0])
    last_ms = FIRST_MS + records
    with kafka(folder, cache) as target:
        _say("filling Kafka for Spark")
        _fill(target, topic, records)
        _say("Spark scans from Kafka, and the same from the bucket")
        peers = {"kafka.bootstrap.servers": target.bootstrap, "startingOffsets": "earliest"}
        contenders: dict[str, Contender] = {}
        a_partition = records // PARTITIONS
        start = int(a_partition * 0.5)
        ranges = {
            "all": {},
            "by offset": {
                "startingOffsets": _offsets(topic, start),
                "endingOffsets": _offsets(topic, start + max(1, int(a_partition * RANGE_SHARE))),
            },
            "by time": {
                "startingTimestamp": str((FIRST_MS + last_ms) // 2),
                "endingTimestamp": str(
                    (FIRST_MS + last_ms) // 2 + max(1, int(records * RANGE_SHARE))
                ),
            },
        }
        for name, options in ranges.items():
            contenders[f"kafka {name}"] = {
                "source": "kafka",
                "topic": topic,
                "options": peers | options,
            }
            contenders[f"tidelog {name}"] = {
                "source": "tidelog",
                "topic": topic,
                "store": store,
                "options": options,
            }
        contenders["native all"] = {"source": "parquet", "topic": topic, "store": store}
        figures.kafka = _scans({"spark.jars": ",".join(map(str, jars))}, contenders)
    figures.kafka_gb = records * RECORD_BYTES / GB


def _measure_delays(figures: SparkFigures, folder: Path) -> None:
    bucket = folder / "bucket"
    bucket.mkdir(parents=True)
    store = f"file://{bucket}"
    with tidelog("delays", store, folder / "tidelog") as target:
        job = {"store": store, "bootstrap": target.bootstrap}
        _say("microbatches")
        target.create_topic("batches", 1)
        found = _run({"kind": "microbatch", "topic": "batches", "batches": MICROBATCHES, **job})
        figures.microbatch_ms = {name: each["p50_ms"] for name, each in found.items()}
        _say("freshness")
        target.create_topic("fresh", 1)
        fresh = _run({"kind": "freshness", "topic": "fresh", "reads": FRESH_READS, **job})
        figures.fresh_p50_ms, figures.fresh_max_ms = fresh["p50_ms"], fresh["max_ms"]


def _against_parquet(
    store: str, topic: str, options: Mapping[str, str] | None = None
) -> dict[str, Contender]:
    options = options or {}
    named = {f"store.{name}": value for name, value in options.items()}
    contenders: dict[str, Contender] = {}
    for what in ("all", "pruned"):
        shared = {"topic": topic, "store": store, "pruned": what == "pruned"}
        contenders[f"parquet {what}"] = shared | {"source": "parquet", "store_options": options}
        contenders[f"tidelog {what}"] = shared | {"source": "tidelog", "options": named}
    return contenders


def _scans(settings: Mapping[str, str], contenders: Mapping[str, Contender]) -> dict[str, Scan]:
    found = _run({"kind": "scan", "contenders": contenders, "runs": RUNS}, settings)
    return {name: Scan(**each) for name, each in found.items()}


def _run(job: Mapping[str, Any], settings: Mapping[str, str] | None = None) -> dict[str, Any]:
    """One job in a Spark of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.spark_job"],
        input=json.dumps({**job, "settings": settings or {}}),
        capture_output=True,
        text=True,
        check=False,
        timeout=JOB_SECONDS_MAX,
        cwd=Path(__file__).parents[1],
    )
    if done.returncode != 0:
        raise RuntimeError(f"Spark's job {job['kind']} failed:\n{done.stderr[-4000:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    # A whole run takes long: what it has found is not to be lost with it.
    _say(f"  {json.dumps(found)}")
    return found


def _fill(target: Target, topic: str, records: int) -> None:
    target.create_topic(topic, PARTITIONS, {"retention.ms": "-1"})
    target.load(
        "fill",
        topic,
        module="benchmarks.spark_load",
        records=records,
        partitions=PARTITIONS,
        first_ms=FIRST_MS,
    )


def _flush(target: Target, topic: str) -> None:
    command = [sys.executable, "-m", "tidelog.cli", "topics", "flush", topic]
    command += ["--bootstrap", target.bootstrap]
    subprocess.run(command, check=True, timeout=FLUSH_SECONDS_MAX, stdout=subprocess.DEVNULL)


def _copy(bucket: Path, server: S3Server) -> None:
    """All that the folder holds, as objects of the same names."""
    client = server.client()
    for path in _files(bucket):
        client.upload_file(str(path), server.bucket, str(path.relative_to(bucket)))


def _files(bucket: Path) -> Iterator[Path]:
    for directory, _, names in os.walk(bucket):
        for name in names:
            yield Path(directory) / name


def _s3_options(server: S3Server, endpoint: str) -> dict[str, str]:
    return {
        "endpoint": endpoint,
        "region": "us-east-1",
        "access_key_id": server.access_key,
        "secret_access_key": server.secret_key,
    }


def _s3a_settings(server: S3Server, endpoint: str, jars: list[Path]) -> dict[str, str]:
    prefix = "spark.hadoop.fs.s3a"
    return {
        "spark.jars": ",".join(map(str, jars)),
        f"{prefix}.endpoint": endpoint,
        f"{prefix}.endpoint.region": "us-east-1",
        f"{prefix}.path.style.access": "true",
        f"{prefix}.connection.ssl.enabled": "false",
        f"{prefix}.access.key": server.access_key,
        f"{prefix}.secret.key": server.secret_key,
    }


def _topic(size: int) -> str:
    return f"scan-{size}"


def _offsets(topic: str, offset: int) -> str:
    return json.dumps({topic: {str(number): offset for number in range(PARTITIONS)}})


def _say(what: str) -> None:
    print(what, file=sys.stderr, flush=True)
