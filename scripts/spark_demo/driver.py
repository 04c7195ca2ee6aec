"""The Spark demo's driver: a topic's changes into two others, each batch in one transaction.

Runs until its standard input ends. The parent may kill it at any moment, and start another one with
the same checkpoint. Prints `batch N OFFSET` when Spark has finished a batch: its number, and the
sum of the read offsets over the partitions.
"""

from __future__ import annotations

import json
import select
import sys
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.query import StreamingQuery

from scripts.spark_demo.session import open_session

CHANGES, AUDIT, BOARD = "board.changes", "board.audit", "board.rows"
TRANSACTIONAL_ID = "board-pipeline"
CHANGES_A_BATCH = 4_000
POLL_SECONDS = 0.1
_CHANGE = "change bigint, operation string, after map<string,string>"


def start(spark: SparkSession, store: str, bootstrap: str, checkpoint: Path) -> StreamingQuery:
    """Two records of each change: one for the audit, and one that replaces or deletes its row.

    On the board, a key without a value is a deleted row.
    """
    changes = (
        spark.readStream.format("tidelog")
        .options(store=store, subscribe=CHANGES, startingOffsets="earliest")
        .option("includeHeaders", True)
        .option("maxOffsetsPerTrigger", CHANGES_A_BATCH)
        .load()
    )
    change = f.from_json(f.col("value").cast("string"), _CHANGE)
    audit = f.to_json(f.struct("change.change", "change.operation"))
    outcomes = f.array(
        f.struct(f.lit(AUDIT).alias("topic"), audit.alias("value")),
        f.struct(f.lit(BOARD).alias("topic"), f.to_json("change.after").alias("value")),
    )
    return (
        changes.select("key", "headers", change.alias("change"))
        .select("key", "headers", f.explode(outcomes).alias("out"))
        .select("key", "headers", "out.*")
        .writeStream.format("tidelog")
        .options(store=store, transactionalId=TRANSACTIONAL_ID)
        .option("kafka.bootstrap.servers", bootstrap)
        .option("checkpointLocation", str(checkpoint))
        .start()
    )


def main(store: str, bootstrap: str, folder: Path, checkpoint: Path) -> None:
    """Run until standard input ends, or the query does. StreamingQueryException."""
    spark = open_session(folder, "demo pipeline")
    query = start(spark, store, bootstrap, checkpoint)
    last = -1
    while query.isActive and not select.select([sys.stdin], [], [], POLL_SECONDS)[0]:
        for progress in query.recentProgress:
            if progress.batchId > last and progress.numInputRows:
                last = progress.batchId
                offsets = json.loads(progress.sources[0].endOffset)[CHANGES]["offsets"]
                print(f"batch {last} {sum(offsets.values())}", flush=True)
    if query.isActive:
        query.stop()
    else:
        query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]), Path(sys.argv[4]))
