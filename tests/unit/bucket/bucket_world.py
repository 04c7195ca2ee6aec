"""A broker that writes, a reader of its bucket, and changes between the reader's requests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

import pyarrow as pa

from tests.unit.broker.one_broker import TOPIC, OneBroker, World
from tidelog.bucket.views.atomic_view import AtomicView
from tidelog.bucket.views.bucket import Bucket
from tidelog.bucket.views.partition_view import PartitionView
from tidelog.clock import SystemClock
from tidelog.entropy import SeededEntropy
from tidelog.identifiers import TopicPartition
from tidelog.storage.object_store import (
    Buffer,
    ByteRange,
    Condition,
    ObjectMeta,
    ObjectStore,
    StoredObject,
    Suffix,
)
from tidelog.storage.segment.segment_writer import SegmentWriter
from tidelog.storage.stores.memory import MemoryStore
from tidelog.storage.table.table_change import PartitionChange, TableAdvance
from tidelog.storage.table.table_log import TableCommitted, TableLog
from tidelog.workers.offload import InlineOffload

SETTINGS = {
    "offsets_topic_num_partitions": 1,
    "transaction_state_log_num_partitions": 1,
    "group_initial_rebalance_delay_ms": 0,
}


def world(store: ObjectStore | None = None, **settings: object) -> World:
    return World(store or MemoryStore(SystemClock()), **{**SETTINGS, **settings})


async def opened(store: ObjectStore) -> Bucket:
    return await Bucket.open(store, SystemClock(), SeededEntropy(7), InlineOffload())


class WatchedStore:
    """A store to be read only. Before each request `before` is awaited with its number and key."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self.before: Callable[[int, str], Awaitable[None]] | None = None
        self.requests: list[str] = []

    @property
    def url(self) -> str:
        return self._store.url

    async def get(self, key: str, byte_range: ByteRange | Suffix | None = None) -> StoredObject:
        await self._note(key)
        return await self._store.get(key, byte_range)

    async def head(self, key: str) -> ObjectMeta:
        await self._note(key)
        return await self._store.head(key)

    async def put(
        self, key: str, data: Buffer | Sequence[Buffer], condition: Condition | None = None
    ) -> str:
        raise AssertionError(f"a reader puts {key}")

    async def list(self, prefix: str = "", start_after: str = "") -> AsyncIterator[ObjectMeta]:
        await self._note(prefix)
        async for meta in self._store.list(prefix, start_after):
            yield meta

    async def delete(self, *keys: str) -> None:
        raise AssertionError(f"a reader deletes {keys}")

    async def close(self) -> None:
        await self._store.close()

    async def _note(self, key: str) -> None:
        self.requests.append(key)
        if self.before is not None:
            await self.before(len(self.requests) - 1, key)


def values_in(batches: Sequence[pa.RecordBatch]) -> list[bytes]:
    return [value for rows in batches for value in rows.column("value").to_pylist()]


async def tail_values(
    bucket: Bucket, view: PartitionView, *, committed: bool = True
) -> list[bytes]:
    return values_in([rows async for rows in bucket.tails.rows(view, committed=committed)])


async def all_values(bucket: Bucket, view: PartitionView) -> list[bytes]:
    """The values that a read_committed consumer would get, from segments and tail."""
    return values_in([rows async for rows in bucket.rows(view)])


async def atomic_values(
    bucket: Bucket, found: AtomicView, partition: TopicPartition
) -> list[bytes]:
    view = found.view.partition(partition)
    return values_in([rows async for rows in bucket.rows(view, keep=found.keep)])


async def roll(store: ObjectStore, topic: str = TOPIC) -> None:
    """Roll records below the last stable offset into segments, as a broker does."""
    bucket = await opened(store)
    found = await bucket.view(topic)
    topic_id = bucket.topic(topic).topic_id
    table = await TableLog.open(
        store, SystemClock(), SeededEntropy(f"roll {topic}"), InlineOffload(), topic_id, topic
    )
    for view in found.of_topic(topic_id):
        base, following = view.table_next, view.last_stable_offset
        if base == following:
            continue
        writer = SegmentWriter(view.partition, base)
        rows = [each async for each in bucket.tails.rows(view)]
        for each in rows:
            writer.write(each)
        segments = []
        if rows:
            number = base * 1000 + view.partition.partition
            written = writer.finish(following, SeededEntropy(number).uuid())
            await store.put(written.segment.key(topic_id), written.pieces)
            segments.append(written.segment)
        change = PartitionChange(
            partition=view.partition.partition,
            advance=TableAdvance(base, following),
            appended=tuple(segments),
        )
        assert isinstance(await table.commit((change,)), TableCommitted)


async def roll_and_checkpoint(store: ObjectStore, broker: OneBroker, topic: str = TOPIC) -> None:
    """Roll, and tell the broker of the roll. The next checkpoint has it."""
    await roll(store, topic)
    bucket = await opened(store)
    topic_id = bucket.topic(topic).topic_id
    state = await bucket.table(bucket.topic(topic))
    for partition in broker.broker.writes.partitions:
        if partition.log.partition.topic_id == topic_id:
            number = partition.log.partition.partition
            partition.log.advance_table(state.partition(number).next_offset)
    await checkpoint(broker)


async def checkpoint(broker: OneBroker) -> None:
    await broker.broker.writes.checkpointer.checkpoint()


async def settle() -> None:
    """Let all tasks run that can."""
    for _ in range(200):
        await asyncio.sleep(0)
