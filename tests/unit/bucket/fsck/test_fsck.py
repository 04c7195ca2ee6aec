"""fsck: a sound bucket is found sound, at rest and while brokers work; each damage is named."""

from __future__ import annotations

import pytest

from tests.unit.broker.collections import collections, objects
from tests.unit.broker.one_broker import TOPIC, OneBroker, World, batch, run
from tests.unit.broker.rolled import flush
from tests.unit.broker.transactional_client import GROUP, TransactionalClient, find
from tests.unit.bucket.bucket_world import (
    WatchedStore,
    all_values,
    checkpoint,
    opened,
    roll,
    roll_and_checkpoint,
    values_in,
    world,
)
from tidelog.bucket.fsck.faults import FaultKind, Findings
from tidelog.bucket.fsck.fsck import check_bucket
from tidelog.bucket.merged_names import read_merged_names
from tidelog.bucket.object_keys import MergedObjectKey, parse_key
from tidelog.bucket.views.atomic import atomic_view
from tidelog.bucket.views.bucket import Bucket
from tidelog.bucket.views.states import groups, transactions
from tidelog.clock import SystemClock
from tidelog.entropy import SeededEntropy
from tidelog.errors import CorruptObject
from tidelog.identifiers import TopicPartition
from tidelog.offload import InlineOffload
from tidelog.protocol.error_codes import ErrorCode
from tidelog.storage.object_store import ObjectStore
from tidelog.storage.stores.memory import MemoryStore
from tidelog.wal.format.object_format import wal_position
from tidelog.wal.write.checkpoint import newest_checkpoint

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
    await roll_and_checkpoint(broker.broker.world.store, broker)
    await broker.produce(batch(b"e"), 1)
    await broker.produce(batch(b"f"), topic="other")
    await checkpoint(broker)
    await broker.produce(batch(b"g"), topic="other")
    assert await committed.send(b"open") is OK


def test_the_wals_are_read_no_more_often_for_many_coordinators() -> None:
    """Of which there are fifty a kind by default: one reading of the WALs each took minutes."""

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

    # What coordinators have written is read for each that has written something.
    assert wal_reads(20) <= wal_reads(1) + 2


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
        await store.delete(keys[2])
        found = await checked(store)
        assert [(fault.kind, fault.key) for fault in found.faults] == [(FaultKind.MISSING, keys[2])]

    run(story)


def test_what_many_partitions_need_is_named_once_and_they_with_it() -> None:
    async def story() -> None:
        here = world()
        async with here.broker(politely=False) as broker:
            await broker.create_topic(partitions=5)
            for number in range(5):
                await broker.produce(batch(b"a"), number)
            await checkpoint(broker)
        key = [meta.key async for meta in here.store.list("checkpoint/")][-1]
        await here.store.put(key, _altered((await here.store.get(key)).data))
        (fault,) = (await checked(here.store)).faults
        assert (fault.kind, fault.key) == (FaultKind.DAMAGED, key)
        assert {f"{TOPIC}-{number}" for number in range(5)} <= set(fault.affected)
        unread = str(fault).partition("; unread for it: ")[2]
        assert unread.count(",") == 2
        assert unread.endswith(f" and {len(fault.affected) - 3} more")

    run(story)


def test_what_does_not_belong_there_is_named() -> None:
    async def story() -> None:
        store = await damaged_bucket()
        strays = {
            "wal/9-999/00000000000000000000.wal",
            "checkpoint/9-999/00000000000000000000",
            "state/__consumer_offsets/99/00000000000000000001.parquet",
            "holiday/photo.jpg",
        }
        for key in strays:
            await store.put(key, b"x")
        found = await checked(store)
        assert {fault.key for fault in found.faults} == strays
        # An incarnation that the log does not know yet is none of its own.
        kinds = {fault.key: fault.kind for fault in found.faults}
        unknown = {key for key in strays if "9-999" in key}
        assert {kinds[key] for key in unknown} == {FaultKind.CONTRADICTION}
        assert {kinds[key] for key in strays - unknown} == {FaultKind.FOREIGN}

    run(story)


