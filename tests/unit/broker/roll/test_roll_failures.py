"""Failures at any step of a roll: no record is lost or in the table twice."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import weakref
from collections.abc import Sequence
from typing import Any

import pytest

from tests.unit.broker.one_broker import batch, run, until
from tests.unit.broker.rolled import (
    KillAt,
    Killed,
    ShakyStore,
    flush,
    hosted,
    offsets,
    rows,
    segments,
    table_state,
    world,
)
from tests.unit.wal.gated_store import GatedStore
from tidelog.broker.partitions.partitions import PartitionError
from tidelog.broker.roll import segment_builder
from tidelog.broker.roll.source import RollSource
from tidelog.cli.worker import COMMAND
from tidelog.clock import SystemClock
from tidelog.crash_points import NO_CRASH_POINTS, CrashPoint
from tidelog.storage.object_store import Buffer, Condition
from tidelog.storage.segment.segment_writer import WrittenSegment
from tidelog.storage.stores.memory import MemoryStore
from tidelog.wal.roll.segment_roll import SegmentRoll
from tidelog.workers.process_offload import ProcessOffload

ROLL_STEPS = (
    CrashPoint.SEGMENT_READY,
    CrashPoint.SEGMENT_STORED,
    CrashPoint.TABLE_COMMIT,
    CrashPoint.TABLE_COMMITTED,
)


@pytest.mark.parametrize("point", ROLL_STEPS)
@pytest.mark.parametrize("politely_before", [True, False])
def test_a_death_at_any_step_loses_and_doubles_nothing(
    point: CrashPoint, politely_before: bool
) -> None:
    here = world()

    async def story() -> None:
        here.crash_points = NO_CRASH_POINTS
        async with here.broker(politely=politely_before) as one:
            topic_id = await one.create_topic()
            await one.produce(batch(b"0", b"1"))
        here.crash_points = KillAt(point)
        async with here.broker(politely=False) as one:
            await one.produce(batch(b"2"))
            one.broker.topic_tables.roller.flush(hosted(one))
            with pytest.raises(Killed):
                await one.run
        here.crash_points = NO_CRASH_POINTS
        async with here.broker() as one:
            log = hosted(one).log
            known = (await table_state(here.store, topic_id)).partition(0).next_offset
            assert known == (3 if point is CrashPoint.TABLE_COMMITTED else 0)
            assert log.table_next == known, "the broker has read the table"
            await one.produce(batch(b"3"))
            await flush(one)
            found = await rows(here.store, topic_id)
            assert [row["value"] for row in found] == [b"0", b"1", b"2", b"3"]
            read = await one.read_all()
            assert [(each.offset, each.value) for each in read] == [
                (row["offset"], row["value"]) for row in found
            ]
            garbage = point in (CrashPoint.SEGMENT_STORED, CrashPoint.TABLE_COMMIT)
            listed = (await table_state(here.store, topic_id)).segment_count
            assert len(await segments(here.store, topic_id)) == listed + garbage

    run(story)


def test_wal_objects_that_only_an_old_image_refers_to_are_not_missed() -> None:
    """The successor's image is older than the table, and refers to collected objects (F1)."""
    here = world()

    async def story() -> None:
        async with here.broker(politely=False) as one:
            topic_id = await one.create_topic()
            await one.produce(batch(b"0"))
        # The next incarnation opens with an image that refers to the first one's object.
        async with here.broker(politely=False) as one:
            await one.produce(batch(b"1"))
            keys = {extent.key for extent in hosted(one).log.extents}
            await flush(one)
            # The broker dies before a checkpoint knows the roll. The image is that of the opening.
        first = min(keys)
        await here.store.delete(first)
        async with here.broker() as one:
            log = hosted(one).log
            assert (log.table_next, log.high_watermark) == (2, 2)
            assert hosted(one).fault is None
            await one.produce(batch(b"2"))
            await flush(one)
            assert await offsets(here.store, topic_id) == [0, 1, 2]

    run(story)


