"""Spark's data sources for a bucket, read without a broker, and its exactly-once sink.

`register` gives a session the formats. `read` is the quickest batch: Spark's own Parquet reader for
the segments, and the source for the tail. `committed_files` names the segments alone. `explain`
shows a frame's plan, with the offsets and segments that it reads.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from tidelog.errors import InvalidConfiguration

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tidelog.spark_source.explanation import explain
    from tidelog.spark_source.files import (
        SEGMENT_SCHEMA,
        CommittedFile,
        committed_files,
        s3a_options,
        table_path,
    )
    from tidelog.spark_source.united import read

__all__ = [
    "SEGMENT_SCHEMA",
    "CommittedFile",
    "committed_files",
    "explain",
    "read",
    "register",
    "s3a_options",
    "table_path",
]

PYSPARK_OLDEST = (4, 2)
_REGISTERED: WeakSet[SparkSession] = WeakSet()
"""Spark warns of a format that is registered again."""


def register(spark: SparkSession) -> None:
    """Register the formats tidelog, tidelog.transactions and tidelog.groups with a session.

    InvalidConfiguration if PySpark is missing or too old.
    """
    _check_pyspark()
    if spark in _REGISTERED:
        return
    from tidelog.spark_source.source import TidelogSource
    from tidelog.spark_source.states import GroupsSource, TransactionsSource

    for source in (TidelogSource, TransactionsSource, GroupsSource):
        spark.dataSource.register(source)
    _REGISTERED.add(spark)


def _check_pyspark() -> None:
    oldest = ".".join(map(str, PYSPARK_OLDEST))
    remedy = f"install Tidelog with its extra spark, which brings PySpark {oldest} or newer"
    try:
        import pyspark
    except ImportError as error:
        raise InvalidConfiguration(f"PySpark is not installed: {remedy}") from error
    found = tuple(int(part) for part in pyspark.__version__.split(".")[:2])
    if found < PYSPARK_OLDEST:
        raise InvalidConfiguration(f"PySpark {pyspark.__version__} is too old: {remedy}")


def __getattr__(name: str) -> Any:
    # Importing the pure modules of this package must not load the stores.
    if name in __all__:
        module = {"explain": "explanation", "read": "united"}.get(name, "files")
        return getattr(import_module(f"tidelog.spark_source.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
