"""The work of a broker does not depend on the number of its idle partitions."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine

import pytest

from tests.unit.broker.one_broker import World, batch
from tidelog.broker.running import RunningBroker
from tidelog.clock import SystemClock
from tidelog.coordinator.cluster.records.records import ConfigsChanged, ConfigScope
from tidelog.storage.stores.memory import MemoryStore
from tidelog.wal.write.checkpoint import list_checkpoints


def run(story: Coroutine[None, None, None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(30):
            await story

    asyncio.run(bounded())


def visited(broker: RunningBroker) -> int:
    partitions = broker.writes.partitions
    return partitions.checkpointed.visited + partitions.producers.visited


@pytest.mark.parametrize("idle", [10, 1000])
def test_checkpoints_and_expiry_visit_only_written_partitions(idle: int) -> None:
    async def story() -> None:
        world = World(MemoryStore(SystemClock()), wal_checkpoint_interval_bytes=2_000)
        async with world.broker() as one:
            await one.create_topic("idle", partitions=idle)
            await one.create_topic("busy", partitions=2)
            for number in range(60):
                await one.produce(batch(bytes(500)), number % 2, topic="busy")
            checkpoints = await list_checkpoints(world.store, one.broker.membership.incarnation)
            assert len(checkpoints) > 5
            assert one.broker.writes.partitions.producers.expire(10**15, 1) == 0
            assert len(one.broker.writes.partitions) == idle + 2
            assert visited(one.broker) <= 2 * (len(checkpoints) + 1)

    run(story())


def test_a_topics_settings_are_renewed_for_that_topic() -> None:
    async def story() -> None:
        world = World(MemoryStore(SystemClock()))
        async with world.broker() as one:
            await one.create_topic("first", partitions=3)
            changed = await one.create_topic("second", partitions=3)
            partitions = one.broker.writes.partitions
            before = partitions.named("first", 1).limits
            epoch = one.broker.membership.incarnation.epoch
            record = ConfigsChanged(ConfigScope.TOPIC, str(changed), {"max.message.bytes": "77"})
            await one.broker.membership.metadata.append(epoch, lambda _: (record,))
            assert partitions.named("second", 2).limits.batch_bytes_max == 77
            assert partitions.named("first", 1).limits is before
            record = ConfigsChanged(ConfigScope.CLUSTER, "", {"message.max.bytes": "99"})
            await one.broker.membership.metadata.append(epoch, lambda _: (record,))
            assert partitions.named("first", 1).limits.batch_bytes_max == 99
            assert partitions.named("second", 2).limits.batch_bytes_max == 77

    run(story())


def test_deleted_partitions_are_in_no_checkpoint_and_no_round() -> None:
    async def story() -> None:
        world = World(MemoryStore(SystemClock()))
        async with world.broker() as one:
            gone = await one.create_topic("gone", partitions=2)
            await one.create_topic("kept")
            for topic in ("gone", "kept"):
                await one.produce(batch(b"a"), topic=topic)
            partitions = one.broker.writes.partitions
            assert (len(partitions), len(partitions.checkpointed)) == (3, 2)
            await one.delete_topic(gone)
            assert (len(partitions), len(partitions.checkpointed)) == (1, 1)
            assert [str(each) for each in partitions] == ["kept-0"]

    run(story())
