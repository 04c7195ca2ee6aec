"""Jars that PySpark's package lacks: Spark's Kafka connector, and Hadoop's file system for S3."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import pyspark

from tidelog.localstack.maven import fetch_jars

_SCALA = "2.13"
_TOKEN_PROVIDER_VERSION = "4.0.0"
"""The version of the connector's library for delegation tokens: the newest that all mirrors have.
Without Kerberos only its maps of Kafka's settings matter, which are unchanged since 3.0.
"""


def kafka_connector_jars(cache: Path) -> list[Path]:
    """The Kafka connector of this Spark version, downloaded once. JarsNotAvailable."""
    version = pyspark.__version__
    wanted = f"org.apache.spark:spark-sql-kafka-0-10_{_SCALA}:{version}"
    token_provider = f"spark-token-provider-kafka-0-10_{_SCALA}:{_TOKEN_PROVIDER_VERSION}"
    folder = cache / f"spark-kafka-{version}-{_TOKEN_PROVIDER_VERSION}"
    return _jars(folder, wanted, f"org.apache.spark:{token_provider}")


def s3a_jars(cache: Path) -> list[Path]:
    """hadoop-aws of this Spark's Hadoop version, and AWS's client, downloaded once."""
    (hadoop,) = _own_jars().glob("hadoop-client-api-*.jar")
    version = hadoop.stem.rpartition("-")[2]
    return _jars(cache / f"hadoop-aws-{version}", f"org.apache.hadoop:hadoop-aws:{version}")


def class_path(jars: Iterable[Path]) -> dict[str, str]:
    """Settings of a session that loads jars from their folder.

    Its executors must see the same folder. (`spark.jars` would copy the jars for each session:
    AWS's client has 700 MB.)
    """
    together = ":".join(map(str, jars))
    return {"spark.driver.extraClassPath": together, "spark.executor.extraClassPath": together}


def _jars(folder: Path, wanted: str, *pinned: str) -> list[Path]:
    lib = fetch_jars(folder, [wanted], pinned=pinned)
    # A jar that Spark has itself would come in two versions.
    own = {_artifact(jar) for jar in _own_jars().glob("*.jar")}
    return [jar for jar in sorted(lib.glob("*.jar")) if _artifact(jar) not in own]


def _own_jars() -> Path:
    return Path(pyspark.__file__).parent / "jars"


def _artifact(jar: Path) -> str:
    """A jar's name without its version."""
    return re.split(r"-(?=\d)", jar.stem)[0]
