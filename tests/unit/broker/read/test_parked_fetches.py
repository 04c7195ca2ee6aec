"""A fetch that waits for more bytes than there are holds none of them, and asks again whether it
may read."""

from __future__ import annotations

import asyncio
import weakref
from dataclasses import replace

from tests.unit.broker.cold_log import MIB, TOPIC_ID, ColdLog
from tests.unit.broker.one_broker import until
from tests.unit.broker.read.cold_reads import log_of, run
from tidelog.broker.partitions.partitions import Partition, PartitionError
from tidelog.broker.read.fetch_session import FetchTarget
from tidelog.broker.read.fetcher import FetchLimits, Isolation, PartitionRead
from tidelog.protocol.error_codes import ErrorCode
from tidelog.storage.object_store import ByteRange, ObjectStore, StoredObject, Suffix


class Body(bytearray):
    """Bytes that a weak reference can follow."""


class CountingStore:
    """A store around another one that knows which of the bodies that it gave are still held."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self.bodies: list[weakref.ref[Body]] = []

    def __getattr__(self, name: str) -> object:
        return getattr(self._store, name)

    async def get(self, key: str, byte_range: ByteRange | Suffix | None = None) -> StoredObject:
        found = await self._store.get(key, byte_range)
        body = Body(found.data)
        self.bodies.append(weakref.ref(body))
        return replace(found, data=body)

    @property
    def held(self) -> int:
        return sum(body() is not None for body in self.bodies)


class Reader:
    """Fetches from the beginning, and waits for more than there is."""

    def __init__(self, cold: ColdLog) -> None:
        self._cold = cold
        self.may_read = True

    def _find(self, _: FetchTarget) -> Partition:
        if not self.may_read:
            raise PartitionError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "rules have changed")
        return self._cold.partition

    async def fetch(self, wait_ms: int) -> PartitionRead:
        limits = FetchLimits(MIB, MIB, wait_ms)
        (read,) = await self._cold.fetcher.fetch(
            [FetchTarget((TOPIC_ID, 0), 0, MIB)], self._find, Isolation.READ_COMMITTED, limits
        )
        return read


async def parked(wait_ms: int) -> tuple[Reader, asyncio.Task[PartitionRead], CountingStore]:
    """A fetch that has found 30 records and waits for more."""
    cold = ColdLog(log_of(30), read_cache_bytes=0)
    store = CountingStore(cold.memory)
    cold.store._store = store  # type: ignore[attr-defined]
    await cold.write()
    reader = Reader(cold)
    fetching = asyncio.create_task(reader.fetch(wait_ms))
    await until(lambda: store.bodies and not store.held)
    return reader, fetching, store


def test_a_parked_fetch_holds_no_records_and_gets_them_at_its_end() -> None:
    async def story() -> None:
        _, fetching, store = await parked(wait_ms=200)
        assert not fetching.done()
        read = await fetching
        assert (read.code, read.found.next_offset) == (ErrorCode.NONE, 30)
        assert store.held

    run(story())


def test_rules_that_changed_while_a_fetch_waited_hold_for_its_answer() -> None:
    async def story() -> None:
        reader, fetching, _ = await parked(wait_ms=200)
        reader.may_read = False
        read = await fetching
        assert read.code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
        assert not read.found.size_bytes

    run(story())


def test_a_fetch_waits_for_the_partitions_behind_one_that_becomes_known_meanwhile() -> None:
    cold = ColdLog(log_of(0))
    found: list[FetchTarget] = []

    def find(target: FetchTarget) -> Partition:
        found.append(target)
        if len(found) == 1:
            raise PartitionError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "it is not known yet")
        return cold.partition

    async def story() -> None:
        await cold.write()
        targets = [FetchTarget((TOPIC_ID, n), 0, MIB) for n in (1, 0)]
        limits = FetchLimits(MIB, MIB, wait_ms_max=600_000)
        fetch = cold.fetcher.fetch(targets, find, Isolation.READ_COMMITTED, limits)
        fetching = asyncio.create_task(fetch)
        await until(lambda: len(found) == 4)
        cold.partition.readers.wake_all()
        await until(lambda: len(found) == 6)
        cold.fetcher.close()
        assert [read.code for read in await fetching] == [ErrorCode.NONE] * 2

    run(story())
