"""Delta Lake's own engine: a Spark session with its library, and the rows that it reads of a
table."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from pyspark.sql import SparkSession

from tests.unit.storage.table.test_table_readers import Row

DELTA_ARTIFACT = "io.delta:delta-spark_4.2_2.13:4.4.0"
"""The artifact for the version of Spark that the tests are pinned to."""
DELTA_GROUPS = ("io.delta", "io.unitycatalog")
"""Groups of the artifact and its dependencies. PySpark brings all others."""


def delta_session(jars: Path, folder: Path) -> SparkSession:
    """A Spark in this process that writes no files outside of a folder."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    settings = {
        "spark.jars": ",".join(str(jar) for jar in sorted(jars.glob("*.jar"))),
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        # Lets a vacuum delete every file that the table does not list, even a new one.
        "spark.databricks.delta.retentionDurationCheck.enabled": "false",
        "spark.databricks.delta.snapshotPartitions": "1",
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        # The default of 15 s for the way to Python is short if all cores are busy.
        "spark.python.authenticate.socketTimeout": "120s",
        "spark.local.dir": str(folder / "local"),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.sql.shuffle.partitions": "1",
        "spark.sql.session.timeZone": "UTC",
    }
    builder = SparkSession.builder.master("local[1]").appName("tidelog tables")
    for name, value in settings.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    return session


def by_delta_spark(session: SparkSession, table: str, **options: str) -> list[Row]:
    """The rows of a table, in its present version or in that of `options`."""
    rows: list[Row] = (
        session.read.options(**options).format("delta").load(table).toArrow().to_pylist()
    )
    return rows
