"""Several brokers on one bucket meet unreadable objects or have wrong clocks."""

from __future__ import annotations

import pytest
from awscrt.checksums import crc32c

from tests.unit.broker.one_broker import OneBroker, World, batch, run
from tests.unit.broker.ownership.test_several_brokers import (
    epoch_of,
    shared_topic,
    take_over,
    until_served,
    values,
)
from tidelog.clock import SystemClock
from tidelog.coordinator.cluster.log.prefix import LOG_PREFIX, LOG_SUFFIX
from tidelog.coordinator.cluster.records.documents import encode_document
from tidelog.coordinator.cluster.records.records import ENTRY_MAGIC, LossAccepted
from tidelog.errors import CorruptObject, UnsupportedFormat
from tidelog.identifiers import TopicId, TopicPartition
from tidelog.protocol.error_codes import ErrorCode
from tidelog.storage.sequence import NUMBER_DIGITS
from tidelog.storage.stores.memory import MemoryStore
from tidelog.wal.format.image_codec import IMAGES_FORMAT_VERSION, encode_images
from tidelog.wal.write.checkpoint import checkpoint_prefix

HOUR_MS = 3_600_000


class WrongClock(SystemClock):
    """A machine's clock that is wrong by hours."""

    def __init__(self, hours: int) -> None:
        super().__init__()
        self._offset_ms = hours * HOUR_MS

    def time_ms(self) -> int:
        return super().time_ms() + self._offset_ms


def world() -> World:
    return World(MemoryStore(SystemClock()), wal_linger_ms=0)


@pytest.mark.parametrize("is_newer", [False, True])
def test_brokers_end_at_an_unreadable_metadata_entry_and_name_the_entry(is_newer: bool) -> None:
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


def damaged_images(kind: str) -> bytes:
    """A hand-over object that no broker of this release can read."""
    data = encode_images([])
    if kind == "corrupt":
        return data[:-1] + bytes([data[-1] ^ 1])
    newer = (IMAGES_FORMAT_VERSION + 1).to_bytes(4, "little")
    sealed = data[:8] + newer + data[12:-4]
    return sealed + crc32c(sealed).to_bytes(4, "little")


HANDOVER = "handover/00000000-0000-4000-8000-00000000000a"


async def named_and_dead(here: World, second: OneBroker, data: bytes) -> TopicId:
    """Broker 1 names a hand-over object as the base of partition 0, and dies before it has opened
    the partition with it. Broker 2 takes over partitions 0 and 1; it led 2."""
    async with here.broker(1, politely=False) as first:
        topic_id = await shared_topic(first, first, first, second)
        for number, owner in enumerate((first, first, second)):
            await owner.produce(batch(b"%d" % number), number)
        await here.store.put(HANDOVER, data)
        loss = LossAccepted(topic_id, 0, HANDOVER, (), ())
        await first.broker.membership.metadata.append(epoch_of(first), lambda _: (loss,))
    mine = epoch_of(second)
    await take_over(second, first, {0: mine, 1: mine})
    return topic_id


def test_a_corrupt_hand_over_object_stops_its_partition_alone() -> None:
    here, data = world(), damaged_images("corrupt")

    async def story() -> None:
        async with here.broker(2) as second:
            topic_id = await named_and_dead(here, second, data)
            await until_served(second, topic_id, 1)
            while not second.broker.writes.partitions.faulty:
                await second.broker.membership.renewal.renewed()
            (harmed,) = second.broker.writes.partitions.faulty
            assert harmed.log.partition == TopicPartition(topic_id, 0)
            assert harmed.fault is not None
            assert harmed.fault.key == HANDOVER
            answer = await second.produce(batch(b"x"), 0)
            assert answer.error_code == ErrorCode.KAFKA_STORAGE_ERROR
            assert await values(second, 1) == [b"1"]
            assert await values(second, 2) == [b"2"]
            assert not second.run.done()
        assert bytes((await here.store.get(HANDOVER)).data) == data

    run(story)


def test_a_hand_over_object_of_a_newer_release_ends_a_broker_that_cannot_read_the_format() -> None:
    here, data = world(), damaged_images("newer")

    async def story() -> None:
        async with here.broker(2, politely=False) as second:
            await named_and_dead(here, second, data)
            with pytest.raises(UnsupportedFormat, match=HANDOVER):
                await second.run
        assert bytes((await here.store.get(HANDOVER)).data) == data, "nothing is guessed"

    run(story)


def test_clocks_that_are_hours_apart_fence_no_broker_and_lose_nothing() -> None:
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
