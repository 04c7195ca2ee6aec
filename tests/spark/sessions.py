"""Spark in this process, as the tests and the benchmarks use it."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from pyspark.sql import SparkSession

ROOT = Path(__file__).parents[2]
_NONE: Mapping[str, str] = MappingProxyType({})


def local_session(
    folder: Path, *, cores: int = 1, settings: Mapping[str, str] = _NONE
) -> SparkSession:
    """Spark in local mode, which keeps its files in a folder."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    # The workers import the code under test, not an installed package.
    os.environ["PYTHONPATH"] = str(ROOT)
    builder = SparkSession.builder.master(f"local[{cores}]").appName("tidelog")
    base = {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.local.dir": str(folder / "local"),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.sql.shuffle.partitions": "1",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.python.filterPushdown.enabled": "true",
        # A busy machine takes its time to start a Python worker.
        "spark.python.authenticate.socketTimeout": "300s",
    }
    for name, value in {**base, **settings}.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    return session
