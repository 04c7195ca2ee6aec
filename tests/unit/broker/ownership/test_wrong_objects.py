"""Brokers that meet what they cannot read, or whose clocks are wrong, on a bucket of several."""

from __future__ import annotations

import pytest

from tests.unit.broker.one_broker import World, batch, run
from tests.unit.broker.ownership.test_several_brokers import (
    epoch_of,
    shared_topic,
    until_served,
    values,
)
from tidelog.clock import SystemClock
from tidelog.coordinator.cluster.log.prefix import LOG_PREFIX, LOG_SUFFIX
from tidelog.coordinator.cluster.records.documents import encode_document
from tidelog.coordinator.cluster.records.records import ENTRY_MAGIC
from tidelog.errors import CorruptObject, UnsupportedFormat
from tidelog.identifiers import TopicPartition
from tidelog.protocol.error_codes import ErrorCode
from tidelog.storage.sequence import NUMBER_DIGITS
from tidelog.storage.stores.memory import MemoryStore
from tidelog.wal.write.checkpoint import checkpoint_prefix

HOUR_MS = 3_600_000


class WrongClock(SystemClock):
    """A machine's clock that is hours off."""

    def __init__(self, hours: int) -> None:
        super().__init__()
        self._offset_ms = hours * HOUR_MS

    def time_ms(self) -> int:
        return super().time_ms() + self._offset_ms


def world() -> World:
    return World(MemoryStore(SystemClock()), wal_linger_ms=0)


@pytest.mark.parametrize("is_newer", [False, True])
def test_brokers_end_at_a_metadata_entry_that_they_cannot_read_and_name_it(is_newer: bool) -> None:
    data = encode_document(ENTRY_MAGIC, 99, {}) if is_newer else b"nonsense"
    here = world()

    async def story() -> None:
        async with (
            here.broker(1, politely=False) as first,
            here.broker(2, politely=False) as second,
        ):
            await first.broker.membership.metadata.refresh()
            number = second.broker.membership.state().sequence + 1
            key = f"{LOG_PREFIX}{number:0{NUMBER_DIGITS}d}{LOG_SUFFIX}"
            await here.store.put(key, data)
            for one in (first, second):
                with pytest.raises((CorruptObject, UnsupportedFormat), match=key) as refused:
                    await one.broker.membership.metadata.refresh()
                assert isinstance(refused.value, UnsupportedFormat) == is_newer
                assert one.broker.membership.state().sequence == number - 1, "nothing is guessed"
            assert bytes((await here.store.get(key)).data) == data

    run(story)


def test_a_damaged_base_of_a_moved_partition_stops_that_partition_alone() -> None:
    here = world()

    async def story() -> None:
        async with here.broker(1) as first, here.broker(2) as second:
            topic_id = await shared_topic(first, first, second, first)
            for number, owner in enumerate((first, second, first)):
                await owner.produce(batch(b"%d" % number), number)
            await first.broker.writes.checkpointer.checkpoint()
            prefix = checkpoint_prefix(first.broker.membership.incarnation)
            (key,) = [meta.key async for meta in here.store.list(prefix)]
            await here.store.put(key, b"nonsense")
            place = TopicPartition(topic_id, 0)
            assert await first.broker.ownership.giving.give({place: epoch_of(second)}) == {place}
            await second.broker.membership.metadata.refresh()
            while not second.broker.writes.partitions.faulty:
                await second.broker.membership.renewal.renewed()
            (harmed,) = second.broker.writes.partitions.faulty
            assert harmed.log.partition == place
            assert harmed.fault is not None
            assert harmed.fault.key == key
            answer = await second.produce(batch(b"x"), 0)
            assert answer.error_code == ErrorCode.KAFKA_STORAGE_ERROR
            assert await values(second, 1) == [b"1"]
            assert await values(first, 2) == [b"2"]

    run(story)


def test_clocks_that_are_hours_apart_fence_nobody_and_lose_nothing() -> None:
    here = world()
    here.clocks = {1: WrongClock(-7), 2: WrongClock(9)}

    async def story() -> None:
        async with here.broker(1) as first, here.broker(2) as second:
            topic_id = await shared_topic(first, first)
            place = TopicPartition(topic_id, 0)
            written: list[bytes | None] = []
            owner, other = first, second
            for number in range(4):
                answer = await owner.produce(batch(b"%d" % number))
                assert (answer.error_code, answer.base_offset) == (0, number)
                written.append(b"%d" % number)
                await owner.broker.ownership.giving.give({place: epoch_of(other)})
                await other.broker.membership.metadata.refresh()
                await until_served(other, topic_id, 0)
                assert await values(other, 0) == written
                owner, other = other, owner
            live = first.broker.membership.state().live_epochs
            assert set(live.values()) == {epoch_of(first), epoch_of(second)}

    run(story)
