"""Operators describe and raise the level of a cluster by any broker."""

from __future__ import annotations

from tests.unit.broker.one_broker import OneBroker, World, run
from tidelog.broker.handlers.cluster.features import cluster_features
from tidelog.clock import SystemClock
from tidelog.coordinator.cluster.records.records import BROKER_VERSION, FIRST_LEVEL
from tidelog.protocol.error_codes import ErrorCode
from tidelog.protocol.schemas.own.features import (
    ClusterFeaturesRequest,
    ClusterFeaturesResponse,
)
from tidelog.storage.stores.memory import MemoryStore


async def ask(one: OneBroker, raise_to: int = -1) -> ClusterFeaturesResponse:
    request = ClusterFeaturesRequest(raise_to=raise_to)
    return await cluster_features(one.broker.services.cluster, request, one.context(0))


def test_the_level_is_described_and_not_raised_above_the_versions_of_brokers() -> None:
    here = World(MemoryStore(SystemClock()), wal_linger_ms=0)

    async def story() -> None:
        async with here.broker(1) as first, here.broker(2):
            for wanted in (-1, BROKER_VERSION, FIRST_LEVEL):
                found = await ask(first, wanted)
                assert (found.error_code, found.error_message) == (0, None)
                assert (found.level, found.highest) == (FIRST_LEVEL, BROKER_VERSION)
                versions = {each.broker_id: each.version for each in found.brokers}
                assert versions == dict.fromkeys((1, 2), BROKER_VERSION)
            refused = await ask(first, BROKER_VERSION + 1)
            assert refused.error_code == ErrorCode.FEATURE_UPDATE_FAILED
            assert f"has not level {BROKER_VERSION + 1}: 1, 2" in str(refused.error_message)
            assert refused.level == FIRST_LEVEL
            assert first.broker.membership.state().level == 0

    run(story)
