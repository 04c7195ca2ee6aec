"""One Spark and one broker for all of these tests: either takes its time to start."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.spark.history import History, write_history
from tidelog.localstack.broker_process import BrokerProcess
from tidelog.spark_source import register

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def spark(
    require_tool: Callable[[str], str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SparkSession]:
    require_tool("java")
    folder = tmp_path_factory.mktemp("spark")
    os.environ["PYSPARK_PYTHON"] = sys.executable
    # The workers import what is tested here, not what may be installed.
    os.environ["PYTHONPATH"] = str(ROOT)
    builder = SparkSession.builder.master("local[1]").appName("tidelog tests")
    settings = {
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
    for name, value in settings.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    register(session)
    yield session
    session.stop()


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    folder = tmp_path_factory.mktemp("broker")
    (folder / "bucket").mkdir()
    with BrokerProcess.start(f"file://{folder}/bucket", folder / "broker.log") as process:
        yield process
        assert process.stop() == 0


@pytest.fixture(scope="session")
def history(broker: BrokerProcess) -> Iterator[History]:
    written = write_history(broker, f"file://{broker.log_path.parent}/bucket")
    yield written
    written.open_producer.abort_transaction(30)
