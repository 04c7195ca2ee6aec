"""Brokers that roll: their bucket, the rows of its tables, and failures in the course of a roll."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any
from uuid import UUID

import pyarrow as pa
import pyarrow.parquet as pq

from tests.unit.broker.one_broker import TOPIC, OneBroker, World, until
from tidelog.broker.partitions.partitions import Partition
from tidelog.clock import SystemClock
from tidelog.crash_points import CrashPoint
from tidelog.entropy import SeededEntropy
from tidelog.storage.object_store import Buffer, Condition, ObjectStore, StoreNotApplied
from tidelog.storage.stores.memory import MemoryStore
from tidelog.storage.table.table_log import TableLog
from tidelog.storage.table.table_state import TableState
from tidelog.workers.offload import InlineOffload

SETTINGS = {"offsets_topic_num_partitions": 1, "transaction_state_log_num_partitions": 1}


class Killed(Exception):
    """The process is killed."""


class KillAt:
    """Kills the process at one step."""

    def __init__(self, point: CrashPoint) -> None:
        self._point = point

    def hit(self, point: CrashPoint) -> None:
        if point is self._point:
            raise Killed


async def open_table(store: ObjectStore, topic_id: UUID) -> TableLog:
    """The topic's table, read from the bucket."""
    return await TableLog.open(
        store, SystemClock(), SeededEntropy(99), InlineOffload(), topic_id, TOPIC
    )


async def table_state(store: ObjectStore, topic_id: UUID) -> TableState:
    return (await open_table(store, topic_id)).state


async def rows(store: ObjectStore, topic_id: UUID, partition: int = 0) -> list[dict[str, Any]]:
    """The partition's rows in the table, in the order of its segments."""
    found: list[dict[str, Any]] = []
    for stored in (await table_state(store, topic_id)).partition(partition).segments:
        data = (await store.get(stored.segment.key(topic_id))).data
        found += pq.read_table(pa.BufferReader(data)).to_pylist()
    return found


async def offsets(store: ObjectStore, topic_id: UUID, partition: int = 0) -> list[int]:
    """The offsets of the rows."""
    return [row["offset"] for row in await rows(store, topic_id, partition)]


async def segments(store: ObjectStore, topic_id: UUID) -> list[str]:
    """Every segment object, whether the table lists it or not."""
    prefix = f"topics/{topic_id}/partition="
    return [meta.key async for meta in store.list(prefix)]


def hosted(one: OneBroker, partition: int = 0, topic: str = TOPIC) -> Partition:
    """The partition in the broker's memory."""
    return one.broker.writes.partitions.named(topic, partition)


async def flush(one: OneBroker, partition: int = 0, topic: str = TOPIC) -> None:
    """Roll the decided records of a partition."""
    async with asyncio.timeout(20):
        await one.broker.topic_tables.roller.flush(hosted(one, partition, topic))


def world(store: ObjectStore | None = None, **settings: object) -> World:
    """A bucket in memory whose brokers have one partition of each internal topic."""
    return World(store or MemoryStore(SystemClock()), **{**SETTINGS, **settings})


async def settled(one: OneBroker, offset: int, partition: int = 0) -> None:
    """Wait until the table has all records below an offset."""
    await until(lambda: hosted(one, partition).log.table_next >= offset)


async def decided(one: OneBroker, offset: int) -> None:
    """Wait until the last stable offset has reached this offset."""
    await until(lambda: hosted(one).log.last_stable_offset >= offset)


async def flush_all(one: OneBroker, partitions: int) -> None:
    """Roll the decided records of the first partitions at once."""
    await asyncio.gather(*(flush(one, number) for number in range(partitions)))


class ShakyStore(MemoryStore):
    """Refuses the next puts of some keys."""

    def __init__(self) -> None:
        super().__init__(SystemClock())
        self.refusals: dict[str, int] = {}

    async def put(
        self, key: str, data: Buffer | Sequence[Buffer], condition: Condition | None = None
    ) -> str:
        for part, left in self.refusals.items():
            if part in key and left:
                self.refusals[part] = left - 1
                raise StoreNotApplied(key, "not now")
        return await super().put(key, data, condition)


async def spoil(store: ObjectStore, key: str, at: int) -> bytes:
    """Change a byte. Returns the object as it was."""
    right = bytes((await store.get(key)).data)
    wrong = bytearray(right)
    wrong[at] ^= 1
    await store.put(key, wrong)
    return right
