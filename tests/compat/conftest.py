"""A broker on the filesystem store, and the foreign clients that must work against it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import SparkSession

from tests.compat.kit.clients import (
    AioKafka,
    Client,
    Confluent,
    KafkaPython,
    Kcat,
    java_client,
    kafkajs_client,
)
from tests.compat.kit.delta_spark import DELTA_ARTIFACT, DELTA_GROUPS, delta_session
from tests.compat.kit.records import PARTITIONS
from tidelog.localstack.broker_process import BrokerProcess
from tidelog.localstack.kafka import client_jars, kafka_jars
from tidelog.localstack.kafkajs import kafkajs_folder
from tidelog.localstack.maven import fetch_jars

CACHE = Path(__file__).parents[2] / ".cache"
RequireTool = Callable[[str], str]
FIRST_VERSION_JAVA = "3.9.1"
"""The last Java client that knows the first version of transactions only."""
TOOL_OF_CLIENT = {"java": "java", "kafkajs": "npm", "kcat": "kcat"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """aiokafka and kafka-python leave sockets to the garbage collector, which may find one of
    them during any later test."""
    for item in items:
        if item.get_closest_marker("compat"):
            item.add_marker(
                pytest.mark.filterwarnings("ignore:(unclosed|loop is closed):ResourceWarning")
            )


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    folder = tmp_path_factory.mktemp("broker")
    (folder / "bucket").mkdir()
    with BrokerProcess.start(f"file://{folder / 'bucket'}", folder / "broker.log") as process:
        yield process
        assert process.process.poll() is None, "the broker ended during the tests"
        assert process.stop() == 0


@pytest.fixture(scope="session")
def kafka_lib(require_tool: RequireTool) -> Path:
    require_tool("java")
    require_tool("mvn")
    return kafka_jars(CACHE)


@pytest.fixture(scope="session")
def first_version_lib(require_tool: RequireTool) -> Path:
    """The Java client, restricted to the first version of transactions."""
    require_tool("java")
    require_tool("mvn")
    return client_jars(CACHE, FIRST_VERSION_JAVA)


@pytest.fixture(scope="session")
def delta_spark(
    require_tool: RequireTool, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SparkSession]:
    """A Spark that reads and writes Delta Lake's tables."""
    require_tool("java")
    require_tool("mvn")
    version = DELTA_ARTIFACT.rpartition(":")[2]
    jars = fetch_jars(CACHE / f"delta-spark-{version}", [DELTA_ARTIFACT], DELTA_GROUPS)
    session = delta_session(jars, tmp_path_factory.mktemp("delta-spark"))
    yield session
    session.stop()


@pytest.fixture(scope="session")
def npm_modules(require_tool: RequireTool) -> Path:
    require_tool("npm")
    return kafkajs_folder(CACHE)


@pytest.fixture
def client(request: pytest.FixtureRequest, require_tool: RequireTool, tmp_path: Path) -> Client:
    """The client named by the test's parameter."""
    name = request.param
    if name in TOOL_OF_CLIENT:
        require_tool(TOOL_OF_CLIENT[name])
    match name:
        case "java":
            return java_client(request.getfixturevalue("kafka_lib"))
        case "kafkajs":
            return kafkajs_client(request.getfixturevalue("npm_modules"))
        case "kcat":
            return Kcat(tmp_path)
    libraries: list[Client] = [Confluent(), AioKafka(), KafkaPython()]
    return next(library for library in libraries if library.name == name)


@pytest.fixture
def topic(request: pytest.FixtureRequest, broker: BrokerProcess) -> str:
    """A new topic named after the test."""
    name = "".join(c if c.isalnum() or c in "-_." else "." for c in request.node.name)
    admin = AdminClient({"bootstrap.servers": broker.kafka})
    admin.create_topics([NewTopic(name, num_partitions=PARTITIONS)])[name].result(30)
    return name
