"""Spark's reads of topics, beside its own Parquet and file sources and its Kafka connector."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from benchmarks.harness.counting_proxy import counting_proxy
from benchmarks.harness.targets import GB, Target, kafka, tidelog
from benchmarks.tables import spark_kafka
from benchmarks.tables.spark_load import RECORD_BYTES
from tidelog.errors import TidelogError
from tidelog.localstack.maven import JarsNotAvailable
from tidelog.localstack.s3_servers import S3Server, start_minio
from tidelog.localstack.spark_jars import class_path, kafka_connector_jars, s3a_jars

PARTITIONS = 4
SIZES = (1, 4)
"""Sizes in GB of keys and values."""
RUNS = {1: 3, 4: 2}
"""Rounds by size, after one that warms up."""
BYTES_A_BYTE_MAX = 4
"""Bytes on the disk for each byte: WAL, segments, and both once more in MinIO."""
TAIL_SHARE = 0.02
"""Of the records that are read beside Kafka's connector: not rolled, and read from the WAL."""
FIRST_MS = 1_700_000_000_000
MICROBATCHES = 40
FRESH_READS = 20
JOB_SECONDS_MAX = 3600.0
FILL_SECONDS_MAX = 1800.0
FLUSH_SECONDS_MAX = 1200
UPLOADS = 4
"""Concurrent uploads."""

Contender: TypeAlias = dict[str, Any]


class NotEnoughSpace(TidelogError):
    """The measurement would not fit on the disk."""


class Scan(NamedTuple):
    """One contender's quickest run."""

    seconds: float
    cpu_seconds: float
    """CPU of Spark: driver, JVM and Python workers."""


@dataclass(slots=True)
class SparkFigures:
    """The measurements. Scans by contender; sizes are those of keys and values."""

    parquet: list[tuple[str, float, dict[str, Scan]]] = field(default_factory=list)
    """By store and GB: `parquet` and `tidelog`, each `all` and `pruned`."""
    kafka: dict[str, Scan] = field(default_factory=dict)
    """By reader and query, as `spark_kafka` names them."""
    kafka_gb: float = 0.0
    requests_a_gb: dict[str, float] = field(default_factory=dict)
    microbatch_ms: dict[str, float] = field(default_factory=dict)
    fresh_p50_ms: float = 0.0
    fresh_max_ms: float = 0.0
    missing: list[tuple[str, str]] = field(default_factory=list)
    """The missing measurements and the reasons."""


def measure_spark(folder: Path, cache: Path, share: float, without: list[str]) -> SparkFigures:
    """Run all measurements, one contender after the other on the same records."""
    figures = SparkFigures()
    bucket = folder / "bucket"
    bucket.mkdir(parents=True)
    _require_space(bucket, int(sum(SIZES) * GB * share * BYTES_A_BYTE_MAX))
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
        found = _scans({}, _against_parquet(store, _topic(size)), RUNS[size])
        figures.parquet.append(("filesystem", gigabytes, found))
    # The report names a missing jar: the rest of a long run is not lost for it.
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


def _require_space(folder: Path, bytes_min: int) -> None:
    free = shutil.disk_usage(folder).free
    if free < bytes_min:
        raise NotEnoughSpace(
            f"{folder}: the measurements with Spark need {bytes_min / GB:.1f} GB, and"
            f" {free / GB:.1f} GB are free; make room, set TMPDIR, or measure a --share"
        )


def _measure_s3(
    figures: SparkFigures, folder: Path, cache: Path, bucket: Path, records: Mapping[int, int]
) -> None:
    jars = s3a_jars(cache)
    with start_minio(folder, cache) as server:
        _copy(bucket, server)
        settings = class_path(jars)
        for size, number in records.items():
            _say(f"Spark scans {size} GB from MinIO")
            gigabytes = number * RECORD_BYTES / GB
            contenders = _against_parquet(
                f"s3://{server.bucket}", _topic(size), _s3_options(server, server.endpoint)
            )
            found = _scans(settings, contenders, RUNS[size])
            figures.parquet.append(("MinIO", gigabytes, found))
        gigabytes = records[SIZES[0]] * RECORD_BYTES / GB
        with counting_proxy(server.endpoint) as proxy:
            contenders = _against_parquet(
                f"s3://{server.bucket}", _topic(SIZES[0]), _s3_options(server, proxy.url)
            )
            for name, contender in contenders.items():
                proxy.requests.clear()
                _run({"kind": "once", "contender": contender}, settings)
                figures.requests_a_gb[name] = proxy.requests.total() / gigabytes


def _measure_kafka(
    figures: SparkFigures, folder: Path, cache: Path, store: str, records: int
) -> None:
    jars = kafka_connector_jars(cache)
    topic = _topic(SIZES[0])
    tail = int(records * TAIL_SHARE)
    with tidelog("tail", store, folder.with_name("tail")) as target:
        _fill(target, topic, tail, FIRST_MS + records)
    with kafka(folder, cache) as target:
        _say("filling Kafka for Spark")
        _fill(target, topic, records)
        _fill(target, topic, tail, FIRST_MS + records)
        _say("Spark scans from Kafka, and the same from the bucket")
        contenders = spark_kafka.contenders(
            store, target.bootstrap, topic, PARTITIONS, records + tail, FIRST_MS
        )
        figures.kafka = _scans(class_path(jars), contenders, RUNS[SIZES[0]])
    figures.kafka_gb = (records + tail) * RECORD_BYTES / GB


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


def _scans(
    settings: Mapping[str, str], contenders: Mapping[str, Contender], runs: int
) -> dict[str, Scan]:
    found = _run({"kind": "scan", "contenders": contenders, "runs": runs}, settings)
    return {name: Scan(**each) for name, each in found.items()}


def _run(job: Mapping[str, Any], settings: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Run one job in a Spark of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.tables.spark_job"],
        input=json.dumps({**job, "settings": settings or {}}),
        capture_output=True,
        text=True,
        check=False,
        timeout=JOB_SECONDS_MAX,
        cwd=Path(__file__).parents[2],
    )
    if done.returncode != 0:
        raise RuntimeError(f"Spark's job {job['kind']} failed:\n{done.stderr[-4000:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    # A failure later in a long run must not lose these results.
    _say(f"  {json.dumps(found)}")
    return found


def _fill(target: Target, topic: str, records: int, first_ms: int = FIRST_MS) -> None:
    if first_ms == FIRST_MS:
        target.create_topic(topic, PARTITIONS, {"retention.ms": "-1"})
    target.load(
        "fill",
        topic,
        module="benchmarks.tables.spark_load",
        records=records,
        partitions=PARTITIONS,
        first_ms=first_ms,
        seconds_max=FILL_SECONDS_MAX,
    )


def _flush(target: Target, topic: str) -> None:
    command = [sys.executable, "-m", "tidelog.cli", "topics", "flush", topic]
    command += ["--bootstrap", target.bootstrap]
    subprocess.run(command, check=True, timeout=FLUSH_SECONDS_MAX, stdout=subprocess.DEVNULL)


def _copy(bucket: Path, server: S3Server) -> None:
    """Copy all files of the folder to objects of the same names."""
    client = server.client()

    def upload(path: Path) -> None:
        client.upload_file(str(path), server.bucket, str(path.relative_to(bucket)))

    with ThreadPoolExecutor(UPLOADS) as pool:
        for _ in pool.map(upload, _files(bucket)):
            pass


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


def _topic(size: int) -> str:
    return f"scan-{size}"


def _say(what: str) -> None:
    print(what, file=sys.stderr, flush=True)
