"""After a repair every partition goes on. Nothing is damaged any more, and all lost offsets are
given up."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any
from uuid import UUID

import pytest

from tests.damage.damages import FEW_FLIPS, Case, Kind, Place, cases
from tests.damage.repairs import PROCESSES, access_to, given_up_of, judge_repair, repaired
from tests.damage.rich_bucket import (
    PARTITIONS,
    RichBucket,
    Truth,
    build,
    contents,
    read_from,
    world,
)
from tests.unit.broker.one_broker import TOPIC, batch
from tests.unit.broker.ownership.test_several_brokers import until_served
from tests.unit.broker.rolled import flush
from tests.unit.bucket.copy.test_copy import copier, faults_of
from tidelog.bucket.views.reading import BucketAccess
from tidelog.clock import SystemClock
from tidelog.coordinator.cluster.log.prefix import COLLECTION_PREFIX, LEASE_PREFIX
from tidelog.coordinator.cluster.records.records import EntryRange, OffsetRange
from tidelog.repair.repair import UnknownLoss, accept, survey
from tidelog.storage.object_store import (
    ObjectMeta,
    ObjectNotFound,
    StoreError,
    validate_key,
)
from tidelog.storage.segment.segment import SegmentName
from tidelog.storage.stores.memory import MemoryStore
from tidelog.storage.table.table_log import LOG_FOLDER
from tidelog.wal.format.object_format import wal_position


@pytest.fixture(scope="module")
def rich() -> RichBucket:
    return asyncio.run(build())


def cases_of(rich: RichBucket, kind: Kind) -> list[Case]:
    return [case for case in cases(rich.objects, FEW_FLIPS, seed=1) if case.kind is kind]


@pytest.mark.parametrize("kind", Kind, ids=lambda kind: kind.value)
def test_a_repaired_bucket_is_served_and_holds_nothing_wrong(rich: RichBucket, kind: Kind) -> None:
    async def bounded(case: Case) -> list[str]:
        async with asyncio.timeout(120):
            return (await judge_repair(rich, case)).wrong

    for case in cases_of(rich, kind):
        if case.place is not Place.NEWEST:
            continue
        wrong = asyncio.run(bounded(case))
        assert not wrong, (case.key, case.damage.name, wrong)


COPIED_AT_A_TIME = 5
BEFORE = 30
DENSE_STEPS, SPARSE = 6, 5
"""The numbers of objects after which a repair is cut off: each of the first, then some."""


class CutOff(StoreError):
    """The process has used up its changes of the bucket."""


class EndingStore:
    """A store that a process changes this many times, and never again."""

    def __init__(self, store: MemoryStore, changes: int) -> None:
        self._store = store
        self._changes = changes

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def put(self, key: str, *args: Any) -> str:
        self._count(key)
        return await self._store.put(key, *args)

    async def delete(self, key: str) -> None:
        self._count(key)
        await self._store.delete(key)

    def _count(self, key: str) -> None:
        if self._changes == 0:
            raise CutOff(key, "the process is gone")
        self._changes -= 1


def newest(rich: RichBucket, kind: Kind, damage: str) -> Case:
    found = [case for case in cases_of(rich, kind) if case.place is Place.NEWEST]
    return next(case for case in found if case.damage.name == damage)


def test_only_named_partitions_and_objects_are_given_up(rich: RichBucket) -> None:
    async def story() -> None:
        case = newest(rich, Kind.WAL, "delete")
        store = RichBucket(case.applied_to(rich.objects), rich.truth).store()
        await accept(access_to(store), ["quiet"], PROCESSES, 4)
        left = await survey(access_to(store))
        assert [name for name in left.names() if name.startswith("quiet")] == []
        assert "flights-0" in left.names()
        await accept(access_to(store), [case.key], PROCESSES, 4)
        left = await survey(access_to(store))
        assert left.is_whole, left.lines()

    asyncio.run(story())


def test_a_lost_segment_is_given_up_by_its_partition(rich: RichBucket) -> None:
    async def story() -> None:
        case = newest(rich, Kind.SEGMENT, "delete")
        store = RichBucket(case.applied_to(rich.objects), rich.truth).store()
        (table,) = (await survey(access_to(store))).tables
        (number,) = table.partitions
        with pytest.raises(UnknownLoss, match="nothing of that is lost"):
            await accept(access_to(store), [f"{table.topic.name}-99"], PROCESSES, 4)
        await accept(access_to(store), [f"{table.topic.name}-{number}"], PROCESSES, 4)
        left = await survey(access_to(store))
        assert left.is_whole, left.lines()

    asyncio.run(story())


def test_intact_records_cannot_be_given_up(rich: RichBucket) -> None:
    async def story() -> None:
        store = rich.store()
        before = [meta async for meta in store.list()]
        with pytest.raises(UnknownLoss, match="flights-0: nothing of that is lost"):
            await accept(access_to(store), ["flights-0"], PROCESSES, 4)
        assert [meta async for meta in store.list()] == before

    asyncio.run(story())


def test_a_survey_changes_nothing(rich: RichBucket) -> None:
    async def story() -> None:
        for kind in (Kind.WAL, Kind.SEGMENT, Kind.COMMIT, Kind.ENTRY):
            store = RichBucket(newest(rich, kind, "delete").applied_to(rich.objects), rich.truth)
            opened = store.store()
            assert not (await survey(access_to(opened))).is_whole
            held = {m.key: bytes((await opened.get(m.key)).data) async for m in opened.list()}
            assert held == store.objects

    asyncio.run(story())


def test_the_log_goes_on_behind_its_lost_end(rich: RichBucket) -> None:
    async def story() -> None:
        log = sorted(key for key in rich.objects if key.startswith("cluster/log/"))
        kept = {key: data for key, data in rich.objects.items() if key not in log[-3:]}
        store = RichBucket(kept, rich.truth).store()
        assert (await repaired(store))[0] == "log-end"
        state = await access_to(store).cluster.refresh()
        last = int(log[-1].removeprefix("cluster/log/").removesuffix(".json"))
        # The writer of the very last entry has renewed no lease since.
        (lost,) = state.lost_entries
        assert lost in (EntryRange(last - 2, last - 1), EntryRange(last - 2, last))
        assert state.sequence >= lost.last

    asyncio.run(story())


@pytest.mark.parametrize("kind", [Kind.WAL, Kind.COMMIT, Kind.ENTRY, Kind.STATE])
def test_a_repair_that_is_cut_off_is_made_again(rich: RichBucket, kind: Kind) -> None:
    """A repair is cut off after any of its puts and deletions, and the next repair completes it."""
    case = newest(rich, kind, "flip")

    async def cut_off_after(steps: int) -> bool:
        """Whether the repair was cut off before its end."""
        store = RichBucket(case.applied_to(rich.objects), rich.truth).store()
        try:
            await repaired(EndingStore(store, steps))
            return False
        except CutOff:
            pass
        await repaired(store)
        async with world(store).broker(politely=False) as one:
            assert not one.broker.health.faults()
        return True

    async def story() -> None:
        async with asyncio.timeout(200):
            steps = 0
            while await cut_off_after(steps):
                steps += 1 if steps < DENSE_STEPS else SPARSE
            assert steps > 0

    asyncio.run(story())


@pytest.mark.parametrize("data", [None, b"nonsense"])
def test_a_segment_that_is_lost_with_its_commit_is_named(
    rich: RichBucket, data: bytes | None
) -> None:
    """Only the lost commit told of the segment, and a later one comes back."""

    async def story() -> None:
        store = rich.store()
        *_, segment, _ = sorted(key for key in rich.objects if "/partition=0/" in key)
        name = SegmentName.parse("/".join(segment.split("/")[-2:]))
        assert name is not None
        *_, commit, _ = [key for key in sorted(rich.objects) if is_commit(key)]
        assert name.path.encode() in rich.objects[commit]
        await store.delete(commit)
        await (store.delete(segment) if data is None else store.put(segment, data))
        found = await survey(access_to(store))
        offsets = [name.base_offset, name.last_offset]
        (table,) = found.facts()["tables"]
        assert table["lost"] == {f"{TOPIC}-0": [offsets]}
        assert any("in offsets {} to {}".format(*offsets) in line for line in found.lines())
        assert await repaired(store) == [TOPIC]
        state = await access_to(store).cluster.refresh()
        assert OffsetRange(*offsets) in [each for loss in state.losses for each in loss.lost]

    asyncio.run(story())


@pytest.mark.parametrize("commits", [0, 1, 4])
def test_a_copy_from_before_a_repair_follows_the_repaired_table(
    rich: RichBucket, commits: int
) -> None:
    """A repair cuts the log of a table, which then goes on with other versions of the same numbers,
    until they are as many as in the copy, or more."""

    async def story() -> None:
        store, copy = rich.store(), MemoryStore(SystemClock())
        await copier(store, copy).run()
        log = sorted(key for key in rich.objects if is_commit(key))
        await store.delete(log[-2])
        assert await repaired(store) == [TOPIC]
        async with world(store).broker() as one:
            topic = one.broker.membership.metadata.state.topic_named(TOPIC)
            assert topic is not None
            await until_served(one, topic.topic_id, 0)
            for _ in range(commits):
                assert not (await one.produce(batch(b"more"), 0)).error_code
                await flush(one)
        report = await copier(store, copy).run()
        assert not report.faults
        assert await faults_of(copy) == []
        tables = [await tables_of(access_to(each)) for each in (store, copy)]
        assert tables[0] == tables[1]

    asyncio.run(story())


def test_a_copy_from_before_a_repair_forgets_a_checkpoint_that_the_repair_gave_up(
    rich: RichBucket,
) -> None:
    """The repaired table has no checkpoint, and nothing points to one."""

    async def story() -> None:
        store, copy = rich.store(), MemoryStore(SystemClock())
        await copier(store, copy).run()
        checkpoints = [key for key in rich.objects if key.endswith(".checkpoint.parquet")]
        assert checkpoints
        for key in checkpoints:
            await store.delete(key)
        assert TOPIC in await repaired(store)
        report = await copier(store, copy).run()
        assert not report.faults
        assert await faults_of(copy) == []
        tables = [await tables_of(access_to(each)) for each in (store, copy)]
        assert tables[0] == tables[1]

    asyncio.run(story())


def is_commit(key: str) -> bool:
    return LOG_FOLDER in key and key.endswith(".json")


async def tables_of(access: BucketAccess) -> dict[str, tuple[int, int]]:
    """The version and the end of partition 0 of each table."""
    state = await access.cluster.refresh()
    topics = [topic for topic in state.topics.values() if not topic.internal]
    tables = {topic.name: (await access.open_table(topic)).state for topic in topics}
    return {name: (each.version, each.partition(0).next_offset) for name, each in tables.items()}


def test_a_repair_that_is_cut_off_still_tells_what_a_table_gave_up(rich: RichBucket) -> None:
    """The next repair no longer finds a segment that has left the table already."""
    case = newest(rich, Kind.SEGMENT, "delete")
    name = SegmentName.parse("/".join(case.key.split("/")[-2:]))
    assert name is not None
    lost = OffsetRange(name.base_offset, name.last_offset)

    async def story() -> None:
        steps, is_cut_off = 0, True
        while is_cut_off:
            store = RichBucket(case.applied_to(rich.objects), rich.truth).store()
            try:
                await repaired(EndingStore(store, steps))
                is_cut_off = False
            except CutOff:
                access = access_to(store)
                state = await access.cluster.refresh()
                topic = state.topics[UUID(case.key.split("/")[1])]
                table = (await access.open_table(topic)).state
                if state.losses and table.partition(name.partition).holds(name):
                    # The loss is recorded, and readers still fail.
                    assert case.key in str(await faults_of(store)), steps
                await repaired(store)
            state = await access_to(store).cluster.refresh()
            assert lost in [each for loss in state.losses for each in loss.lost], steps
            steps += 1
        assert steps > 1

    asyncio.run(story())


def test_a_repair_that_is_cut_off_still_tells_of_a_lost_state(rich: RichBucket) -> None:
    """Without its newest snapshot, a coordinator's log does not tell that there was one."""
    case = newest(rich, Kind.STATE, "flip")

    async def story() -> None:
        steps, seen, is_cut_off = 0, 0, True
        while is_cut_off:
            store = RichBucket(case.applied_to(rich.objects), rich.truth).store()
            try:
                await repaired(EndingStore(store, steps))
                is_cut_off = False
            except CutOff:
                state = await access_to(store).cluster.refresh()
                listed = [meta.key async for meta in store.list()]
                if state.losses and case.key in listed:
                    # The loss is recorded, and the coordinator still cannot load.
                    found = await faults_of(store)
                    assert case.key in str(found), steps
                    seen += 1
                await repaired(store)
            state = await access_to(store).cluster.refresh()
            assert case.key in [key for loss in state.losses for key in loss.keys], steps
            steps += 1
        assert min(steps - 1, seen) > 0
        assert case.key not in [meta.key async for meta in store.list()]

    asyncio.run(story())


