"""Buckets with work of every kind in them, and fsck's verdict on a bucket."""

from __future__ import annotations

from tests.unit.broker.one_broker import OneBroker, World, batch
from tests.unit.broker.transactional_client import GROUP, TransactionalClient, find
from tests.unit.bucket.bucket_world import WatchedStore, checkpoint, roll_and_checkpoint, world
from tidelog.bucket.fsck.faults import Findings
from tidelog.bucket.fsck.fsck import check_bucket
from tidelog.bucket.views.bucket import Bucket
from tidelog.clock import SystemClock
from tidelog.entropy import SeededEntropy
from tidelog.protocol.error_codes import ErrorCode
from tidelog.storage.object_store import ObjectStore
from tidelog.storage.stores.memory import MemoryStore
from tidelog.workers.offload import InlineOffload

OK = ErrorCode.NONE


class HastyClock(SystemClock):
    """Does not wait between looks."""

    async def sleep(self, seconds: float) -> None:
        await super().sleep(0)


async def checked(store: ObjectStore, *, deep: bool = True) -> Findings:
    bucket = Bucket.unread(
        WatchedStore(store), HastyClock(), SeededEntropy("fsck"), InlineOffload()
    )
    return await check_bucket(bucket, lambda _: None, deep=deep)


async def some_work(broker: OneBroker) -> None:
    """Plain, committed, aborted and open; in a table, in tails, behind a checkpoint and not."""
    await broker.create_topic(partitions=2)
    await broker.create_topic("other")
    committed = TransactionalClient(broker, "committed")
    aborted = TransactionalClient(broker, "aborted")
    await find(broker, GROUP, 0)
    for client in (committed, aborted):
        assert await client.init() is OK
    await broker.produce(batch(b"a", b"b", base_sequence=-1), 1)
    assert await committed.send(b"c") is OK
    assert await committed.commit_offset(1) is OK
    assert await aborted.send(b"d") is OK
    assert await committed.commit() is OK
    assert await aborted.abort() is OK
    await roll_and_checkpoint(broker.broker.environment.store, broker)
    await broker.produce(batch(b"e"), 1)
    await broker.produce(batch(b"f"), topic="other")
    await checkpoint(broker)
    await broker.produce(batch(b"g"), topic="other")
    assert await committed.send(b"open") is OK


def here_with(**settings: object) -> World:
    return world(coordinator_snapshot_interval_records=3, **settings)


async def damaged_bucket() -> MemoryStore:
    """A bucket at rest with every kind of object."""
    here = here_with()
    async with here.broker(politely=False) as broker:
        await some_work(broker)
    async with here.broker() as successor:
        await successor.produce(batch(b"h"), 0)
    store = here.store
    assert isinstance(store, MemoryStore)
    return store


def altered(data: bytes) -> bytes:
    changed = bytearray(data)
    changed[len(changed) * 2 // 3] ^= 0x40
    return bytes(changed)