class LaterClock(SystemClock):
    """A store's clock that can be put forward."""

    later_ms = 0

    def time_ms(self) -> int:
        return super().time_ms() + self.later_ms


def test_what_brokers_should_have_deleted_long_ago_is_an_orphan() -> None:
    clock = LaterClock()
    here = world(
        MemoryStore(clock),
        coordinator_snapshot_interval_records=3,
        broker_heartbeat_interval_ms=20,
        log_collect_interval_ms=10**9,
    )

    async def story() -> None:
        async with here.broker() as broker:
            await some_work(broker)
            await here.store.put("probe/left", b"x")
            found = await checked(here.store)
            assert found.faults == []
            superfluous = found.counts["superfluous objects"]
            assert superfluous > 1
            clock.later_ms = 2 * 3600 * 1000
            lease = (await here.store.head("cluster/lease/0.json")).modified_ms
            while (await here.store.head("cluster/lease/0.json")).modified_ms == lease:
                await clock.sleep(0.01)
            found = await checked(here.store)
            assert {fault.kind for fault in found.faults} == {FaultKind.ORPHAN}
            assert len(found.faults) == superfluous
            assert "probe/left" in {fault.key for fault in found.faults}

    run(story)


def test_merged_objects_that_nothing_names_any_more_are_judged_as_their_broker_does() -> None:
    clock = LaterClock()
    here = world(
        MemoryStore(clock),
        broker_heartbeat_interval_ms=20,
        log_collect_interval_ms=10**9,
        wal_objects_max=2,
    )

    async def orphans() -> set[str]:
        """What is an orphan when nothing was deleted for long."""
        clock.later_ms += 2 * 3600 * 1000
        lease = (await here.store.head("cluster/lease/0.json")).modified_ms
        while (await here.store.head("cluster/lease/0.json")).modified_ms == lease:
            await clock.sleep(0.01)
        faults = (await checked(here.store)).faults
        assert {fault.kind for fault in faults} <= {FaultKind.ORPHAN}
        return {fault.key for fault in faults if fault.key.startswith("merged/")}

    async def marked(broker: OneBroker) -> set[str]:
        """What the broker itself would delete after its grace."""
        patient = collections(broker, here.store, grace_seconds=3600.0).objects
        await patient.collect()
        return {key for key in patient._marks.objects._marked if key.startswith("merged/")}

    async def story() -> None:
        async with here.broker(politely=False) as broker:
            await broker.create_topic(partitions=2, retention_ms="-1")
            for number in range(16):
                await broker.produce(batch(b"%d" % number), number % 2)
                await checkpoint(broker)
                await broker.broker.upkeep.merger.maintain()
            merged = await objects(here.store, "merged/")
            replaced = await marked(broker)
            assert 1 < len(replaced) < len(merged)
            assert await orphans() == replaced
            # The newest one is in use no more either, but who knows whether it will be named?
            for partition in range(2):
                await flush(broker, partition)
            await broker.produce(batch(b"a slot for another checkpoint"))
            await checkpoint(broker)
            assert await marked(broker) == set(merged)
            assert await orphans() == set(merged[:-1])

    run(story)


def test_a_merged_object_that_a_wal_names_above_its_checkpoint_is_needed() -> None:
    """Whoever recovers from that checkpoint comes to refer to it, though no image does yet."""
    here = here_with(wal_objects_max=2, log_collect_interval_ms=10**9)

    async def story() -> None:
        async with here.broker(politely=False) as broker:
            await broker.create_topic(retention_ms="-1")
            for number in range(8):
                await broker.produce(batch(b"%d" % number))
            await checkpoint(broker)
            assert await broker.broker.upkeep.merger._merge()
            [first] = await objects(here.store, "merged/")
            later = first.replace(f"/{0:020d}", f"/{9:020d}")
            await here.store.put(later, (await here.store.get(first)).data)

            async def settled() -> list[bool]:
                bucket = await opened(here.store)
                found = [parse_key(key) for key in (first, later)]
                listed = [each for each in found if isinstance(each, MergedObjectKey)]
                names = await read_merged_names(here.store, InlineOffload(), bucket.state, listed)
                return [names.is_settled(each) for each in listed]

            assert await settled() == [False, False], "its WAL names it"
            await checkpoint(broker)
            assert await settled() == [False, False], "the checkpoint refers to it"
            await flush(broker)
            await broker.produce(batch(b"a slot for another checkpoint"))
            await checkpoint(broker)
            assert await settled() == [True, False]
            *_, newest = await objects(here.store, "checkpoint/")
            await here.store.put(newest, b"damaged")
            assert await settled() == [False, False], "who knows?"

    run(story)