def test_a_foreign_object_hides_no_wal_whose_registration_is_lost(rich: RichBucket) -> None:
    """The epoch in a WAL's name proves its registration, and nothing else does here."""
    newest = max(
        position.incarnation.epoch
        for position in map(wal_position, rich.objects)
        if position is not None
    )

    async def story(foreign: str | None) -> None:
        kept = {
            key: data
            for key, data in rich.objects.items()
            if not key.startswith("cluster/")
            or (not key.startswith(LEASE_PREFIX) and key.rpartition("/")[2] < f"{newest:020d}")
        }
        store = RichBucket(kept, rich.truth).store()
        if foreign is not None:
            await store.put(foreign, b"x")
        found = await survey(access_to(store))
        assert found.log_end is not None, foreign
        assert found.log_end.last >= newest, foreign

    owned = next(key for key in rich.objects if key.startswith("wal/") and f"-{newest}/" in key)
    for foreign in (None, "wal/!README", f"{owned.rpartition('/')[0]}/!README"):
        asyncio.run(story(foreign))


@pytest.mark.parametrize(
    "name", ["wal/0-9999/{}.wal", "checkpoint/0-9999/{}", "merged/0-9999/{}.merged"]
)
def test_each_object_of_an_incarnation_proves_its_registration(rich: RichBucket, name: str) -> None:
    """Another program has copied it later than the metadata log."""

    async def story() -> None:
        store = rich.store()
        await store.put(name.format("0" * 20), b"of a broker that registered later")
        found = await survey(access_to(store))
        assert found.log_end is not None
        assert found.log_end.lost.last == 9999

    asyncio.run(story())


