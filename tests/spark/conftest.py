"""One Spark and one broker for all of these tests, since both start slowly."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from pyspark.sql import SparkSession

from tests.spark.history import History, write_history
from tests.spark.sessions import local_session
from tidelog.localstack.broker_process import BrokerProcess
from tidelog.spark_source import register


@pytest.fixture(scope="session")
def spark(
    require_tool: Callable[[str], str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SparkSession]:
    require_tool("java")
    folder = tmp_path_factory.mktemp("spark")
    session = local_session(folder)
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
