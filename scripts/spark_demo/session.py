"""A Spark session for the demo; its output goes to a file, which keeps the demo's readable."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from pyspark.sql import SparkSession

from tidelog.localstack.spark import session_settings, spark_home
from tidelog.spark_source import register

CORES = 2


def open_session(folder: Path, name: str) -> SparkSession:
    """A local session with Tidelog's formats. Spark's files and output are in the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_HOME"] = str(spark_home(folder))
    builder = SparkSession.builder.master(f"local[{CORES}]").appName(name)
    for setting, value in session_settings(folder).items():
        builder = builder.config(setting, value)
    with _stderr_to(folder / "spark.log"):
        session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    register(session)
    return session


@contextlib.contextmanager
def _stderr_to(path: Path) -> Iterator[None]:
    """Redirect the error output of processes that are started meanwhile to a file."""
    sys.stderr.flush()
    ours = os.dup(2)
    with path.open("ab") as log:
        os.dup2(log.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(ours, 2)
        os.close(ours)