def test_a_table_that_is_lost_whole_is_given_up_by_its_partitions(rich: RichBucket) -> None:
    """Nothing of the table is left behind its end, so there is no cut to accept."""

    async def story() -> None:
        store = rich.store()
        (folder,) = {key.partition(LOG_FOLDER)[0] for key in rich.objects if is_commit(key)}
        for key in [key for key in rich.objects if key.startswith(folder)]:
            await store.delete(key)
        assert f"{TOPIC}-0" in await repaired(store)
        async with world(store).broker(politely=False) as one:
            assert not one.broker.health.faults()
            state = one.broker.membership.metadata.state
            for number in range(PARTITIONS[TOPIC]):
                begin = (await one.offsets(-2, number)).offset
                found = await read_from(one, TOPIC, number, begin)
                expected = rich.truth.records[f"{TOPIC}-{number}"]
                gone = {offset for offset in expected if offset >= begin} - found.keys()
                assert gone <= given_up_of(state, TOPIC, number)
                assert found.items() <= expected.items()

    asyncio.run(story())


def test_a_foreign_object_beside_the_metadata_log_is_no_entry(rich: RichBucket) -> None:
    async def story() -> None:
        store = rich.store()
        await store.put("cluster/log/00000000000000099999", b"no entry's name")
        found = await survey(access_to(store))
        assert found.is_whole, found.lines()

    asyncio.run(story())


