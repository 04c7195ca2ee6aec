"""Quotas by Kafka's own tool."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.compat.kit.tools import Tools
from tidelog.localstack.broker_process import BrokerProcess

CONFIGS = "kafka.admin.ConfigCommand"

pytestmark = pytest.mark.compat


@pytest.fixture
def tools(kafka_lib: Path, broker: BrokerProcess) -> Tools:
    return Tools(kafka_lib, broker.kafka)


def test_quotas_of_a_user_are_set_described_and_deleted(tools: Tools) -> None:
    entity = ("--entity-type", "users", "--entity-name", "quota alice")
    quota = "producer_byte_rate"
    tools.run(CONFIGS, "--alter", *entity, "--add-config", f"{quota}=900000")
    assert f"{quota}=900000" in tools.run(CONFIGS, "--describe", *entity)
    tools.run(CONFIGS, "--alter", *entity, "--delete-config", quota)
    assert quota not in tools.run(CONFIGS, "--describe", *entity)
