"""What PySpark's package lacks: Spark's Kafka connector, and Hadoop's file system for S3."""

from __future__ import annotations

from pathlib import Path

import pyspark

from tidelog.localstack.maven import fetch_jars

_SCALA = "2.13"


def kafka_connector_jars(cache: Path) -> list[Path]:
    """The connector of this Spark's version, downloaded once by Maven. JarsNotAvailable."""
    version = pyspark.__version__
    wanted = f"org.apache.spark:spark-sql-kafka-0-10_{_SCALA}:{version}"
    return _jars(cache / f"spark-kafka-{version}", wanted)


def s3a_jars(cache: Path) -> list[Path]:
    """hadoop-aws of the version of this Spark's Hadoop, and AWS' client, likewise."""
    (hadoop,) = Path(pyspark.__file__).parent.glob("jars/hadoop-client-api-*.jar")
    version = hadoop.stem.rpartition("-")[2]
    return _jars(cache / f"hadoop-aws-{version}", f"org.apache.hadoop:hadoop-aws:{version}")


def _jars(folder: Path, wanted: str) -> list[Path]:
    lib = fetch_jars(folder, [wanted])
    # Spark has Scala's library already, and would find two.
    return [jar for jar in sorted(lib.glob("*.jar")) if not jar.name.startswith("scala-")]
