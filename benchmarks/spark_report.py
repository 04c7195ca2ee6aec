"""What the report says of Spark."""

from __future__ import annotations

from benchmarks.spark import RANGE_SHARE, Scan, SparkFigures

_COLUMNS = {
    "all": "all",
    "pruned": "value, offset",
}
_KAFKA_ROWS = {
    "all": "all of it, all columns",
    "by offset": f"{RANGE_SHARE:.0%} of the offsets of each partition",
    "by time": f"{RANGE_SHARE:.0%} of the time",
}


def spark_lines(figures: SparkFigures) -> list[str]:
    """The tables of Spark's part."""
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
        f"{figures.kafka_gb:.2f} GB, from start to end of a batch into the `noop` sink. CPU is"
        " Spark's; Kafka's broker comes on top of it, and a broker of Tidelog's is not asked.",
        "",
        "| query | tidelog s | connector s | times as fast | tidelog CPU s | connector CPU s |"
        " times less |",
        "|---|---|---|---|---|---|---|",
    ]
    rows = [(label, f"tidelog {what}", f"kafka {what}") for what, label in _KAFKA_ROWS.items()]
    rows.append(("all of it, by Spark's Parquet reader", "native all", "kafka all"))
    for label, ours, peer in rows:
        lines.append("| " + " | ".join([label, *_faster(figures.kafka, ours, peer)]) + " |")
    return [*lines, ""]


def _faster(found: dict[str, Scan], ours: str, peer: str) -> list[str]:
    cells = []
    for attribute in ("seconds", "cpu_seconds"):
        mine, theirs = getattr(found[ours], attribute), getattr(found[peer], attribute)
        cells += [f"{mine:.2f}", f"{theirs:.2f}", f"{theirs / mine:.1f}" if mine else "-"]
    return cells


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
