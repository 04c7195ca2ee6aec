"""What PySpark's package lacks: Spark's Kafka connector, and Hadoop's file system for S3."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import pyspark

from tidelog.localstack.maven import fetch_jars

_SCALA = "2.13"
_TOKEN_PROVIDER_VERSION = "4.0.0"
"""Of the connector's part for delegation tokens. Not every release of it can be fetched from
everywhere as the connector can: this one is the newest. Without Kerberos nothing of it counts but
the maps of Kafka's settings, which are the same since 3.0."""


def kafka_connector_jars(cache: Path) -> list[Path]:
    """The connector of this Spark's version, downloaded once by Maven. JarsNotAvailable."""
    version = pyspark.__version__
    wanted = f"org.apache.spark:spark-sql-kafka-0-10_{_SCALA}:{version}"
    token_provider = f"spark-token-provider-kafka-0-10_{_SCALA}:{_TOKEN_PROVIDER_VERSION}"
    folder = cache / f"spark-kafka-{version}-{_TOKEN_PROVIDER_VERSION}"
    return _jars(folder, wanted, f"org.apache.spark:{token_provider}")


def s3a_jars(cache: Path) -> list[Path]:
    """hadoop-aws of the version of this Spark's Hadoop, and AWS' client, likewise."""
    (hadoop,) = _own_jars().glob("hadoop-client-api-*.jar")
    version = hadoop.stem.rpartition("-")[2]
    return _jars(cache / f"hadoop-aws-{version}", f"org.apache.hadoop:hadoop-aws:{version}")


def class_path(jars: Iterable[Path]) -> dict[str, str]:
    """Settings of a session that has jars from where they lie, its executors too, if they see the
    same folders. (`spark.jars` would copy them for each session: AWS' client has 700 MB.)"""
    together = ":".join(map(str, jars))
    return {"spark.driver.extraClassPath": together, "spark.executor.extraClassPath": together}


def _jars(folder: Path, wanted: str, *pinned: str) -> list[Path]:
    lib = fetch_jars(folder, [wanted], pinned=pinned)
    # Of what Spark has itself it would find two versions.
    own = {_artifact(jar) for jar in _own_jars().glob("*.jar")}
    return [jar for jar in sorted(lib.glob("*.jar")) if _artifact(jar) not in own]


def _own_jars() -> Path:
    return Path(pyspark.__file__).parent / "jars"


def _artifact(jar: Path) -> str:
    """A jar's name without its version."""
    return re.split(r"-(?=\d)", jar.stem)[0]
