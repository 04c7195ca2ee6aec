"""Retention of a partition that came from another broker while its table was opened here."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Mapping

from tests.unit.broker.clean.test_log_cleaner import clean, keyed, roll
from tests.unit.broker.clean.test_retention import HOUR_MS, dated
from tests.unit.broker.one_broker import TOPIC, OneBroker, run, until
from tests.unit.broker.ownership.test_several_brokers import epoch_of, until_served
from tests.unit.broker.rolled import flush, world
from tests.unit.wal.gated_store import GatedStore
from tidelog.clock import SystemClock
from tidelog.coordinator.cluster.records.records import TopicCreated
from tidelog.identifiers import TopicId, TopicPartition
from tidelog.storage.object_store import ObjectMeta
from tidelog.storage.stores.memory import MemoryStore

KEPT_BYTES = 100_000
COMPACTED_BY_SIZE = {
    "cleanup.policy": "compact,delete",
    "min.cleanable.dirty.ratio": "0",
    "retention.bytes": str(KEPT_BYTES),
}


class LateListings:
    """A store around another one. While `is_late`, answers to listings of table logs are late."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store
        self._answer = asyncio.Event()
        self.is_late = False
        self.waiting = 0

    def __getattr__(self, name: str) -> object:
        return getattr(self._store, name)

    def answer(self) -> None:
        """Release the late answers."""
        self._answer.set()

    async def list(self, prefix: str = "", start_after: str = "") -> AsyncIterator[ObjectMeta]:
        found = [meta async for meta in self._store.list(prefix, start_after)]
        if self.is_late and "_delta_log/" in prefix:
            self.waiting += 1
            await self._answer.wait()
        for meta in found:
            yield meta


async def shared_topic(
    giver: OneBroker, receiver: OneBroker, configs: Mapping[str, str]
) -> TopicId:
    """A topic with these settings and a partition of each broker."""
    topic_id = giver.broker.environment.entropy.uuid()
    owners = (epoch_of(giver), epoch_of(receiver))
    record = TopicCreated(topic_id, TOPIC, owners, configs)
    await giver.broker.membership.metadata.append(owners[0], lambda _: (record,))
    await receiver.broker.membership.metadata.refresh()
    return topic_id


async def write_versions(one: OneBroker) -> None:
    """Two segments above the size that the topic keeps; their latest records are far below it."""
    large = [random.Random(number).randbytes(2 * KEPT_BYTES) for number in range(2)]
    await roll(one, keyed((b"small", b"x"), *((b"large", each) for each in large)))
    await roll(one, keyed((b"large", large[0]), (b"large", b"x")))


async def contents(one: OneBroker) -> list[tuple[bytes | None, bytes | None]]:
    """The keys and values that a consumer reads from the log's start on."""
    return [(record.key, record.value) for record in await one.read_all()]


def test_records_that_the_broker_does_not_know_in_the_table_yet_are_kept() -> None:
    """The receiver opens the table while the giver commits for the last time. So the table lacks
    records between the expired ones and those in the receiver's WAL."""
    store = MemoryStore(SystemClock())
    here = world(store)

    async def story() -> None:
        late = LateListings(store)
        async with here.broker(1) as giver:
            here.store = late
            async with here.broker(2) as receiver:
                topic_id = await shared_topic(giver, receiver, {"retention.ms": str(HOUR_MS)})
                await giver.produce(dated(2 * HOUR_MS))
                await flush(giver)
                late.is_late = True
                opening = asyncio.create_task(receiver.broker.topic_tables.tables.open(topic_id))
                await until(lambda: late.waiting)
                await giver.produce(dated(0))
                await flush(giver)
                await giver.broker.writes.checkpointer.checkpoint()
                place = TopicPartition(topic_id, 0)
                await giver.broker.ownership.giving.give({place: epoch_of(receiver)})
                await receiver.broker.membership.metadata.refresh()
                await until_served(receiver, topic_id, 0)
                late.is_late = False
                late.answer()
                await opening
                assert (await receiver.produce(dated(0))).base_offset == 6
                await receiver.broker.topic_tables.cleaner.retention.apply()
                assert (await receiver.offsets(-2)).offset == 3
                assert [record.offset for record in await receiver.read_all()] == [*range(3, 9)]

    run(story)


def test_a_log_that_was_compacted_below_its_size_is_kept() -> None:
    """The receiver opens the table while the giver compacts it. The table of that moment has more
    bytes than the topic keeps, and the present one has fewer."""
    store = MemoryStore(SystemClock())
    here = world(store)

    async def story() -> None:
        late = LateListings(store)
        async with here.broker(1) as giver:
            here.store = late
            async with here.broker(2) as receiver:
                topic_id = await shared_topic(giver, receiver, COMPACTED_BY_SIZE)
                await write_versions(giver)
                late.is_late = True
                tables = receiver.broker.topic_tables.tables
                opening = asyncio.create_task(tables.open(topic_id))
                await until(lambda: late.waiting)
                late.is_late = False
                await clean(giver)
                await giver.broker.writes.checkpointer.checkpoint()
                place = TopicPartition(topic_id, 0)
                await giver.broker.ownership.giving.give({place: epoch_of(receiver)})
                await receiver.broker.membership.metadata.refresh()
                await until_served(receiver, topic_id, 0)
                late.answer()
                await opening
                await receiver.broker.topic_tables.cleaner.retention.apply()
                assert await contents(receiver) == [(b"small", b"x"), (b"large", b"x")]

    run(story)


def test_a_log_is_kept_whose_previous_owner_compacts_it_below_its_size_late() -> None:
    """The commit of the compaction hangs while the partition moves, and lands then."""
    store = GatedStore(MemoryStore(SystemClock()))
    store.open()
    here = world(store)

    async def story() -> None:
        async with here.broker(1) as giver, here.broker(2) as receiver:
            topic_id = await shared_topic(giver, receiver, COMPACTED_BY_SIZE)
            await write_versions(giver)
            store.hold("_delta_log/")
            cleaning = asyncio.create_task(clean(giver))
            await until(lambda: store.waiting)
            store.hold("nothing else")
            (late,) = store.waiting
            place = TopicPartition(topic_id, 0)
            await giver.broker.ownership.giving.give({place: epoch_of(receiver)})
            await receiver.broker.membership.metadata.refresh()
            await until_served(receiver, topic_id, 0)
            await receiver.broker.topic_tables.tables.open(topic_id)
            store.release(late)
            await cleaning
            await receiver.broker.topic_tables.cleaner.retention.apply()
            assert await contents(receiver) == [(b"small", b"x"), (b"large", b"x")]

    run(story)
