"""fsck: a sound bucket is found sound, at rest and while brokers work; each damage is named."""

from __future__ import annotations

import pytest

from tests.unit.broker.one_broker import OneBroker, World, batch, run
from tests.unit.broker.transactional_client import GROUP, TransactionalClient, find
from tests.unit.bucket.bucket_world import (
    WatchedStore,
    checkpoint,
    opened,
    roll,
    roll_and_checkpoint,
    world,
)
from tidelog.bucket.bucket import Bucket
from tidelog.bucket.faults import FaultKind, Findings
from tidelog.bucket.fsck import check_bucket
from tidelog.clock import SystemClock
from tidelog.entropy import SeededEntropy
from tidelog.errors import CorruptObject
from tidelog.offload import InlineOffload
from tidelog.protocol.error_codes import ErrorCode
from tidelog.storage.memory import MemoryStore
from tidelog.storage.object_store import ObjectStore
from tidelog.wal.checkpoint import newest_checkpoint
from tidelog.wal.object_format import wal_position

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
    await roll_and_checkpoint(broker.broker._store, broker)
    await broker.produce(batch(b"e"), 1)
    await broker.produce(batch(b"f"), topic="other")
    await checkpoint(broker)
    await broker.produce(batch(b"g"), topic="other")
    assert await committed.send(b"open") is OK


def here_with(**settings: object) -> World:
    return world(coordinator_snapshot_interval_records=3, **settings)


@pytest.mark.parametrize("deep", [True, False])
def test_a_sound_bucket_is_consistent_beside_brokers_and_without(deep: bool) -> None:
    here = here_with()

    async def story() -> None:
        async with here.broker(politely=False) as broker:
            await some_work(broker)
            found = await checked(here.store, deep=deep)
            assert found.faults == []
        assert (await checked(here.store, deep=deep)).faults == []
        async with here.broker() as successor:
            await successor.produce(batch(b"h"), 0)
            assert (await checked(here.store, deep=deep)).faults == []
        found = await checked(here.store, deep=deep)
        assert found.faults == []
        assert {
            "WAL objects",
            "seals",
            "checkpoints",
            "partition images",
            "tables",
            "table commits",
            "segments",
            "rows in segments",
            "state snapshots",
            "coordinators' states",
            "metadata entries",
            "leases",
            "partitions",
            "extents",
        } <= set(found.counts)
        assert found.counts["rows in segments"] == 3
        assert found.counts["partitions"] == 5
        assert found.counts["segments"] == 2

    run(story)


def test_what_changes_while_it_is_checked_is_no_fault() -> None:
    async def story(step: int) -> int:
        here = here_with()
        async with here.broker(politely=False) as broker:
            await some_work(broker)
            store = WatchedStore(here.store)

            async def interfere(number: int, _: str) -> None:
                if number == step:
                    await roll_and_checkpoint(here.store, broker, "other")
                    await broker.produce(batch(b"x"), 0)
                    topic_id = await broker.create_topic("new")
                    await broker.produce(batch(b"y"), topic="new")
                    await broker.delete_topic(topic_id)
                    await roll(here.store)

            store.before = interfere
            bucket = Bucket.unread(store, HastyClock(), SeededEntropy("fsck"), InlineOffload())
            found = await check_bucket(bucket, lambda _: None, deep=True)
            assert found.faults == [], f"at request {step}"
            return len(store.requests)

    async def stories() -> None:
        step = 0
        while step < await story(step):
            step += 23

    run(stories)


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


def kind_of(key: str, size: int) -> str:
    """What a damage test calls it."""
    if key.startswith("wal/"):
        return "seal" if size == 64 else "WAL object"
    if "/_delta_log/" in key:
        return "table commit"
    return {
        "checkpoint": "checkpoint",
        "state": "state snapshot",
        "topics": "segment",
        "cluster": key.split("/")[1],
    }[key.split("/")[0]]


