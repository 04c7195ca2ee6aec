"""A bucket is copied while brokers write; the copy opens as the bucket was at one instant."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import suppress

import pytest

from tests.unit.broker.one_broker import TOPIC, OneBroker, batch, run
from tests.unit.broker.ownership.test_several_brokers import until_served
from tests.unit.broker.peers.several import new_world
from tests.unit.broker.peers.test_moving_transactions import (
    PARTITIONS,
    Committed,
    move_until,
    produce,
    shared,
)
from tests.unit.broker.peers.test_transactions_between_brokers import until_stable
from tests.unit.broker.sink_world import client_of
from tests.unit.broker.transactional_client import read
from tidelog.bucket.copy.command import check_apart
from tidelog.bucket.copy.copy import BucketCopy, CopyReport
from tidelog.bucket.copy.record import CopyRecord, decode_copy_record
from tidelog.bucket.copy.target import CopyTarget
from tidelog.bucket.fsck.fsck import check_bucket
from tidelog.bucket.views.bucket import Bucket
from tidelog.client.transactions.producer import TransactionalProducer
from tidelog.client.transactions.settings import TransactionalProducerSettings, TransactionVersion
from tidelog.clock import SystemClock
from tidelog.coordinator.cluster.log.leases import read_lease
from tidelog.coordinator.cluster.log.prefix import COPY_KEY, SNAPSHOT_PREFIX
from tidelog.coordinator.snapshot_format import SnapshotOrigin
from tidelog.coordinator.snapshots import newest_snapshot
from tidelog.entropy import SeededEntropy
from tidelog.errors import ForeignObjects, MissingObject, Refused
from tidelog.identifiers import BrokerId, MetadataStamp, TopicId, TopicPartition
from tidelog.storage.object_store import ObjectMeta, ObjectStore
from tidelog.storage.stores.memory import MemoryStore
from tidelog.wal.format.object_format import wal_position
from tidelog.workers.offload import InlineOffload


def new_store() -> MemoryStore:
    return MemoryStore(SystemClock())


def read_bucket(store: ObjectStore) -> Bucket:
    return Bucket.unread(store, SystemClock(), SeededEntropy(3), InlineOffload())


def copier(source: ObjectStore, target: ObjectStore) -> BucketCopy:
    clock, offload = SystemClock(), InlineOffload()
    access = read_bucket(source).access
    return BucketCopy(access, CopyTarget(target, clock, offload), lambda _: None, 30.0)


async def copy(source: ObjectStore, target: ObjectStore) -> CopyReport:
    report = await copier(source, target).run()
    assert not report.faults
    return report


async def faults_of(store: ObjectStore) -> list[str]:
    found = await check_bucket(read_bucket(store), lambda _: None, deep=True)
    return [str(each) for each in found.faults]


async def keys_of(store: ObjectStore) -> list[str]:
    return [meta.key async for meta in store.list()]


class Ended(list[int]):
    """Numbers of ended transactions."""

    def __init__(self) -> None:
        super().__init__()
        self._grown = asyncio.Event()

    def append(self, number: int) -> None:
        super().append(number)
        self._grown.set()

    async def reach(self, number: int) -> None:
        """Wait until this many have ended."""
        while len(self) < number:
            self._grown.clear()
            await self._grown.wait()


async def open_topic(one: OneBroker, topic_id: TopicId, partitions: int) -> None:
    await until_served(one, topic_id, *range(partitions))


def test_a_copy_has_records_acknowledged_before_and_opens_without_a_lease() -> None:
    async def story() -> None:
        here, store = new_world(), new_store()
        async with here.broker(1) as first, here.broker(2) as second:
            topics = await shared([first, second, second])
            for number, owner in enumerate((first, second, second)):
                await owner.produce(batch(b"before %d" % number), number)
            report = await copy(here.store, store)
            await first.produce(batch(b"after"), 0)

            assert not [key for key in await keys_of(store) if "lease" in key]
            assert await faults_of(store) == []
            assert report.instant is not None
            assert report.instant.state.live_epochs.keys() == {1, 2}
            there = new_world(store)
            # Both original brokers run. One of their ids is free in the copy.
            async with there.broker(1) as copied:
                await open_topic(copied, topics[-1][0], PARTITIONS)
                for number in range(PARTITIONS):
                    assert await read(copied, number) == [b"before %d" % number]
                answer = await copied.produce(batch(b"its own"), 0)
                assert (answer.error_code, answer.base_offset) == (0, 1)
            assert await faults_of(store) == []
            assert await read(first, 0) == [b"before 0", b"after"]
            assert not first.run.done()
            assert not second.run.done()

    run(story)


@pytest.mark.parametrize("seed", range(2))
def test_copies_that_are_taken_while_transactions_move_are_whole(seed: int) -> None:
    """Each transaction spans all partitions and a group. A copy has all of it or none."""

    async def story() -> None:
        here = new_world(broker_heartbeat_interval_ms=500)
        copies: list[tuple[MemoryStore, int, int]] = []
        async with here.broker(0) as first, here.broker(1) as second, here.broker(2) as third:
            brokers = [first, second, third]
            topics = await shared(brokers)
            places = [TopicPartition(each, number) for each, n in topics for number in range(n)]
            is_over = asyncio.Event()
            moving = asyncio.create_task(move_until(is_over, brokers, places, random.Random(seed)))
            ones, twos = Ended(), Ended()
            producing = asyncio.gather(
                produce(first, "one", TransactionVersion.V1, ones),
                produce(second, "two", TransactionVersion.V2, twos),
            )
            for ended in (2, 5, 9):
                await ones.reach(ended)
                store = new_store()
                least = len(ones), len(twos)
                await copy(here.store, store)
                copies.append((store, *least))
            found = await producing
            is_over.set()
            await moving
        for store, *least in copies:
            assert await faults_of(store) == []
            await check_copy(store, topics[-1][0], found, least)

    run(story)


async def check_copy(
    store: ObjectStore, topic_id: TopicId, found: list[Committed], least: list[int]
) -> None:
    there = new_world(store)
    async with there.broker(7) as copied:
        await open_topic(copied, topic_id, PARTITIONS)
        async with client_of(copied) as client:
            for name, version in (("one", TransactionVersion.V1), ("two", TransactionVersion.V2)):
                settings = TransactionalProducerSettings(version=version)
                producer = TransactionalProducer(
                    client, SystemClock(), SeededEntropy(name), name, settings
                )
                # The coordinator resolves the transaction that was open at the instant.
                await producer.init_transactions()
        for number in range(PARTITIONS):
            end = copied.broker.writes.partitions.named(TOPIC, number).log.next_offset
            await until_stable(copied, number, end)
        for name, committed, ended in zip((b"one", b"two"), found, least, strict=True):
            seen = [
                [each for each in await read(copied, number) if each.startswith(name)]
                for number in range(PARTITIONS)
            ]
            count = len(seen[0])
            assert seen == [committed[number][:count] for number in range(PARTITIONS)]
            assert count >= sum(number % 3 != 2 for number in range(ended))
    assert await faults_of(store) == []


def test_a_run_that_dies_leaves_a_copy_that_does_not_open_and_the_next_run_goes_on() -> None:
    async def story() -> None:
        here, target = new_world(), DyingStore(puts=6)
        async with here.broker(1) as first:
            topics = await shared([first] * 3)
            for number in range(20):
                await first.produce(batch(b"%d" % number), number % PARTITIONS)
            with pytest.raises(Dead):
                await copy(here.store, target)
            present = set(await keys_of(target))
            assert COPY_KEY in present
            target.puts = 10_000
            with pytest.raises(ForeignObjects, match="unfinished copy"):
                async with new_world(target).broker(2):
                    pass
            report = await copy(here.store, target)
            assert report.present == len(present) - 1
        assert await faults_of(target) == []
        async with new_world(target).broker(2) as copied:
            await open_topic(copied, topics[-1][0], PARTITIONS)
            assert await read(copied, 1) == [b"%d" % n for n in range(20) if n % 3 == 1]

    run(story)


def test_a_copy_that_no_broker_has_opened_is_brought_up_to_date() -> None:
    async def story() -> None:
        here, store = new_world(), new_store()
        async with here.broker(1) as first:
            topics = await shared([first] * 3)
            await first.produce(batch(b"a"), 0)
            await copy(here.store, store)
            await first.produce(batch(b"b"), 0)
            again = await copy(here.store, store)
            assert (again.objects, again.present) == (1, 1)
            await first.broker.writes.checkpointer.checkpoint()
            await first.create_topic("other")
            await first.produce(batch(b"c"), 0)
            await copy(here.store, store)
            assert await faults_of(store) == []
            assert len([key for key in await keys_of(store) if key.startswith("cluster/log/")]) == 1

            async with new_world(store).broker(1) as copied:
                await open_topic(copied, topics[-1][0], PARTITIONS)
                assert await read(copied, 0) == [b"a", b"b", b"c"]
                with pytest.raises(Refused, match="a broker has opened the copy"):
                    await copy(here.store, store)
                assert (await copied.produce(batch(b"d"), 0)).error_code == 0
            with pytest.raises(Refused, match="a broker has opened the copy"):
                await copy(here.store, store)

    run(story)


def test_a_copy_that_is_brought_up_to_date_does_not_open_meanwhile() -> None:
    async def story() -> None:
        here, target = new_world(), DyingStore(puts=10_000)
        async with here.broker(1) as first:
            topics = await shared([first] * 3)
            await first.produce(batch(b"a"), 0)
            await copy(here.store, target)
            for puts in (0, 1, 2, 3):
                await first.produce(batch(b"%d" % puts), 0)
                target.puts = puts
                with pytest.raises(Dead):
                    await copy(here.store, target)
                if not [key for key in await keys_of(target) if key.startswith(SNAPSHOT_PREFIX)]:
                    target.puts = 10_000
                    with pytest.raises(Exception, match="cluster/log/"):
                        async with new_world(target).broker(2):
                            pass
            target.puts = 10_000
            await copy(here.store, target)
        async with new_world(target).broker(2) as copied:
            await open_topic(copied, topics[-1][0], PARTITIONS)
            assert await read(copied, 0) == [b"a", b"0", b"1", b"2", b"3"]

    run(story)


def test_targets_that_are_no_copy_of_this_bucket_are_refused_and_stay_as_they_are() -> None:
    async def story() -> None:
        here, other, foreign = new_world(), new_world(), new_store()
        await foreign.put("holiday.jpg", b"x")
        async with here.broker(1), other.broker(1):
            with pytest.raises(Refused, match=r"holiday\.jpg"):
                await copy(here.store, foreign)
            with pytest.raises(Refused, match="is not empty, and no copy"):
                await copy(here.store, other.store)
            store = new_store()
            await copy(other.store, store)
            before = await keys_of(store)
            with pytest.raises(Refused, match="holds a copy of cluster"):
                await copy(here.store, store)
            assert await keys_of(store) == before
        assert await keys_of(foreign) == ["holiday.jpg"]

    run(story)


def test_a_bucket_that_is_its_own_target_by_another_address_is_refused_and_stays_as_it_is() -> None:
    async def story() -> None:
        here, store = new_world(), new_store()
        async with here.broker(1) as first:
            topics = await shared([first] * 3)
            await first.produce(batch(b"a"), 0)
            with pytest.raises(Refused, match="is not empty, and no copy"):
                await copy(here.store, here.store)
            await copy(here.store, store)
            before = await keys_of(store)
            with pytest.raises(Refused, match="by another address"):
                await copy(store, store)
            assert await keys_of(store) == before
        async with new_world(store).broker(2) as copied:
            await open_topic(copied, topics[-1][0], PARTITIONS)
            assert await read(copied, 0) == [b"a"]

    run(story)


@pytest.mark.parametrize(
    ("source", "target", "why"),
    [
        ("s3://lake/prod", "s3://lake/prod/", "onto itself"),
        ("s3://lake/prod", "s3://lake/prod/copy", "lies within"),
        ("s3://lake", "s3://lake/copy?region=eu-west-1", "lies within"),
        ("file:///lake", "file:///lake", "onto itself"),
        ("s3://lake?endpoint=http://a:9000", "s3://lake?endpoint=http://a:9000", "onto itself"),
    ],
)
def test_a_bucket_is_not_copied_into_itself(source: str, target: str, why: str) -> None:
    with pytest.raises(Refused, match=why):
        check_apart(source, target)


@pytest.mark.parametrize(
    ("source", "target"),
    [
        ("s3://lake?endpoint=http://a:9000", "s3://lake?endpoint=http://b:9000"),
        ("s3://lake/prod?endpoint=http://a:9000", "s3://lake/prod"),
        ("s3://lake/prod", "s3://lake/prod-2"),
        ("file:///lake", "s3://lake"),
    ],
)
def test_a_bucket_of_the_same_name_in_another_service_is_another_bucket(
    source: str, target: str
) -> None:
    check_apart(source, target)


def test_a_dry_run_lists_missing_objects_and_writes_nothing() -> None:
    async def story() -> None:
        here, store = new_world(), new_store()
        async with here.broker(1) as first:
            await shared([first] * 3)
            await first.produce(batch(b"a"), 0)
            plan = await copier(here.store, store).plan()
            assert plan
            assert not any(plan.values())
            assert await keys_of(store) == []
            await copy(here.store, store)
            assert all((await copier(here.store, store).plan()).values())

    run(story)


def test_a_damaged_object_is_copied_as_it_is_and_named() -> None:
    async def story() -> None:
        here, store = new_world(), new_store()
        async with here.broker(1) as first:
            await shared([first] * 3)
            await first.produce(batch(b"a"), 0)
            slot = max([key for key in await keys_of(here.store) if key.startswith("wal/")])
            await here.store.put(slot, b"nonsense")
            report = await copier(here.store, store).run()
        assert list(report.faults) == [slot]
        assert bytes((await store.get(slot)).data) == b"nonsense"

    run(story)


@pytest.mark.parametrize("dies", [False, True])
def test_a_damaged_object_is_copied_again_by_the_next_run(dies: bool) -> None:
    """An operator restores the object after the first run has named it."""

    async def story() -> None:
        here, store = new_world(), DyingStore(puts=10_000)
        async with here.broker(1) as first:
            await shared([first] * 3)
            await first.produce(batch(b"a"), 0)
            slot = max([key for key in await keys_of(here.store) if key.startswith("wal/")])
            good = bytes((await here.store.get(slot)).data)
            await here.store.put(slot, b"nonsense")
            store.dies_after = slot if dies else ""
            with suppress(Dead):
                await copier(here.store, store).run()
            assert bytes((await store.get(slot)).data) == b"nonsense"
            store.dies_after, store.puts = "", 10_000
            again = await copier(here.store, store).run()
            assert list(again.faults) == [slot]
            await here.store.put(slot, good)
            await copy(here.store, store)
        assert bytes((await store.get(slot)).data) == good
        assert await faults_of(store) == []

    run(story)


def test_a_snapshot_that_a_repair_deleted_since_leaves_the_copy() -> None:
    """A damaged snapshot is deleted, and the copy has it from before the damage."""

    async def story() -> None:
        here, store = new_world(), new_store()
        async with here.broker(1) as first:
            await shared([first] * 3)
            await first.produce(batch(b"a"), 0)
            origin = SnapshotOrigin("", "__consumer_offsets", TopicId(int=0), 0)
            older, newer = origin.key(4), origin.key(7)
            await here.store.put(older, b"older")
            await here.store.put(newer, b"newer")
            await copy(here.store, store)
            assert await newest_snapshot(store, origin) == 7
            await here.store.delete(newer)
            await copy(here.store, store)
            assert await newest_snapshot(store, origin) == 4
            await here.store.delete(older)
            await copy(here.store, store)
            assert await newest_snapshot(store, origin) is None

    run(story)


class StoreWithForeignFiles(MemoryStore):
    """Somebody else has put objects there by names that Tidelog's stores do not take."""

    async def list(self, prefix: str = "", start_after: str = "") -> AsyncIterator[ObjectMeta]:
        async for meta in super().list(prefix, start_after):
            yield meta
        if prefix in ("staged/", "merged/") and start_after < f"{prefix}z\\z":
            yield ObjectMeta(f"{prefix}z\\z", 1, "etag", 0)