class StoreWithForeignMarks(MemoryStore):
    """Somebody else has put an object there by a name that Tidelog's stores do not take."""

    async def list(self, prefix: str = "", start_after: str = "") -> AsyncIterator[ObjectMeta]:
        async for meta in super().list(prefix, start_after):
            yield meta
        if prefix == COLLECTION_PREFIX:
            yield ObjectMeta(f"{prefix}z\\z", 1, "etag", 0)

    async def delete(self, *keys: str) -> None:
        for key in keys:
            validate_key(key)
        await super().delete(*keys)


def test_a_lost_log_end_is_accepted_beside_a_foreign_object(rich: RichBucket) -> None:
    async def story() -> None:
        log = sorted(key for key in rich.objects if key.startswith("cluster/log/"))
        store = StoreWithForeignMarks(SystemClock())
        for key, data in rich.objects.items():
            if key not in log[-3:]:
                await store.put(key, data)
        assert (await repaired(store))[0] == "log-end"

    asyncio.run(story())


def test_a_table_that_is_ahead_of_a_log_without_its_end_keeps_all_records() -> None:
    """Another program has copied the WALs first, and the tables later."""

    async def story() -> None:
        store = MemoryStore(SystemClock())
        values = [b"%d" % number for number in range(10)]
        async with world(store).broker(politely=False) as one:
            await one.create_topic(TOPIC, 1)
            for value in values[:5]:
                await one.produce(batch(value))
            await one.broker.membership.lease.renew()
            early = await contents(store)
            for value in values[5:]:
                await one.produce(batch(value))
            await flush(one)
            late = await contents(store)
        tables = {key: data for key, data in late.items() if key.startswith("topics/")}
        copy = RichBucket({**early, **tables}, Truth()).store()
        (damage,) = (await survey(access_to(copy))).partitions
        assert [lost.first for lost in damage.lost] == [len(values)]
        assert await repaired(copy) == [f"{TOPIC}-0"]
        for _ in range(2):
            async with world(copy).broker(politely=False) as one:
                assert not one.broker.health.faults()
                found = await read_from(one, TOPIC, 0, 0)
                assert [*found.values()][:10] == values
                produced = await one.produce(batch(b"goes on"))
                assert not produced.error_code
                assert produced.base_offset > damage.lost[-1].last
                await flush(one)
        assert await faults_of(copy) == []

    asyncio.run(story())