def test_segments_that_no_table_will_list_are_superfluous() -> None:
    here = here_with()

    async def story() -> None:
        async with here.broker() as broker:
            await some_work(broker)
            [key] = [
                meta.key
                async for meta in here.store.list("topics/")
                if "partition=0" in meta.key and meta.key.endswith(".parquet")
            ]
            other = key[:-40] + "f" * 32 + ".parquet"
            await here.store.put(other, (await here.store.get(key)).data)
            # It may yet be committed: its writer may only be slow.
            found = await checked(here.store)
            assert found.faults == []
            assert found.counts["superfluous segments"] == 0

    run(story)


def test_batches_that_were_merged_are_seen_and_checked_like_others() -> None:
    here = here_with(wal_objects_max=2, log_collect_interval_ms=20)

    async def merged() -> list[str]:
        return [meta.key async for meta in here.store.list("merged/")]

    async def story() -> None:
        async with here.broker(politely=False) as broker:
            topic_id = await broker.create_topic(partitions=2)
            client = TransactionalClient(broker)
            assert await client.init() is OK
            expected = []
            while not await merged():
                number = len(expected)
                assert await client.send(b"%d" % number, number % 2) is OK
                assert await client.commit() is OK
                expected.append(b"%d" % number)
                await broker.broker.world.clock.sleep(0.001)
            found = await checked(here.store)
            assert found.faults == []
            assert found.counts["merged objects"] > 0
            bucket = await opened(here.store)
            for kept in (True, False):
                atomic = await atomic_view(bucket, TOPIC)
                values = []
                for number in range(2):
                    view = atomic.view.partition(TopicPartition(topic_id, number))
                    keep = atomic.keep if kept else None
                    rows = [each async for each in bucket.tails.rows(view, keep=keep)]
                    values += values_in(rows)
                assert sorted(values, key=int) == expected
        assert (await checked(here.store)).faults == []
        bucket = await opened(here.store)
        tails = [each.tail for each in (await bucket.view(TOPIC)).partitions.values()]
        key = next(key for tail in tails for key in tail.keys if key.startswith("merged/"))
        whole = bytes((await here.store.get(key)).data)
        await here.store.put(key, _altered(whole))
        assert key in {fault.key for fault in (await checked(here.store)).faults}
        await here.store.delete(key)
        assert (FaultKind.MISSING, key) in {
            (fault.kind, fault.key) for fault in (await checked(here.store)).faults
        }

    run(story)


def test_what_brokers_roll_compact_and_let_go_stays_consistent() -> None:
    here = here_with(merge_segment_bytes=1)

    async def story() -> None:
        async with here.broker() as broker:
            topic_id = await broker.create_topic(
                cleanup_policy="compact", min_cleanable_dirty_ratio="0"
            )
            kept_id = await broker.create_topic("kept", retention_ms="1000")
            for number in range(3):
                await broker.produce(batch(b"%d" % number, b"other"))
                await flush(broker)
                # Its records are dated long ago.
                await broker.produce(batch(b"old"), topic="kept")
                await flush(broker, topic="kept")
                while await broker.broker.topic_tables.cleaner.clean_one():
                    pass
                assert (await checked(here.store)).faults == []
            bucket = await opened(here.store)
            view = (await bucket.view(TOPIC)).partition(TopicPartition(topic_id, 0))
            assert await all_values(bucket, view) == [b"2", b"other"]
            await broker.broker.topic_tables.cleaner.retention.apply()
            view = (await bucket.view("kept")).partition(TopicPartition(kept_id, 0))
            assert await all_values(bucket, view) == []
            found = await checked(here.store)
            assert found.faults == []
            assert found.counts["superfluous segments"] > 3
        assert (await checked(here.store)).faults == []

    run(story)
