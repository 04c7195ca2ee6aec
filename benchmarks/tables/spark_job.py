"""Spark's side of a measurement, in a process of its own: scans, microbatches, freshness.

    python -m benchmarks.tables.spark_job < job.json

`job.json` has `kind`, the session's `settings`, and the kind's own options. Prints one JSON object.
CPU seconds are those of the process and all its descendants: Spark's JVM and its Python workers.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from confluent_kafka import Producer
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql.functions import count, lit
from pyspark.sql.streaming.query import StreamingQuery

from tidelog.spark_source import SEGMENT_SCHEMA, committed_files, read, register, s3a_options

_TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")
_KAFKA_COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")
_PARQUET_COLUMNS = ("key", "value", "offset", "timestamp", "timestamp_type")
SMALL_BATCH_RECORDS = 100
BATCH_SECONDS_MAX = 300.0


def session_of(settings: Mapping[str, str], folder: str) -> SparkSession:
    """A Spark session in local mode."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYTHONPATH"] = str(Path(__file__).parents[2])
    base = {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.local.dir": f"{folder}/local",
        "spark.sql.warehouse.dir": f"{folder}/warehouse",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "2",
        "spark.python.authenticate.socketTimeout": "300s",
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.buffer.size": "1048576",
        "spark.driver.memory": "2g",
        "spark.sql.streaming.numRecentProgressUpdates": "10000",
    }
    builder = SparkSession.builder.master(f"local[{os.cpu_count()}]").appName("benchmark")
    for name, value in {**base, **settings}.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    register(session)
    return session


def tree_cpu_seconds(pid: int) -> float:
    """The CPU time of a process, its living descendants, and those that they have waited for."""
    parents: dict[int, list[int]] = {}
    spent: dict[int, float] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            fields = (entry / "stat").read_text().rsplit(")", 1)[1].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        number = int(entry.name)
        parents.setdefault(int(fields[1]), []).append(number)
        spent[number] = sum(map(int, fields[11:15])) / _TICKS_A_SECOND
    total, waiting = 0.0, [pid]
    while waiting:
        current = waiting.pop()
        total += spent.get(current, 0.0)
        waiting += parents.get(current, [])
    return total


def source_of(spark: SparkSession, contender: Mapping[str, Any]) -> DataFrame:
    """The frame of a contender: a source with its columns and its filter."""
    pruned = contender.get("pruned", False)
    match contender["source"]:
        case "parquet":
            frame = _native(spark, contender)
            columns = ("value", "offset") if pruned else _PARQUET_COLUMNS
        case "read":
            frame = read(
                spark,
                store=contender["store"],
                topic=contender["topic"],
                **contender["selection"],
            )
            columns = tuple(frame.columns)
        case "kafka":
            reader = spark.read.format("kafka").option("subscribe", contender["topic"])
            frame = reader.options(**contender["options"]).load()
            columns = ("value", "offset") if pruned else _KAFKA_COLUMNS
        case "tidelog":
            reader = spark.read.format("tidelog").option("subscribe", contender["topic"])
            reader = reader.options(store=contender["store"], **contender["options"])
            if pruned:
                reader = reader.schema("value binary, offset bigint")
            frame = reader.load()
            columns = tuple(frame.columns)
        case _:
            raise ValueError(contender["source"])
    where = contender.get("where")
    return (frame.where(where) if where else frame).select(*columns)


def _native(spark: SparkSession, contender: Mapping[str, Any]) -> DataFrame:
    """Spark's own reader of the committed files."""
    where = (contender["store"], contender.get("store_options", {}))
    files = committed_files(where[0], contender["topic"], **where[1])
    reader = spark.read.options(**s3a_options(where[0], **where[1]))
    return reader.schema(SEGMENT_SCHEMA).parquet(*[each.path for each in files])


def scan(spark: SparkSession, job: Mapping[str, Any]) -> dict[str, Any]:
    """Run the contenders' queries in turn, from planning to the last row, in repeated rounds.

    Every other round is in reverse order. The first round warms up, and checks that all readers of
    a query find the same number of rows. Names consist of the reader and the query.
    """
    found: dict[str, list[tuple[float, float]]] = {}
    rows: dict[str, dict[str, int]] = {}
    contenders = list(job["contenders"].items())
    for name, contender in contenders:
        reader, _, query = name.partition(" ")
        rows.setdefault(query, {})[reader] = _rows_of(source_of(spark, contender))
    for query, by_reader in rows.items():
        if len(set(by_reader.values())) != 1:
            raise RuntimeError(f"{query}: the readers found different numbers of rows: {by_reader}")
    for turn in range(job["runs"]):
        for name, contender in contenders if turn % 2 else reversed(contenders):
            started, spent = time.perf_counter(), tree_cpu_seconds(os.getpid())
            source_of(spark, contender).write.format("noop").mode("overwrite").save()
            seconds = time.perf_counter() - started
            spent = tree_cpu_seconds(os.getpid()) - spent
            found.setdefault(name, []).append((seconds, spent))
    # Other work of the machine disturbed the quickest run least.
    return {
        name: {"seconds": min(run[0] for run in runs), "cpu_seconds": min(run[1] for run in runs)}
        for name, runs in found.items()
    }


