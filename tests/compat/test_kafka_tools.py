"""Apache Kafka's own command line tools against a Tidelog broker."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.compat.kit.tools import Tools
from tidelog.localstack.broker_process import BrokerProcess

TOPICS = "org.apache.kafka.tools.TopicCommand"
CONFIGS = "kafka.admin.ConfigCommand"
PRODUCER = "org.apache.kafka.tools.ConsoleProducer"
CONSUMER = "org.apache.kafka.tools.consumer.ConsoleConsumer"
OFFSETS = "org.apache.kafka.tools.GetOffsetShell"
LOG_DIRS = "org.apache.kafka.tools.LogDirsCommand"
API_VERSIONS = "org.apache.kafka.tools.BrokerApiVersionsCommand"
DELETE_RECORDS = "org.apache.kafka.tools.DeleteRecordsCommand"

pytestmark = pytest.mark.compat


@pytest.fixture
def tools(kafka_lib: Path, broker: BrokerProcess) -> Tools:
    return Tools(kafka_lib, broker.kafka)


def test_topics_are_created_listed_described_altered_and_deleted(tools: Tools) -> None:
    name = "tools.topics"
    tools.run(TOPICS, "--create", "--topic", name, "--partitions", "2", "--replication-factor", "1")
    assert name in tools.run(TOPICS, "--list").splitlines()
    described = tools.run(TOPICS, "--describe", "--topic", name)
    assert "PartitionCount: 2" in described
    tools.run(TOPICS, "--alter", "--topic", name, "--partitions", "4")
    assert "PartitionCount: 4" in tools.run(TOPICS, "--describe", "--topic", name)
    again = ("--create", "--topic", name)
    assert "already exists" in tools.run(TOPICS, *again, fails=True)
    tools.run(TOPICS, "--delete", "--topic", name)
    assert name not in tools.run(TOPICS, "--list").splitlines()


def test_configs_are_altered_described_and_refused(tools: Tools) -> None:
    name = "tools.configs"
    tools.run(TOPICS, "--create", "--topic", name, "--config", "max.message.bytes=2000")
    entity = ("--entity-type", "topics", "--entity-name", name)
    assert "max.message.bytes=2000" in tools.run(CONFIGS, "--describe", *entity)
    tools.run(CONFIGS, "--alter", *entity, "--add-config", "retention.ms=1000")
    assert "retention.ms=1000" in tools.run(CONFIGS, "--describe", *entity)
    tools.run(CONFIGS, "--alter", *entity, "--delete-config", "retention.ms")
    assert "retention.ms=1000" not in tools.run(CONFIGS, "--describe", *entity)
    wrong = ("--alter", *entity, "--add-config", "retention.ms=soon")
    assert "retention.ms" in tools.run(CONFIGS, *wrong, fails=True)
    tools.run(CONFIGS, "--describe", "--all", "--entity-type", "brokers", "--entity-name", "0")


def test_settings_of_groups_are_altered_described_and_refused(tools: Tools) -> None:
    entity = ("--entity-type", "groups", "--entity-name", "tools.group")
    change = ("--add-config", "consumer.session.timeout.ms=50000")
    assert "Completed updating config" in tools.run(CONFIGS, "--alter", *entity, *change)
    described = tools.run(CONFIGS, "--describe", *entity)
    assert "consumer.session.timeout.ms=50000" in described
    assert "GROUP_CONFIG:consumer.session.timeout.ms=50000" in described
    assert "consumer.heartbeat.interval.ms" not in described
    everything = tools.run(CONFIGS, "--describe", "--all", *entity)
    assert "consumer.heartbeat.interval.ms=5000" in everything
    wrong = ("--add-config", "consumer.session.timeout.ms=1000")
    refused = tools.run(CONFIGS, "--alter", *entity, *wrong, fails=True)
    assert "InvalidConfigurationException" in refused
    assert "group.consumer.min.session.timeout.ms" in refused
    tools.run(CONFIGS, "--alter", *entity, "--delete-config", "consumer.session.timeout.ms")
    assert "GROUP_CONFIG" not in tools.run(CONFIGS, "--describe", *entity)


def test_console_producer_and_consumer_carry_lines(tools: Tools) -> None:
    name = "tools.console"
    tools.run(TOPICS, "--create", "--topic", name, "--partitions", "1")
    tools.run(PRODUCER, "--topic", name, text="one\ntwo\nthree\n")
    place = ("--topic", name, "--partition", "0", "--offset", "earliest")
    seen = tools.run(CONSUMER, *place, "--max-messages", "3", "--timeout-ms", "30000")
    assert [line for line in seen.splitlines() if line in ("one", "two", "three")] == [
        "one",
        "two",
        "three",
    ]


def test_offsets_log_dirs_versions_and_deletion_of_records(tools: Tools, tmp_path: Path) -> None:
    name = "tools.offsets"
    tools.run(TOPICS, "--create", "--topic", name, "--partitions", "1")
    tools.run(PRODUCER, "--topic", name, text="one\ntwo\nthree\n")
    assert f"{name}:0:3" in tools.run(OFFSETS, "--topic", name)
    assert f"{name}:0:0" in tools.run(OFFSETS, "--topic", name, "--time", "earliest")
    assert name in tools.run(LOG_DIRS, "--describe", "--topic-list", name)
    assert "Produce(0)" in tools.run(API_VERSIONS)
    plan = tmp_path / "delete.json"
    plan.write_text(
        json.dumps({"version": 1, "partitions": [{"topic": name, "partition": 0, "offset": 2}]})
    )
    tools.run(DELETE_RECORDS, "--offset-json-file", str(plan))
    assert f"{name}:0:2" in tools.run(OFFSETS, "--topic", name, "--time", "earliest")
