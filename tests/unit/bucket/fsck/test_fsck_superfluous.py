"""fsck tells objects that a broker should have deleted from objects that are still needed."""

from __future__ import annotations

from collections.abc import AsyncIterator

from tests.unit.broker.collections import collections, objects
from tests.unit.broker.one_broker import TOPIC, OneBroker, batch, run
from tests.unit.broker.rolled import flush
from tests.unit.broker.transactional_client import TransactionalClient
from tests.unit.bucket.bucket_world import all_values, checkpoint, opened, values_in, world
from tests.unit.bucket.fsck.checked_bucket import (
    altered,
    checked,
    damaged_bucket,
    here_with,
    some_work,
)
from tidelog.bucket.fsck.faults import FaultKind
from tidelog.bucket.merged_names import read_merged_names
from tidelog.bucket.object_keys import MergedObjectKey, parse_key
from tidelog.bucket.views.atomic import atomic_view
from tidelog.clock import SystemClock
from tidelog.coordinator.cluster.log.credential_files import change_credentials
from tidelog.coordinator.cluster.records.credentials import Credentials
from tidelog.entropy import SeededEntropy
from tidelog.identifiers import TopicPartition
from tidelog.protocol.error_codes import ErrorCode
from tidelog.storage.object_store import ObjectMeta
from tidelog.storage.stores.memory import MemoryStore
from tidelog.workers.offload import InlineOffload

OK = ErrorCode.NONE


def test_foreign_objects_are_named() -> None:
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
        # An incarnation that the log does not know yet counts as foreign.
        kinds = {fault.key: fault.kind for fault in found.faults}
        unknown = {key for key in strays if "9-999" in key}
        assert {kinds[key] for key in unknown} == {FaultKind.CONTRADICTION}
        assert {kinds[key] for key in strays - unknown} == {FaultKind.FOREIGN}

    run(story)


def test_a_foreign_object_beside_the_metadata_log_is_no_entry() -> None:
    async def story() -> None:
        store = await damaged_bucket()
        for folder in ("log", "snapshot"):
            await store.put(f"cluster/{folder}/00000000000000099999", b"no number's name")
        assert not (await checked(store)).faults

    run(story)


class StoreWithForeignFiles(MemoryStore):
    """Somebody else has put objects there by names that Tidelog's stores do not take."""

    folders: tuple[str, ...] = ()

    async def list(self, prefix: str = "", start_after: str = "") -> AsyncIterator[ObjectMeta]:
        async for meta in super().list(prefix, start_after):
            yield meta
        for folder in self.folders:
            if f"{folder}z\\z".startswith(prefix) and start_after < f"{folder}z\\z":
                yield ObjectMeta(f"{folder}z\\z", 1, "etag", 0)


def test_foreign_objects_by_names_that_no_store_takes_are_named() -> None:
    async def story() -> None:
        store = StoreWithForeignFiles(SystemClock())
        async with here_with(store=store).broker() as one:
            await some_work(one)
        store.folders = ("cluster/lease/", "handover/", "merged/", "staged/", "state/")
        found = await checked(store)
        assert {fault.key for fault in found.faults} == {f"{each}z\\z" for each in store.folders}
        assert {fault.kind for fault in found.faults} == {FaultKind.FOREIGN}

    run(story)


class LaterClock(SystemClock):
    """A store's clock that a test can move forward."""

    later_ms = 0

    def time_ms(self) -> int:
        return super().time_ms() + self.later_ms


def test_objects_that_brokers_should_have_deleted_are_orphans() -> None:
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
            verifiers = f"cluster/credentials/{'0' * 32}.json"
            await here.store.put(verifiers, b"of a process that died")
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


