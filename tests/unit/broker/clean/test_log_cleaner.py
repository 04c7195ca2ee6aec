"""The log cleaner in a broker: compaction and merges, their times, and deaths in between."""

from __future__ import annotations

import json
import logging
from collections import Counter
from uuid import UUID

import pytest

from tests.unit.broker.one_broker import TOPIC, OneBroker, World, run
from tests.unit.broker.rolled import flush, offsets, open_table, rows, segments, table_state
from tidelog.clock import SystemClock
from tidelog.coordinator.cluster.records.records import ConfigsChanged, ConfigScope
from tidelog.crash_points import CrashPoint
from tidelog.records.records import NewRecord, decode_records, encode_batch
from tidelog.storage.clean import compaction
from tidelog.storage.stores.memory import MemoryStore
from tidelog.storage.table.table_change import PartitionChange
from tidelog.storage.table.table_log import TableCommitted, commit_key

COMPACTED = {"cleanup_policy": "compact"}


def keyed(*records: tuple[bytes, bytes | None], age_ms: int = 0) -> bytearray:
    """A batch of keys and values."""
    stamp = SystemClock().time_ms() - age_ms
    return encode_batch([NewRecord(value, key, timestamp=stamp) for key, value in records])


def new_world(**settings: object) -> World:
    return World(MemoryStore(SystemClock()), **settings)


async def roll(one: OneBroker, *batches: bytearray, topic: str = TOPIC) -> None:
    """Roll each batch into a segment of its own."""
    for batch in batches:
        assert (await one.produce(batch, topic=topic)).error_code == 0
        await flush(one, topic=topic)


async def clean(one: OneBroker) -> int:
    """Clean until no work is left. Returns the number of rounds with work."""
    times = 0
    while await one.broker.topic_tables.cleaner.clean_one():
        times += 1
    return times


async def held(world: World, topic_id: UUID) -> list[tuple[int, bytes, bytes | None]]:
    """The records in the table."""
    found = await rows(world.store, topic_id)
    return [(row["offset"], row["key"], row["value"]) for row in found]


def test_compaction_that_leaves_no_row_of_a_segment_is_no_deletion_for_other_engines() -> None:
    async def story() -> None:
        world = new_world(merge_segment_bytes=1)
        async with world.broker() as one:
            topic_id = await one.create_topic(**COMPACTED, min_cleanable_dirty_ratio="0")
            await roll(one, keyed((b"a", b"1")), keyed((b"a", b"2")))
            before = (await table_state(world.store, topic_id)).version
            assert await clean(one) == 1
            after = (await table_state(world.store, topic_id)).version
            assert await held(world, topic_id) == [(1, b"a", b"2")]
            actions: list[tuple[str, bool]] = []
            for version in range(before + 1, after + 1):
                entry = await world.store.get(commit_key(topic_id, version))
                for line in bytes(entry.data).splitlines():
                    for kind, action in json.loads(line).items():
                        if kind in ("add", "remove"):
                            actions.append((kind, action["dataChange"]))
            assert ("remove", False) in actions
            assert not any(is_change for _, is_change in actions)

    run(story)


def test_the_latest_record_of_each_key_stays_at_its_offset() -> None:
    async def story() -> None:
        world = new_world()
        async with world.broker() as one:
            topic_id = await one.create_topic(**COMPACTED)
            await roll(
                one,
                keyed((b"a", b"1"), (b"b", b"1"), (b"c", b"1")),
                keyed((b"a", b"2"), (b"c", None)),
                keyed((b"a", b"3"), (b"d", b"1")),
            )
            await one.produce(keyed((b"b", b"in the WAL still")))
            assert await clean(one) == 1
            kept = [(1, b"b", b"1"), (4, b"c", None), (5, b"a", b"3"), (6, b"d", b"1")]
            assert await held(world, topic_id) == kept
            metrics = one.broker.topic_tables.cleaner.metrics
            assert (metrics.compactions, metrics.records_compacted) == (1, 3)
            assert b"tidelog_cleaner_compactions_total 1.0" in one.broker.metrics.exposition()
            assert (await one.offsets(-2)).offset == 0
            assert (await one.offsets(-1)).offset == 8
            # Neither this broker nor the next one rewrites clean segments.
            version = (await table_state(world.store, topic_id)).version
            assert await clean(one) == 0
        async with world.broker() as one:
            await flush(one)
            assert await clean(one) == 0
            assert (await table_state(world.store, topic_id)).version == version + 1

    run(story)