def _rows_of(frame: DataFrame) -> int:
    """The number of a query's rows, counted on their way to the same sink."""
    observation = Observation()
    observed = frame.observe(observation, count(lit(1)).alias("rows"))
    observed.write.format("noop").mode("overwrite").save()
    return int(observation.get["rows"])


def once(spark: SparkSession, job: Mapping[str, Any]) -> dict[str, Any]:
    """Run one contender's query once."""
    source_of(spark, job["contender"]).write.format("noop").mode("overwrite").save()
    return {}


def microbatch(spark: SparkSession, job: Mapping[str, Any]) -> dict[str, Any]:
    """Milliseconds of a small batch through Tidelog's source, and through Spark's own for files.

    They alternate, so that other work of the machine affects both.
    """
    folder = Path(tempfile.mkdtemp(dir=job["folder"]))
    incoming = folder / "incoming"
    incoming.mkdir()
    producer = Producer({"bootstrap.servers": job["bootstrap"], "log_level": 0})
    ours = spark.readStream.format("tidelog").option("subscribe", job["topic"])
    ours = ours.options(store=job["store"]).schema("value binary")
    files = spark.readStream.schema("value string").format("text")
    queries = {
        name: frame.writeStream.format("noop")
        .option("checkpointLocation", str(folder / name))
        .start()
        for name, frame in (("tidelog", ours.load()), ("files", files.load(str(incoming))))
    }
    writers: dict[str, Callable[[int], None]] = {
        "tidelog": lambda _: produce(producer, job["topic"], SMALL_BATCH_RECORDS),
        "files": lambda turn: write_file(incoming / f"{turn:06d}.txt", SMALL_BATCH_RECORDS),
    }
    for query in queries.values():
        query.processAllAvailable()
    for turn in range(job["batches"]):
        for name, query in queries.items():
            writers[name](turn)
            deadline = time.monotonic() + BATCH_SECONDS_MAX
            while rows_of(query) < SMALL_BATCH_RECORDS * (turn + 1):
                query.processAllAvailable()
                if time.monotonic() > deadline:
                    raise RuntimeError(f"{name} has read {rows_of(query)} rows only")
    found = {}
    for name, query in queries.items():
        took = [
            each["durationMs"]["triggerExecution"]
            for each in query.recentProgress
            if each["numInputRows"]
        ]
        query.stop()
        took = took[len(took) // 4 :]
        found[name] = {"batches": len(took), "p50_ms": statistics.median(took)}
    return found


def rows_of(query: StreamingQuery) -> int:
    """The number of rows that a query has read."""
    return sum(each["numInputRows"] for each in query.recentProgress)


def produce(producer: Producer, topic: str, records: int) -> None:
    """Produce some records, and wait for the acknowledgements."""
    for _ in range(records):
        producer.produce(topic, b"x" * 250, partition=0)
    if producer.flush(60):
        raise RuntimeError("records were not acknowledged in 60 s")


def write_file(path: Path, lines: int) -> None:
    """Write a file that appears whole."""
    hidden = path.with_name(f".{path.name}")
    hidden.write_text("\n".join(["x" * 250] * lines))
    hidden.rename(path)


def freshness(spark: SparkSession, job: Mapping[str, Any]) -> dict[str, Any]:
    """Milliseconds from a record's acknowledgement until a batch read that began then has its row.

    Also those of the same read of a topic without writers.
    """
    producer = Producer({"bootstrap.servers": job["bootstrap"], "linger.ms": 0, "log_level": 0})
    took = []
    for turn in range(job["reads"] + 3):
        value = b"fresh %d" % turn
        producer.produce(job["topic"], value, partition=0)
        producer.flush(60)
        acknowledged = time.perf_counter()
        reader = spark.read.format("tidelog").option("subscribe", job["topic"])
        frame = reader.options(store=job["store"]).schema("value binary, offset bigint").load()
        rows = frame.collect()
        took.append(1000 * (time.perf_counter() - acknowledged))
        if bytes(rows[-1]["value"]) != value:
            raise RuntimeError(f"{value!r} was acknowledged, and a later read does not have it")
    return {"p50_ms": statistics.median(took[3:]), "max_ms": max(took[3:])}


KINDS = {"scan": scan, "once": once, "microbatch": microbatch, "freshness": freshness}


def main() -> None:
    """Run one job and print its measurements."""
    job = json.load(sys.stdin)
    with tempfile.TemporaryDirectory(prefix="tidelog-spark-") as folder:
        spark = session_of(job["settings"], folder)
        found = KINDS[job["kind"]](spark, {"folder": folder, **job})
        spark.stop()
    print(json.dumps(found))


if __name__ == "__main__":
    main()