def test_a_bucket_that_was_copied_while_in_use_can_be_opened() -> None:
    """The copy has early metadata and late WALs: each part dates from its own turn."""

    async def story() -> None:
        store, copy = MemoryStore(SystemClock()), MemoryStore(SystemClock())
        values: dict[int, bytes] = {}
        async with world(store).broker(politely=False) as one:
            await one.create_topic(TOPIC, 1)
            for number in range(BEFORE):
                value = b"before %d" % number
                values[(await one.produce(batch(value))).base_offset] = value
            produced, done = 0, ""
            while True:
                keys = [meta.key async for meta in store.list(start_after=done)]
                if not keys:
                    break
                if len(keys) > COPIED_AT_A_TIME or not done:
                    for number in range(3):
                        value = b"%d" % (produced + number)
                        values[(await one.produce(batch(value))).base_offset] = value
                    produced += 3
                if produced % 12 == 0:
                    await one.create_topic(f"later-{produced}")
                    await one.broker.writes.checkpointer.checkpoint()
                    await flush(one)
                await one.broker.membership.lease.renew()
                for done in keys[:COPIED_AT_A_TIME]:
                    with suppress(ObjectNotFound):
                        await copy.put(done, (await store.get(done)).data)
        assert await repaired(copy)
        async with world(copy).broker(politely=False) as one:
            assert not one.broker.health.faults()
            begin = (await one.offsets(-2)).offset
            found = await read_from(one, TOPIC, 0, begin)
            assert found
            assert found.items() <= values.items()
            assert (await one.produce(batch(b"goes on"))).error_code == 0

    async def bounded() -> None:
        async with asyncio.timeout(200):
            await story()

    asyncio.run(bounded())