def test_a_missing_object_of_verifiers_is_a_fault() -> None:
    async def story() -> None:
        here = world(MemoryStore(SystemClock()))
        async with here.broker() as one:
            log, epoch = one.broker.membership.metadata, one.broker.membership.incarnation.epoch
            none = Credentials().changed((), {})
            await change_credentials(
                log, here.store, SystemClock(), SeededEntropy(3), epoch, lambda _: none
            )
            assert (await checked(here.store)).faults == []
            assert log.state.credentials is not None
            await here.store.delete(log.state.credentials)
            found = await checked(here.store)
            faults = [(fault.kind, fault.key) for fault in found.faults]
            assert faults == [(FaultKind.MISSING, log.state.credentials)]

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
        """The orphans after a long time without deletions."""
        clock.later_ms += 2 * 3600 * 1000
        lease = (await here.store.head("cluster/lease/0.json")).modified_ms
        while (await here.store.head("cluster/lease/0.json")).modified_ms == lease:
            await clock.sleep(0.01)
        faults = (await checked(here.store)).faults
        assert {fault.kind for fault in faults} <= {FaultKind.ORPHAN}
        return {fault.key for fault in faults if fault.key.startswith("merged/")}

    async def marked(broker: OneBroker) -> set[str]:
        """The objects that the broker itself would delete after the grace."""
        patient = collections(broker, here.store, grace_seconds=3600.0).objects
        await patient.collect()
        return {key for key in patient._marks.objects._marked if key.startswith("merged/")}

    async def story() -> None:
        async with here.broker(politely=False) as broker:
            await broker.create_topic(partitions=2, retention_ms="-1")
            for number in range(16):
                await broker.produce(batch(b"%d" % number), number % 2)
                await checkpoint(broker)
                await broker.broker.maintenance.merger.maintain()
            merged = await objects(here.store, "merged/")
            replaced = await marked(broker)
            assert 1 < len(replaced) < len(merged)
            assert await orphans() == replaced
            # The newest merged object is not in use either, but an entry may yet name it.
            for partition in range(2):
                await flush(broker, partition)
            await broker.produce(batch(b"a slot for another checkpoint"))
            await checkpoint(broker)
            assert await marked(broker) == set(merged)
            assert await orphans() == set(merged[:-1])

    run(story)


def test_a_merged_object_that_a_wal_names_above_its_checkpoint_is_needed() -> None:
    """A recovery from that checkpoint would refer to the object, although no image does yet."""
    here = here_with(wal_objects_max=2, log_collect_interval_ms=10**9)

    async def story() -> None:
        async with here.broker(politely=False) as broker:
            await broker.create_topic(retention_ms="-1")
            for number in range(8):
                await broker.produce(batch(b"%d" % number))
            await checkpoint(broker)
            assert await broker.broker.maintenance.merger._merge(own=True)
            [first] = await objects(here.store, "merged/")
            later = first.replace(f"/{0:020d}", f"/{9:020d}")
            await here.store.put(later, (await here.store.get(first)).data)

            async def settled() -> list[bool]:
                bucket = await opened(here.store)
                found = [parse_key(key) for key in (first, later)]
                listed = [each for each in found if isinstance(each, MergedObjectKey)]
                names = await read_merged_names(here.store, InlineOffload(), bucket.state, listed)
                return [names.is_settled(each) for each in listed]

            assert await settled() == [False, False], "the WAL names the object"
            await checkpoint(broker)
            assert await settled() == [False, False], "the checkpoint refers to the object"
            await flush(broker)
            await broker.produce(batch(b"a slot for another checkpoint"))
            await checkpoint(broker)
            assert await settled() == [True, False]
            *_, newest = await objects(here.store, "checkpoint/")
            await here.store.put(newest, b"damaged")
            assert await settled() == [False, False], "the damaged checkpoint may name any object"

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
            # The segment may yet be committed by a slow writer.
            found = await checked(here.store)
            assert found.faults == []
            assert found.counts["superfluous segments"] == 0

    run(story)


def test_merged_batches_are_seen_and_checked_like_other_batches() -> None:
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
                await broker.broker.environment.clock.sleep(0.001)
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
        await here.store.put(key, altered(whole))
        assert key in {fault.key for fault in (await checked(here.store)).faults}
        await here.store.delete(key)
        assert (FaultKind.MISSING, key) in {
            (fault.kind, fault.key) for fault in (await checked(here.store)).faults
        }

    run(story)


def test_a_bucket_stays_consistent_behind_rolls_compactions_and_deletions() -> None:
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
                # The records have old timestamps.
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