def test_consumers_read_remaining_records_from_any_offset() -> None:
    async def story() -> None:
        world = new_world(merge_segment_bytes=1)
        async with world.broker() as one:
            await one.create_topic(**COMPACTED, min_cleanable_dirty_ratio="0")
            await roll(one, *(keyed((b"a", b"%d" % n), (b"%d" % n, b"x")) for n in range(5)))
            await one.produce(keyed((b"a", b"last")))
            assert [record.offset for record in await one.read_all()] == list(range(11))
            await clean(one)
            left = [1, 3, 5, 7, 8, 9, 10]
            assert [record.offset for record in await one.read_all()] == left
            for offset in range(11):
                answer = await one.fetch(offset)
                assert answer.error_code == 0
                found = decode_records(b"".join(answer.records or ()))
                first = next(record.offset for record in found if record.offset >= offset)
                assert first == next(each for each in left if each >= offset)
            assert (await one.offsets(-2)).offset == 0

    run(story)


def test_tombstones_go_with_a_later_round_when_their_time_is_over() -> None:
    async def story() -> None:
        world = new_world()
        async with world.broker() as one:
            topic_id = await one.create_topic(
                **COMPACTED, delete_retention_ms="0", min_cleanable_dirty_ratio="0"
            )
            await roll(one, keyed((b"a", b"1"), (b"b", b"1")), keyed((b"a", None)))
            await clean(one)
            assert await held(world, topic_id) == [(1, b"b", b"1"), (2, b"a", None)]
            await roll(one, keyed((b"c", b"1")))
            await clean(one)
            assert await held(world, topic_id) == [(1, b"b", b"1"), (3, b"c", b"1")]

    run(story)


def test_tombstones_stay_for_their_time() -> None:
    async def story() -> None:
        world = new_world()
        async with world.broker() as one:
            topic_id = await one.create_topic(**COMPACTED, min_cleanable_dirty_ratio="0")
            await roll(one, keyed((b"a", b"1")), keyed((b"a", None)))
            for _ in range(3):
                await roll(one, keyed((b"b", b"1")))
                await clean(one)
            assert (1, b"a", None) in await held(world, topic_id)
            (stored,) = (await table_state(world.store, topic_id)).partition(0).segments
            # The first range keeps the time of its own first compaction.
            first, second, third = stored.segment.cleaned
            assert first.next_offset == 3
            assert first.cleaned_ms <= second.cleaned_ms <= third.cleaned_ms
            assert stored.segment.cleaned_to == 5

    run(story)


def test_a_log_is_compacted_when_enough_is_dirty_or_the_dirt_is_too_old() -> None:
    async def story() -> None:
        world = new_world()
        async with world.broker() as one:
            topic_id = await one.create_topic(**COMPACTED, min_cleanable_dirty_ratio="0.9")
            await roll(one, keyed((b"a", b"1")))
            assert await clean(one) == 1
            await roll(one, keyed((b"a", b"2"), age_ms=10**7))
            assert one.broker.topic_tables.cleaner.metrics.dirty_ratio_max in (0.0, 1.0)
            # Also if nothing has changed since the last look.
            for _ in range(2):
                assert await clean(one) == 0
                assert 0.4 < one.broker.topic_tables.cleaner.metrics.dirty_ratio_max < 0.6
            late = await one.create_topic(
                "late", **COMPACTED, min_cleanable_dirty_ratio="1", max_compaction_lag_ms="1000000"
            )
            await roll(one, keyed((b"a", b"1")), topic="late")
            assert await clean(one) == 0
            await roll(one, keyed((b"a", b"2"), age_ms=10**7), topic="late")
            assert await clean(one) == 1
            assert await offsets(world.store, late) == [1]
            assert await offsets(world.store, topic_id) == [0, 1]

    run(story)


def test_young_segments_and_all_behind_them_are_left_alone() -> None:
    async def story() -> None:
        world = new_world()
        async with world.broker() as one:
            topic_id = await one.create_topic(**COMPACTED, min_compaction_lag_ms="3600000")
            await roll(
                one,
                keyed((b"a", b"1"), age_ms=10**7),
                keyed((b"a", b"2"), age_ms=10**7),
                keyed((b"a", b"3")),
                keyed((b"a", b"4"), age_ms=10**7),
            )
            assert await clean(one) == 1
            assert await offsets(world.store, topic_id) == [1, 2, 3]

    run(story)


