"""The cluster itself: its executors use our code from the wheel, and it outlives its workers."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tidelog.localstack.spark import SparkCluster

pytestmark = [pytest.mark.spark_cluster, pytest.mark.timeout(900)]


def test_executors_have_tidelog_from_the_wheel_and_from_nowhere_else(
    spark: SparkSession, cluster: SparkCluster, python: Path, shipped: Path
) -> None:
    program = "import numpy, pyarrow, tidelog"
    command = [python, "-c", program]
    alone = subprocess.run(command, cwd=python.parent, env={}, capture_output=True)
    assert b"No module named 'tidelog'" in alone.stderr

    def found(_: Iterator[int]) -> Iterator[tuple[str, list[str]]]:
        import sys

        import tidelog.spark_source.source  # noqa: F401

        files = {
            str(Path(module.__file__).absolute())
            for name, module in sys.modules.items()
            if name.partition(".")[0] == "tidelog" and module.__file__
        }
        yield str(Path.cwd()), sorted(files)

    # A barrier's tasks run at once: on one executor each, as each has one core.
    tasks = spark.sparkContext.parallelize(range(2), 2).barrier().mapPartitions(found).collect()
    folders = {Path(folder) for folder, _ in tasks}
    assert {folder.parents[1] for folder in folders} == {
        cluster.folder / "worker-0",
        cluster.folder / "worker-1",
    }
    for folder, files in tasks:
        assert len(files) > 50
        assert {Path(each).is_relative_to(Path(folder) / shipped.name) for each in files} == {True}
