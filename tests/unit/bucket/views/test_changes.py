"""Looking for changes again and again: remembered state, and requests that notice news."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator

import pytest

from tests.unit.broker.one_broker import TOPIC, OneBroker, batch, run
from tests.unit.broker.sink_world import ShiftedClock
from tests.unit.bucket.bucket_world import (
    WatchedStore,
    all_values,
    opened,
    roll_and_checkpoint,
    world,
)
from tidelog.bucket.views import changes
from tidelog.bucket.views.bucket import Bucket
from tidelog.bucket.views.changes import APART_MS_MAX, METADATA_TURN, Changes
from tidelog.entropy import SeededEntropy
from tidelog.identifiers import BrokerId, Epoch, Incarnation, Slot
from tidelog.storage.object_store import (
    ByteRange,
    ObjectMeta,
    ObjectStore,
    StoredObject,
    StoreNotApplied,
    Suffix,
)
from tidelog.storage.stores.memory import MemoryStore
from tidelog.wal.format.object_format import wal_key
from tidelog.workers.offload import InlineOffload

WATCHED = (TOPIC, "fares")


def remembering(store: WatchedStore, clock: ShiftedClock | None = None) -> Bucket:
    return Bucket.unread(
        store, clock or ShiftedClock(), SeededEntropy(3), InlineOffload(), remembers=True
    )


class CountingStore(WatchedStore):
    """Counts the gets of each key."""

    def __init__(self, store: ObjectStore) -> None:
        super().__init__(store)
        self.brought: Counter[str] = Counter()

    async def get(self, key: str, byte_range: ByteRange | Suffix | None = None) -> StoredObject:
        stored = await super().get(key, byte_range)
        self.brought[key] += 1
        return stored


def test_a_remembering_bucket_shows_the_same_as_a_new_reader() -> None:
    here = world()
    watched = CountingStore(here.store)
    bucket = remembering(watched)

    async def agree() -> None:
        found = await bucket.view(*WATCHED)
        fresh_bucket = await opened(here.store)
        fresh = await fresh_bucket.view(*WATCHED)
        assert found.partitions == fresh.partitions
        assert found.ends == fresh.ends
        versions = {topic: table.version for topic, table in found.tables.items()}
        assert versions == {topic: table.version for topic, table in fresh.tables.items()}
        for partition in found.partitions.values():
            there = fresh.partition(partition.partition)
            values = await all_values(fresh_bucket, partition)
            assert values == await all_values(fresh_bucket, there)

    async def write(broker: OneBroker, turn: int) -> None:
        for number in range(12):
            await broker.produce(batch(b"%d %d" % (turn, number)), topic=WATCHED[number % 2])
            if number == 5:
                await agree()

    async def story() -> None:
        async with here.broker() as broker:
            for topic in WATCHED:
                await broker.create_topic(topic, partitions=2)
            await agree()
        views = []
        for turn, politely in enumerate((False, True, False)):
            async with here.broker(politely=politely) as broker:
                await write(broker, turn)
                await agree()
                views.append(await bucket.view(TOPIC))
                await roll_and_checkpoint(here.store, broker)
                await agree()
                await write(broker, turn)
                await agree()
            await agree()
        brought = {key: count for key, count in watched.brought.items() if key.startswith("wal/")}
        assert len(brought) > 30
        assert set(brought.values()) == {1}, "no slot is read twice"
        table = next(iter(views[0].tables.values()))
        assert table.segment_count == 0, "a view does not change when the tables go on"

    run(story)


def test_each_look_for_changes_is_one_request() -> None:
    here = world()
    watched = WatchedStore(here.store)
    bucket = remembering(watched)

    async def story() -> None:
        async with here.broker() as broker:
            await broker.create_topic(TOPIC)
            await bucket.refresh()
            await broker.produce(batch(b"old"))
            asked = Changes(bucket.access, with_tails=True)
            before = len(watched.requests)
            answers = [await asked.found(()) for _ in range(METADATA_TURN + 1)]
            assert answers == [True] + [False] * METADATA_TURN
            await broker.produce(batch(b"new"))
            assert await asked.found(())
            assert not await asked.found(())
            assert len(watched.requests) - before == METADATA_TURN + 3

    run(story)


def test_a_topic_that_is_deleted_is_heard_of_by_the_metadata_log() -> None:
    here = world()
    bucket = remembering(WatchedStore(here.store))

    async def story() -> None:
        async with here.broker() as broker:
            topic_id = await broker.create_topic(TOPIC)
            await bucket.refresh()
            asked = Changes(bucket.access, with_tails=True)
            await asked.found(())
            await broker.delete_topic(topic_id)
            assert any([await asked.found(()) for _ in range(METADATA_TURN)])

    run(story)


class BreakingStore(WatchedStore):
    """The store's listings end with an error after this many keys."""

    breaks_after: int | None = None

    async def list(self, prefix: str = "", start_after: str = "") -> AsyncIterator[ObjectMeta]:
        left = self.breaks_after
        async for meta in super().list(prefix, start_after):
            yield meta
            if left is not None:
                left -= 1
                if not left:
                    raise StoreNotApplied(prefix, "not now")