def test_compaction_spares_topics_without_its_policy_and_brokers_without_a_cleaner() -> None:
    async def story() -> None:
        async with new_world(log_cleaner_enable=False).broker() as one:
            topic_id = await one.create_topic(**COMPACTED)
            await roll(one, keyed((b"a", b"1")), keyed((b"a", b"2")))
            assert await clean(one) == 0
            assert await offsets(one.broker.environment.store, topic_id) == [0, 1]
        async with new_world().broker() as one:
            topic_id = await one.create_topic()
            await roll(one, keyed((b"a", b"1")), keyed((b"a", b"2")))
            assert await clean(one) == 0
            assert await offsets(one.broker.environment.store, topic_id) == [0, 1]

    run(story)


def test_records_without_a_key_are_refused_and_earlier_ones_are_dropped() -> None:
    async def story() -> None:
        world = new_world()
        async with world.broker() as one:
            topic_id = await one.create_topic()
            batch = encode_batch([NewRecord(b"1", None), NewRecord(b"1", b"a")])
            await roll(one, batch)
            change = ConfigsChanged(ConfigScope.TOPIC, str(topic_id), {"cleanup.policy": "compact"})
            epoch = one.broker.membership.incarnation.epoch
            await one.broker.membership.metadata.append(epoch, lambda _: (change,))
            assert (await one.produce(bytearray(batch))).error_code == 87
            assert await clean(one) == 1
            assert await held(world, topic_id) == [(1, b"a", b"1")]

    run(story)


def test_keys_beyond_the_buffer_are_left_to_further_rounds() -> None:
    async def story() -> None:
        world = new_world(log_cleaner_dedupe_buffer_size=1)
        async with world.broker() as one:
            topic_id = await one.create_topic(**COMPACTED, min_cleanable_dirty_ratio="0")
            await roll(one, *(keyed((b"a", b"%d" % n), (b"%d" % n, b"x")) for n in range(5)))
            assert await clean(one) == 5
            assert await offsets(world.store, topic_id) == [1, 3, 5, 7, 8, 9]

    run(story)


# Deaths.


class _Dying(Exception):
    """The process ends here."""


class _DeathAt:
    """Ends the story when a crash point was reached this often."""

    def __init__(self, point: CrashPoint, times: int) -> None:
        self._left = Counter({point: times})

    def hit(self, point: CrashPoint) -> None:
        self._left[point] -= 1
        if self._left[point] == 0:
            raise _Dying


@pytest.mark.parametrize("times", [1, 2, 3])
@pytest.mark.parametrize("point", [CrashPoint.SEGMENTS_REWRITTEN, CrashPoint.SEGMENTS_REPLACED])
def test_a_round_that_a_death_ended_is_finished_by_the_next_broker(
    point: CrashPoint, times: int
) -> None:
    async def story() -> None:
        # Each segment is a group of its own.
        world = new_world(merge_segment_bytes=1)
        async with world.broker(politely=False) as one:
            topic_id = await one.create_topic(**COMPACTED, min_cleanable_dirty_ratio="0")
            await roll(one, *(keyed((b"a", b"%d" % n), (b"%d" % n, None)) for n in range(4)))
            cleaner = one.broker.topic_tables.cleaner
            cleaner._crash_points = _DeathAt(point, times)
            with pytest.raises(_Dying):
                await cleaner.clean_one()
            there = await offsets(world.store, topic_id)
            done = times - (point is CrashPoint.SEGMENTS_REWRITTEN)
            dropped = [2 * n for n in range(done)]
            assert there == [offset for offset in range(8) if offset not in dropped]
        async with world.broker() as one:
            await clean(one)
            assert one.broker.topic_tables.cleaner.metrics.compactions == 1
            assert await offsets(world.store, topic_id) == [1, 3, 5, 6, 7]

    run(story)