def test_foreign_objects_by_names_that_no_store_takes_are_not_copied() -> None:
    async def story() -> None:
        here, store = new_world(StoreWithForeignFiles(SystemClock())), new_store()
        async with here.broker(1) as first:
            await shared([first] * 3)
            await first.produce(batch(b"a"), 0)
            await copy(here.store, store)
            assert not [key for key in await keys_of(store) if "z" in key.rpartition("/")[2]]

    run(story)


def test_a_lost_last_slot_stops_the_copy_by_the_lease_of_its_writer() -> None:
    async def story() -> None:
        here, store = new_world(), new_store()
        async with here.broker(1) as first:
            await shared([first] * 3)
            await first.produce(batch(b"acknowledged"), 0)
            last = max([key for key in await keys_of(here.store) if key.startswith("wal/")])
            position = wal_position(last)
            assert position is not None
            # No later slot proves the last one. The lease does.
            await first.broker.membership.lease.renew()
            lease = await read_lease(here.store, BrokerId(1))
            assert lease is not None
            assert lease.wal.durable_end > position.slot
            await here.store.delete(last)
            with pytest.raises(MissingObject, match="its writer had confirmed it") as raised:
                await copier(here.store, store).run()
            assert raised.value.key == last
        assert not [key for key in await keys_of(store) if key.startswith(SNAPSHOT_PREFIX)]

    run(story)