def test_a_question_that_fails_takes_no_news_away() -> None:
    here = world()
    clock = ShiftedClock()
    watched = BreakingStore(here.store)
    bucket = remembering(watched, clock)

    async def story() -> None:
        async with here.broker() as broker:
            await broker.create_topic(TOPIC)
            await bucket.refresh()
            asked = Changes(bucket.access, with_tails=True)
            await broker.produce(batch(b"old"))
            assert await asked.found(())
            assert not await asked.found(())
            for happening in ("produce", "away"):
                if happening == "produce":
                    await broker.produce(batch(b"new"))
                    await broker.produce(batch(b"newer"))
                    watched.breaks_after = 2
                else:
                    clock.shift_ms = 2 * APART_MS_MAX
                    watched.before = refuse
                with pytest.raises(StoreNotApplied):
                    await asked.found(())
                watched.breaks_after = watched.before = None
                assert await asked.found(()), happening
                assert not await asked.found(()), happening

    async def refuse(_: int, key: str) -> None:
        raise StoreNotApplied(key, "not now")

    run(story)


def test_a_late_question_answers_that_slots_may_have_come_and_gone() -> None:
    here = world()
    clock = ShiftedClock()
    bucket = remembering(WatchedStore(here.store), clock)

    async def story() -> None:
        async with here.broker():
            await bucket.refresh()
            asked = Changes(bucket.access, with_tails=True)
            await asked.found(())
            assert not await asked.found(())
            clock.shift_ms = 2 * APART_MS_MAX
            assert await asked.found(())
            assert not await asked.found(())

    run(story)


def test_a_wal_that_comes_before_all_that_are_known_is_heard_of() -> None:
    """A look reads the metadata log itself, so the later question about the log finds no change. An
    incarnation is also registered long before it writes its first slot."""
    here = world()
    bucket = remembering(WatchedStore(here.store))

    async def story() -> None:
        here.broker_id = BrokerId(7)
        async with here.broker() as broker:
            await broker.create_topic(TOPIC)
            await broker.produce(batch(b"known"))
        await bucket.refresh()
        asked = Changes(bucket.access, with_tails=True)
        assert await asked.found(())
        here.broker_id = BrokerId(3)
        async with here.broker() as broker:
            await broker.create_topic("fares")
            await bucket.refresh()
            for _ in range(METADATA_TURN):
                await asked.found(())
            assert not await asked.found(())
            await broker.produce(batch(b"new"), topic="fares")
            assert any([await asked.found(()) for _ in range(METADATA_TURN)])
            await broker.produce(batch(b"newer"), topic="fares")
            assert await asked.found(())
            assert not await asked.found(())

    run(story)


def test_wals_that_fill_more_than_a_page_are_listed_page_by_page(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(changes, "PAGE_KEYS", 4)
    store = MemoryStore(ShiftedClock())
    bucket = remembering(WatchedStore(store))
    owners = [Incarnation(BrokerId(number), Epoch(number + 10)) for number in (1, 2, 3)]

    async def story() -> None:
        ends = dict.fromkeys(owners, 0)

        async def write(owner: Incarnation, slots: int) -> None:
            for _ in range(slots):
                await store.put(wal_key(owner, Slot(ends[owner])), b"x")
                ends[owner] += 1

        asked = Changes(bucket.access, with_tails=True)
        for owner, slots in zip(owners, (9, 2, 6), strict=True):
            await write(owner, slots)
        for _ in range(METADATA_TURN - 2):
            # The look passes over listed pages, and lists the other pages in turn.
            last = await asked.found(())
        assert not last
        for owner in owners * 2:
            await write(owner, 1)
            asked._questions = 0
            assert any([await asked.found(()) for _ in range(3)]), owner

    run(story)


def test_a_slot_that_lands_after_a_later_one_is_heard_of() -> None:
    """A broker uploads several slots at a time. A view ends at the first one that is absent."""
    store = MemoryStore(ShiftedClock())
    bucket = remembering(WatchedStore(store))
    owner = Incarnation(BrokerId(1), Epoch(10))

    async def story() -> None:
        asked = Changes(bucket.access, with_tails=True)
        for landed in ((1,), (0,), (3,), (2,), (6, 7), (5,), (4,)):
            for slot in landed:
                await store.put(wal_key(owner, Slot(slot)), b"x")
            assert await asked.found(()), landed
            assert not await asked.found(()), landed

    run(story)


def test_a_reader_of_tables_alone_asks_for_each_of_them() -> None:
    here = world()
    bucket = remembering(WatchedStore(here.store))
    names = [f"topic-{number:02d}" for number in range(METADATA_TURN)]

    async def story() -> None:
        async with here.broker() as broker:
            for name in names:
                await broker.create_topic(name)
            view = await bucket.view(*names)
            tables = [*view.tables.values()]
            first = view.state.topics[tables[0].topic_id].name
            asked = Changes(bucket.access, with_tails=False)
            assert not any([await asked.found(tables) for _ in range(METADATA_TURN)])
            await broker.produce(batch(b"new"), topic=first)
            await roll_and_checkpoint(here.store, broker, first)
            assert any([await asked.found(tables) for _ in range(2 * METADATA_TURN)])

    run(story)