def test_a_round_ends_at_foreign_changes_and_a_new_round_continues_there() -> None:
    async def story() -> None:
        world = new_world(merge_segment_bytes=1)
        async with world.broker() as one:
            topic_id = await one.create_topic(**COMPACTED, min_cleanable_dirty_ratio="0")
            await roll(one, *(keyed((b"a", b"%d" % n)) for n in range(3)))
            other = await open_table(world.store, topic_id)
            names = tuple(s.segment.name for s in other.state.partition(0).segments)
            cleaner = one.broker.topic_tables.cleaner

            compact = cleaner._compact

            async def compact_late(*asked: object) -> None:
                # This broker does not know yet that another has removed the first segment.
                removal = PartitionChange(partition=0, removed=names[:1])
                assert isinstance(await other.commit((removal,)), TableCommitted)
                await compact(*asked)  # type: ignore[arg-type]

            cleaner._compact = compact_late  # type: ignore[method-assign]
            assert await cleaner.clean_one()
            assert cleaner.metrics.refusals == 1
            cleaner._compact = compact  # type: ignore[method-assign]
            assert await clean(one) == 1
            assert await offsets(world.store, topic_id) == [2]

    run(story)


def test_a_topic_that_is_deleted_while_it_is_compacted_is_left_alone() -> None:
    async def story() -> None:
        world = new_world()
        async with world.broker() as one:
            topic_id = await one.create_topic(**COMPACTED)
            await roll(one, keyed((b"a", b"1")), keyed((b"a", b"2")))
            cleaner, compact = (
                one.broker.topic_tables.cleaner,
                one.broker.topic_tables.cleaner._compact,
            )

            async def compact_late(*asked: object) -> None:
                await one.delete_topic(topic_id)
                await compact(*asked)  # type: ignore[arg-type]

            cleaner._compact = compact_late  # type: ignore[method-assign]
            assert await cleaner.clean_one()
            assert cleaner.metrics.failures == 0
            assert await clean(one) == 0
            assert await offsets(world.store, topic_id) == [0, 1]

    run(story)


def test_a_corrupt_segment_stops_the_cleaning_of_its_log_alone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def story() -> None:
        world = new_world()
        async with world.broker() as one:
            topic_id = await one.create_topic(**COMPACTED)
            fine = await one.create_topic("fine", **COMPACTED)
            for topic in (TOPIC, "fine"):
                await roll(one, keyed((b"a", b"1")), keyed((b"a", b"2")), topic=topic)
            key = (await segments(world.store, topic_id))[0]
            data = bytearray((await world.store.get(key)).data)
            data[10] ^= 1
            await world.store.put(key, bytes(data))
            with caplog.at_level(logging.ERROR):
                assert await clean(one) == 2
            (record,) = [r for r in caplog.records if "could not be cleaned" in r.message]
            assert record.__dict__["key"] == key
            assert one.broker.topic_tables.cleaner.metrics.failures == 1
            assert await offsets(world.store, fine) == [1]

    run(story)


# Merges.


def test_small_segments_become_one_with_the_same_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction, "MERGED_SEGMENTS_MIN", 4)

    async def story() -> None:
        world = new_world()
        async with world.broker() as one:
            topic_id = await one.create_topic()
            for number in range(3):
                await roll(one, keyed((b"a", b"%d" % number)))
                assert await clean(one) == 0
            await roll(one, keyed((b"a", b"3")))
            before = await rows(world.store, topic_id)
            assert await clean(one) == 1
            assert await rows(world.store, topic_id) == before
            log = await open_table(world.store, topic_id)
            (stored,) = log.state.partition(0).segments
            assert (stored.segment.name.base_offset, stored.segment.name.last_offset) == (0, 3)
            entry = bytes((await world.store.get(log.key(log.state.version))).data)
            actions = [json.loads(line) for line in entry.splitlines()]
            changes = [next(iter(action.values())) for action in actions[:-1]]
            assert [change["dataChange"] for change in changes] == [False] * 5
            assert one.broker.topic_tables.cleaner.metrics.merges == 1

    run(story)


def test_merged_segments_span_only_a_part_of_the_retention_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(compaction, "MERGED_SEGMENTS_MIN", 2)

    async def story() -> None:
        world = new_world()
        async with world.broker() as one:
            hour = 3_600_000
            topic_id = await one.create_topic(retention_ms=str(16 * hour))
            ages = (10.0, 9.0, 5.0, 4.5, 1.0)
            await roll(one, *(keyed((b"a", b"1"), age_ms=int(age * hour)) for age in ages))
            assert await clean(one) == 2
            state = await table_state(world.store, topic_id)
            bases = [s.segment.name.base_offset for s in state.partition(0).segments]
            assert bases == [0, 2, 4]

    run(story)
