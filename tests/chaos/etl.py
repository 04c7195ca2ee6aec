"""A streaming ETL in a separate process, which tests kill: one topic in, two out, exactly once.

    python -m tests.chaos.etl STORE BOOTSTRAP FOLDER [OUTPUT]

FOLDER keeps its checkpoint. It runs until a test ends it. With OUTPUT it derives the present
inputs, then reads both topics as a batch, and writes their rows to that file as lines of JSON. The
variable CLIENT_PROPERTIES names a file with the properties of connections to a closed cluster.
"""

from __future__ import annotations

import json
import os
import sys
import zlib
from pathlib import Path

from pyspark.sql import SparkSession

from tests.chaos.watched_sink import WatchedSource
from tidelog.references import read_properties

SOURCE = "changes"
TOPICS = ("derived", "audit")
QUERY = "derive"
_SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "768m",
    # Drivers are started again and again, and none lives long enough for the other compiler.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.session.timeZone": "UTC",
    "spark.python.authenticate.socketTimeout": "300s",
    # A process that a test stops for long must not be given up.
    "spark.network.timeout": "1200s",
}


def derived(value: bytes) -> bytes:
    """The query's result for a value."""
    return b"%s %d" % (value, zlib.crc32(value))


def session(folder: Path) -> SparkSession:
    """Local mode with two cores, in which a task is tried four times."""
    builder = SparkSession.builder.master("local[2,4]").appName("chaos")
    places = {
        "spark.local.dir": str(folder / "local"),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
    }
    for name, value in (_SETTINGS | places).items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    spark.dataSource.register(WatchedSource)
    return spark


def protection() -> dict[str, str]:
    """The sink's options for a closed cluster. Plans show references, not the secrets."""
    path = os.environ.get("CLIENT_PROPERTIES")
    names = read_properties(Path(path)) if path else ()
    return {f"kafka.{name}": f"${{file:{path}:{name}}}" for name in names}


def main(store: str, bootstrap: str, folder: str, output: str | None = None) -> None:
    """Run the ETL with the arguments of the command line."""
    spark = session(Path(folder))
    changes = (
        spark.readStream.format("tidelog")
        .options(store=store, subscribe=SOURCE, startingOffsets="earliest")
        .load()
    )
    topics = ", ".join(repr(topic) for topic in TOPICS)
    writer = (
        changes.selectExpr(
            "key",
            "concat(cast(value as string), ' ', cast(crc32(value) as string)) as value",
            f"explode(array({topics})) as topic",
        )
        .writeStream.format("tidelog")
        .options(**{"store": store, "kafka.bootstrap.servers": bootstrap, "transactionalId": QUERY})
        .options(**protection())
        .option("checkpointLocation", str(Path(folder) / "checkpoint"))
    )
    if output is None:
        writer.start().awaitTermination()
        return
    writer.trigger(availableNow=True).start().awaitTermination()
    found = (
        spark.read.format("tidelog")
        .options(store=store, subscribe=",".join(TOPICS))
        .load()
        .select("topic", "partition", "offset", "key", "value")
        .collect()
    )
    with Path(output).open("w") as lines:
        for row in found:
            key, value = (bytes(each).decode() for each in (row.key, row.value))
            lines.write(json.dumps([row.topic, row.partition, row.offset, key, value]) + "\n")
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