def test_a_segment_with_a_missing_piece_is_not_put(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the broker would give up records of the WAL that the segment lacks. The roll makes
    the segment again."""
    monkeypatch.setattr("tidelog.broker.roll.queue.PAUSE_SECONDS_FIRST", 0.01)
    here = world()
    finish, losses = SegmentRoll.finish, [1]

    def losing_finish(roll: SegmentRoll, *args: Any) -> WrittenSegment | None:
        written = finish(roll, *args)
        assert written is not None
        return written._replace(pieces=written.pieces[losses.pop() if losses else 0 :])

    monkeypatch.setattr(SegmentRoll, "finish", losing_finish)

    async def story() -> None:
        async with here.broker() as one:
            topic_id = await one.create_topic()
            await one.produce(batch(b"a", b"b"))
            await flush(one)
            assert not losses
            assert one.broker.topic_tables.roller.metrics.failures == 1
            assert await offsets(here.store, topic_id) == [0, 1]
            put = [meta.key async for meta in here.store.list("topics/")]
            assert len([key for key in put if key.endswith(".parquet")]) == 1

    run(story)


@pytest.mark.parametrize("at_piece", [1, 3])
def test_a_process_that_dies_over_a_roll_is_replaced(
    at_piece: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process was killed for its memory, for example. The roll begins again in a new
    process."""
    monkeypatch.setattr("tidelog.broker.roll.queue.PAUSE_SECONDS_FIRST", 0.01)
    bounds = segment_builder.SegmentBounds(piece_extents_max=1)
    monkeypatch.setattr("tidelog.broker.clean.table_path.SegmentBounds", lambda: bounds)
    here = world()
    process = here.rolling = ProcessOffload(COMMAND, SystemClock())
    pids: list[int] = []
    read = RollSource.read

    async def killing_read(source: RollSource, *args: Any, **kwargs: Any) -> Any:
        found = await read(source, *args, **kwargs)
        pids.append(await process.run(os.getpid))
        if len(pids) == at_piece:
            os.kill(pids[-1], signal.SIGKILL)
        return found

    monkeypatch.setattr(RollSource, "read", killing_read)

    async def story() -> None:
        async with here.broker() as one:
            topic_id = await one.create_topic()
            for _ in range(4):
                await one.produce(batch(b"a", b"b"))
            await flush(one)
            assert await offsets(here.store, topic_id) == list(range(8))
            assert len(await segments(here.store, topic_id)) == 1
            assert one.broker.topic_tables.roller.metrics.failures == 1

    try:
        run(story)
    finally:
        asyncio.run(process.close())
    assert len(set(pids)) == 2


def test_a_store_that_fails_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidelog.broker.roll.queue.PAUSE_SECONDS_FIRST", 0.01)
    store = ShakyStore()
    here = world(store)

    async def story() -> None:
        async with here.broker() as one:
            topic_id = await one.create_topic()
            await one.produce(batch(b"0"))
            store.refusals = {"/partition=": 2}
            await flush(one)
            assert await offsets(store, topic_id) == [0]
            assert one.broker.topic_tables.roller.metrics.failures == 2
            assert one.broker.topic_tables.roller.failure_of(hosted(one)) is None

    run(story)


def test_a_roll_that_failed_holds_nothing_of_its_segment_while_it_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Otherwise a store that refuses would fill the memory with a segment for each partition."""
    store = ShakyStore()
    here = world(store)
    put: list[weakref.ref[Any]] = []
    refuse = store.put

    async def remembering_put(
        key: str, data: Buffer | Sequence[Buffer], condition: Condition | None = None
    ) -> str:
        if key.endswith(".parquet"):
            put.extend(map(weakref.ref, data))
        return await refuse(key, data, condition)

    monkeypatch.setattr(store, "put", remembering_put)

    async def story() -> None:
        async with here.broker() as one:
            await one.create_topic()
            await one.produce(batch(b"0"))
            store.refusals = {"/partition=": 1}
            one.broker.topic_tables.roller.flush(hosted(one))
            await until(lambda: one.broker.topic_tables.roller.failure_of(hosted(one)))
            gc.collect()
            assert put
            assert not any(piece() is not None for piece in put)

    run(story)


@pytest.mark.parametrize("dies", [True, False])
def test_callers_that_wait_for_a_roll_are_told_when_the_broker_ends(dies: bool) -> None:
    """No roll comes after the end, so callers before and after the end get an error."""
    store = GatedStore(MemoryStore(SystemClock()))
    store.open()
    here = world(store)

    async def story() -> None:
        async with here.broker(politely=False) as one:
            await one.create_topic(partitions=2)
            for number in range(2):
                await one.produce(batch(b"a"), number)
            store.hold("/partition=")
            waiting = [
                one.broker.topic_tables.roller.flush(hosted(one, number)) for number in range(2)
            ]
            await until(lambda: store.waiting)
            if dies:
                one.run.cancel()
            else:
                one.life.stop()
            await asyncio.gather(one.run, return_exceptions=True)
            waiting.append(one.broker.topic_tables.roller.flush(hosted(one)))
            async with asyncio.timeout(20):
                for each in waiting:
                    with pytest.raises(PartitionError, match="has ended"):
                        await each

    run(story)