DAMAGES = (pytest.param("truncated", marks=pytest.mark.slow), "altered", "missing")


async def may_be_missing(store: ObjectStore) -> set[str]:
    """What nobody can know of, or needs: leases of brokers that have ended; the newest entry of the
    metadata log; checkpoints behind which all slots are there; snapshots of states to which the log
    leads again; barrier seals; slots below the floor to which no partition refers."""
    bucket = await opened(store)
    view = await bucket.view(*[topic.name for topic in bucket.state.topics.values()])
    referenced = {key for each in view.partitions.values() for key in each.tail.keys}
    keys = [meta.key async for meta in store.list()]
    needless = {key for key in keys if key.startswith(("cluster/lease/", "checkpoint/"))}
    needless.add(max(key for key in keys if key.startswith("cluster/log/")))
    for key in keys:
        if key.startswith("state/"):
            needless |= {key} if await _is_made_again(store, key) else set()
        position = wal_position(key)
        if position is not None and key not in referenced:
            floor = await newest_checkpoint(store, position.incarnation) or 0
            end = bucket.state.retired_ends.get(position.incarnation.epoch, position.slot)
            needless |= {key} if position.slot < floor or position.slot > end else set()
    return needless


async def _is_made_again(store: ObjectStore, snapshot: str) -> bool:
    """Whether what is left of snapshots and logs leads to the same states."""
    bucket = await opened(store)
    states = await bucket.transactions(), await bucket.groups()
    whole = (await store.get(snapshot)).data
    await store.delete(snapshot)
    try:
        return states == (await bucket.transactions(), await bucket.groups())
    except CorruptObject:
        return False
    finally:
        await store.put(snapshot, whole)


@pytest.mark.parametrize("damage", DAMAGES)
def test_every_object_that_is_truncated_altered_or_missing_is_named(damage: str) -> None:
    async def story() -> None:
        store = await damaged_bucket()
        assert (await checked(store)).faults == []
        listed = [(meta.key, meta.size) async for meta in store.list()]
        kinds = {kind_of(*each) for each in listed}
        assert kinds == {
            *("WAL object", "seal", "checkpoint", "state snapshot", "segment", "table commit"),
            *("log", "lease"),
        }
        unnoticed = []
        for key, _ in listed:
            whole = bytes((await store.get(key)).data)
            if damage == "missing":
                await store.delete(key)
            elif damage == "truncated":
                await store.put(key, whole[: len(whole) // 2])
            else:
                await store.put(key, _altered(whole))
            found = await checked(store)
            if not any(fault.key == key for fault in found.faults):
                unnoticed.append(key)
            await store.put(key, whole)
        assert unnoticed == sorted(await may_be_missing(store) if damage == "missing" else ())
        assert (await checked(store)).faults == []

    run(story)


def _altered(data: bytes) -> bytes:
    changed = bytearray(data)
    changed[len(changed) * 2 // 3] ^= 0x40
    return bytes(changed)


def test_a_bucket_whose_metadata_cannot_be_read_is_inconsistent() -> None:
    async def story() -> None:
        store = await damaged_bucket()
        keys = [meta.key async for meta in store.list("cluster/log/")]
        await store.put(keys[2], b"{}")
        found = await checked(store)
        assert [(fault.kind, fault.key) for fault in found.faults] == [(FaultKind.DAMAGED, keys[2])]

    run(story)


def test_what_does_not_belong_there_is_named() -> None:
    async def story() -> None:
        store = await damaged_bucket()
        stray = "wal/9-999/00000000000000000000.wal"
        await store.put(stray, b"x")
        snapshot = "state/__consumer_offsets/99/00000000000000000001.parquet"
        await store.put(snapshot, b"x")
        found = await checked(store)
        assert {(fault.kind, fault.key) for fault in found.faults} == {
            (FaultKind.FOREIGN, stray),
            (FaultKind.FOREIGN, snapshot),
        }

    run(story)