class Dead(Exception):
    pass


class DyingStore(MemoryStore):
    """A store whose user dies after this many puts."""

    def __init__(self, puts: int) -> None:
        super().__init__(SystemClock())
        self.puts = puts
        self.dies_after = ""
        """The key whose put is the last one."""

    async def put(self, key: str, data: object, condition: object = None) -> str:
        if self.puts == 0:
            raise Dead(key)
        self.puts = 0 if key == self.dies_after else self.puts - 1
        return await super().put(key, data, condition)  # type: ignore[arg-type]


class SlowRecords(MemoryStore):
    """Stores the first record of a damaged object later than the next one."""

    def __init__(self) -> None:
        super().__init__(SystemClock())
        self.records = 0

    async def put(self, key: str, data: object, condition: object = None) -> str:
        if key == COPY_KEY:
            self.records += 1
            if self.records == 2:
                await asyncio.sleep(0.05)
        return await super().put(key, data, condition)  # type: ignore[arg-type]


def test_the_record_names_all_damaged_objects_that_are_copied_at_a_time() -> None:
    """Each is named before it is copied: the copier may die at any time."""

    async def story() -> None:
        store = SlowRecords()
        target = CopyTarget(store, SystemClock(), InlineOffload())
        await target.begin(None, CopyRecord("cluster", MetadataStamp(0, 0)), new_store())
        keys = ["wal/a", "wal/b"]
        await asyncio.gather(*(target.put(key, b"nonsense", is_damaged=True) for key in keys))
        record = decode_copy_record(COPY_KEY, (await store.get(COPY_KEY)).data)
        assert list(record.damaged) == keys

    run(story)
