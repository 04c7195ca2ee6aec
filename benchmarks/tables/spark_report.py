"""The report's sections on Spark."""

from __future__ import annotations

from benchmarks.tables.spark import TAIL_SHARE, SparkFigures
from benchmarks.tables.spark_kafka import QUERIES, READERS

_COLUMNS = {
    "all": "all",
    "pruned": "value, offset",
}


def spark_lines(figures: SparkFigures) -> list[str]:
    """The tables of the measurements with Spark."""
    lines = _parquet(figures)
    if figures.kafka:
        lines += _kafka(figures)
    for what, why in figures.missing:
        lines += [f"Not measured: {what}. {why.splitlines()[0].rstrip(':')}.", ""]
    return [*lines, *_delays(figures)]


def _parquet(figures: SparkFigures) -> list[str]:
    lines = [
        "## Spark: a scan of a topic, beside `spark.read.parquet` of the same files",
        "",
        "CPU of driver, JVM and Python workers; every row goes to Spark's `noop` sink.",
        "",
        "| store | GB | columns | tidelog CPU s/GB | parquet CPU s/GB | ratio | tidelog s |"
        " parquet s | ratio | requests a GB: tidelog, parquet |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for store, gigabytes, found in figures.parquet:
        for what, columns in _COLUMNS.items():
            ours, peer = found[f"tidelog {what}"], found[f"parquet {what}"]
            cells = [store, f"{gigabytes:.2f}", columns]
            cells += _beside(ours.cpu_seconds / gigabytes, peer.cpu_seconds / gigabytes)
            cells += _beside(ours.seconds, peer.seconds)
            asked = [
                figures.requests_a_gb.get(f"{source} {what}") for source in ("tidelog", "parquet")
            ]
            known = store == "MinIO" and all(each is not None for each in asked)
            cells.append(", ".join(f"{each:.0f}" for each in asked) if known else "-")
            lines.append("| " + " | ".join(cells) + " |")
    return [*lines, ""]


def _kafka(figures: SparkFigures) -> list[str]:
    lines = [
        "## Spark: the same records from Apache Kafka through Spark's connector",
        "",
        f"{figures.kafka_gb:.2f} GB, from the query's planning to the last row of a batch into the"
        ' `noop` sink; `source` is `format("tidelog")`, `read` is `spark_source.read`: Spark\'s own'
        f" Parquet reader of the segments, and the source of the tail, {TAIL_SHARE:.0%} of the"
        " records. CPU is Spark's; Kafka's broker comes on top of it, and a broker of Tidelog's is"
        " not asked.",
        "",
        "| query | connector s | source s | times as fast | read s | times as fast |"
        " connector CPU s | source CPU s | read CPU s |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for query, label in QUERIES.items():
        peer, ours, united = (figures.kafka[f"{reader} {query}"] for reader in READERS)
        cells = [label, f"{peer.seconds:.2f}"]
        for each in (ours, united):
            cells += [f"{each.seconds:.2f}", f"{peer.seconds / each.seconds:.1f}"]
        cells += [f"{each.cpu_seconds:.2f}" for each in (peer, ours, united)]
        lines.append("| " + " | ".join(cells) + " |")
    return [*lines, ""]


def _beside(ours: float, peer: float) -> list[str]:
    return [f"{ours:.2f}", f"{peer:.2f}", f"{ours / peer:.2f}" if peer else "-"]


def _delays(figures: SparkFigures) -> list[str]:
    batches = figures.microbatch_ms
    return [
        "## Spark: microbatches and freshness, on the filesystem store",
        "",
        "| | ms |",
        "|---|---|",
        f"| a batch of 100 records of a stream, p50 | {batches['tidelog']:.0f} |",
        f"| the same from Spark's file source, p50 | {batches['files']:.0f} |",
        f"| ratio | {batches['tidelog'] / batches['files']:.2f} |",
        "| from a record's acknowledgement to the end of the batch read that shows it, p50 |"
        f" {figures.fresh_p50_ms:.0f} |",
        f"| at most | {figures.fresh_max_ms:.0f} |",
        "",
    ]
