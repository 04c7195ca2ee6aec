"""fsck accepts a sound bucket, at rest and while brokers work. It names each damage."""

from __future__ import annotations

import pytest

from tests.unit.broker.one_broker import TOPIC, batch, run
from tests.unit.bucket.bucket_world import (
    WatchedStore,
    checkpoint,
    opened,
    roll,
    roll_and_checkpoint,
    world,
)
from tests.unit.bucket.fsck.checked_bucket import (
    HastyClock,
    altered,
    checked,
    damaged_bucket,
    here_with,
    some_work,
)
from tidelog.bucket.fsck.faults import FaultKind
from tidelog.bucket.fsck.fsck import check_bucket
from tidelog.bucket.views.bucket import Bucket
from tidelog.bucket.views.states import groups, transactions
from tidelog.entropy import SeededEntropy
from tidelog.errors import CorruptObject
from tidelog.storage.object_store import ObjectStore
from tidelog.wal.format.object_format import wal_position
from tidelog.wal.write.checkpoint import newest_checkpoint
from tidelog.workers.offload import InlineOffload


def test_the_wals_are_read_no_more_often_for_many_coordinators() -> None:
    """There are fifty coordinators of each kind by default, and one reading of the WALs for each
    took minutes."""

    def wal_reads(coordinators: int) -> int:
        here = here_with(
            offsets_topic_num_partitions=coordinators,
            transaction_state_log_num_partitions=coordinators,
        )

        async def story() -> int:
            async with here.broker(politely=False) as broker:
                await some_work(broker)
            watched = WatchedStore(here.store)
            bucket = Bucket.unread(watched, HastyClock(), SeededEntropy("fsck"), InlineOffload())
            found = await check_bucket(bucket, lambda _: None, deep=False)
            assert found.faults == []
            assert found.counts["coordinators' states"] == 2 * coordinators
            return sum(key.startswith("wal/") for key in watched.requests)

        return run(story)

    # fsck reads the logs of coordinators that have written something.
    assert wal_reads(20) <= wal_reads(1) + 2


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


def test_changes_during_a_check_are_no_fault() -> None:
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


def kind_of(key: str, size: int) -> str:
    """The name of an object's kind in tests of damage."""
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
    """Objects that no reader can miss, or needs:

    - leases of brokers that have ended; the newest entry of the metadata log;
    - checkpoints behind which all slots are there;
    - snapshots of states to which the log leads again;
    - barrier seals; slots below the floor to which no partition refers."""
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
    """Whether the remaining snapshots and logs lead to the same states."""
    bucket = await opened(store)
    states = await transactions(bucket), await groups(bucket)
    whole = (await store.get(snapshot)).data
    await store.delete(snapshot)
    try:
        return states == (await transactions(bucket), await groups(bucket))
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
                await store.put(key, altered(whole))
            found = await checked(store)
            if not any(fault.key == key for fault in found.faults):
                unnoticed.append(key)
            await store.put(key, whole)
        assert unnoticed == sorted(await may_be_missing(store) if damage == "missing" else ())
        assert (await checked(store)).faults == []

    run(story)


def test_a_bucket_whose_metadata_cannot_be_read_is_inconsistent() -> None:
    async def story() -> None:
        store = await damaged_bucket()
        keys = [meta.key async for meta in store.list("cluster/log/")]
        await store.put(keys[2], b"{}")
        found = await checked(store)
        assert [(fault.kind, fault.key) for fault in found.faults] == [(FaultKind.DAMAGED, keys[2])]
        await store.delete(keys[2])
        found = await checked(store)
        assert [(fault.kind, fault.key) for fault in found.faults] == [(FaultKind.MISSING, keys[2])]

    run(story)


def test_a_shared_object_is_named_once_with_its_partitions() -> None:
    async def story() -> None:
        here = world()
        async with here.broker(politely=False) as broker:
            await broker.create_topic(partitions=5)
            for number in range(5):
                await broker.produce(batch(b"a"), number)
            await checkpoint(broker)
        key = [meta.key async for meta in here.store.list("checkpoint/")][-1]
        await here.store.put(key, altered((await here.store.get(key)).data))
        (fault,) = (await checked(here.store)).faults
        assert (fault.kind, fault.key) == (FaultKind.DAMAGED, key)
        assert {f"{TOPIC}-{number}" for number in range(5)} <= set(fault.affected)
        unread = str(fault).partition("; unread for it: ")[2]
        assert unread.count(",") == 2
        assert unread.endswith(f" and {len(fault.affected) - 3} more")

    run(story)
