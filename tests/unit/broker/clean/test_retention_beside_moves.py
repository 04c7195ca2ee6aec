"""Retention of a partition that came from another broker while its table was opened here."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from tests.unit.broker.clean.test_retention import HOUR_MS, dated
from tests.unit.broker.one_broker import TOPIC, OneBroker, run, until
from tests.unit.broker.ownership.test_several_brokers import epoch_of, until_served
from tests.unit.broker.rolled import flush, world
from tidelog.clock import SystemClock
from tidelog.coordinator.cluster.records.records import TopicCreated
from tidelog.identifiers import TopicId, TopicPartition
from tidelog.storage.object_store import ObjectMeta
from tidelog.storage.stores.memory import MemoryStore


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


async def expiring_topic(giver: OneBroker, receiver: OneBroker) -> TopicId:
    """A topic whose records are kept for an hour, with a partition of each broker."""
    topic_id = giver.broker.environment.entropy.uuid()
    owners = (epoch_of(giver), epoch_of(receiver))
    record = TopicCreated(topic_id, TOPIC, owners, {"retention.ms": str(HOUR_MS)})
    await giver.broker.membership.metadata.append(owners[0], lambda _: (record,))
    await receiver.broker.membership.metadata.refresh()
    return topic_id


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
                topic_id = await expiring_topic(giver, receiver)
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
