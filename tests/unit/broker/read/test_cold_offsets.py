"""Offsets by time for logs in segments, in the WAL, or in both."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.broker.cold_log import TOPIC_ID, ColdLog
from tests.unit.broker.read.cold_reads import ColdLogView, SlowStore
from tests.unit.broker.stored_log import settle
from tidelog.errors import CorruptObject
from tidelog.records.records import NewRecord, encode_batch
from tidelog.storage.segment import segment_writer

STAMP = 1_700_000_000_000


def run(story: Coroutine[None, None, None]) -> None:
    asyncio.run(story)


def dated(stamps: Sequence[int], *, batch_records: int = 4) -> list[bytearray]:
    """A log of records with these timestamps."""
    return [
        encode_batch(
            [NewRecord(b"v", timestamp=stamp) for stamp in stamps[base : base + batch_records]],
            base_offset=base,
        )
        for base in range(0, len(stamps), batch_records)
    ]


async def at(cold: ColdLog, timestamp_ms: int) -> tuple[int, int] | None:
    return await cold.lookup.at_or_after(cold.partition, timestamp_ms, cold.log.high_watermark)


async def newest(cold: ColdLog) -> tuple[int, int] | None:
    return await cold.lookup.of_maximum(cold.partition, cold.log.high_watermark)


def expected_at(stamps: Sequence[int], timestamp_ms: int, start: int) -> tuple[int, int] | None:
    return next(
        (
            (stamp, offset)
            for offset, stamp in enumerate(stamps)
            if offset >= start and stamp >= timestamp_ms
        ),
        None,
    )


def expected_newest(stamps: Sequence[int], start: int) -> tuple[int, int] | None:
    # As in Kafka, -1 stands for no timestamp.
    shown = [(stamp, -offset) for offset, stamp in enumerate(stamps) if offset >= start]
    return (max(shown)[0], -max(shown)[1]) if shown else None


@given(
    stamps=st.lists(st.sampled_from([-1, *range(8)]), min_size=1, max_size=40),
    rolls=st.lists(st.integers(0, 9), max_size=4),
    start=st.integers(0, 39),
    group_rows=st.sampled_from([3, 1 << 16]),
)
def test_a_time_is_found_wherever_it_lies(
    stamps: list[int], rolls: list[int], start: int, group_rows: int
) -> None:
    async def story() -> None:
        log_start = min(start, len(stamps) - 1)
        cold = await ColdLog(dated(stamps), log_start=log_start).write()
        for end in sorted({min(4 * each, len(stamps)) for each in rolls} - {0}):
            await cold.roll(end)
        for timestamp_ms in range(9):
            expected = expected_at(stamps, timestamp_ms, log_start)
            assert await at(cold, timestamp_ms) == expected
        assert await newest(cold) == expected_newest(stamps, log_start)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(segment_writer, "ROW_GROUP_ROWS", group_rows)
        run(story())


def test_the_first_time_looked_up_costs_two_reads_and_the_second_one_read() -> None:
    async def story() -> None:
        cold = await ColdLog(dated([STAMP + offset for offset in range(400)])).write()
        for end in (100, 200, 300, 400):
            await cold.roll(end)
        before = cold.requests
        assert await at(cold, STAMP + 250) == (STAMP + 250, 250)
        assert cold.requests - before == 2
        assert await at(cold, STAMP + 251) == (STAMP + 251, 251)
        assert cold.requests - before == 3
        # Segments whose statistics exclude the time are not read.
        assert await at(cold, STAMP + 1000) is None
        assert cold.requests - before == 3

    run(story())


def test_records_rolled_during_a_lookup_are_not_missed() -> None:
    async def story() -> None:
        stamps = [STAMP] * 40 + [STAMP + 5] * 4 + [STAMP + 9] * 4
        cold = ColdLog(dated(stamps))
        slow = SlowStore(cold.memory)
        cold.store._store = slow  # type: ignore[attr-defined]
        await cold.write()
        await cold.roll(40)
        cold.log._show_log_start(39)
        for wanted, found in ((STAMP + 1, (STAMP + 5, 40)), (-3, (STAMP + 9, 44))):
            await cold.indexes.close()
            slow.open.clear()
            looking = asyncio.create_task(newest(cold) if wanted == -3 else at(cold, wanted))
            await settle()
            await_roll = cold.log.table_next + 4
            slow.open.set()
            await cold.roll(await_roll)
            assert await looking == found

    run(story())


def test_a_segment_compacted_and_collected_under_a_look_is_no_matter() -> None:
    async def story() -> None:
        cold = await ColdLog(dated([STAMP + offset for offset in range(40)])).write()
        segments = [await cold.roll(20), await cold.roll(40)]
        await ColdLogView(cold).merge(segments, 40)
        assert await at(cold, STAMP + 30) == (STAMP + 30, 30)
        cold = await ColdLog(dated([STAMP + offset for offset in range(40)])).write()
        segments = [await cold.roll(20), await cold.roll(40)]
        for segment in segments:
            assert segment is not None
            await cold.indexes.open(cold.log.partition, segment)
        await ColdLogView(cold).merge(segments, 40)
        assert await newest(cold) == (STAMP + 39, 39)

    run(story())


def test_a_look_passes_over_no_segment_that_was_merged_meanwhile() -> None:
    async def story() -> None:
        # The late record of the first segment lies below the log start.
        stamps = [STAMP + 9] * 4 + [STAMP] * 4 + [STAMP + 5] * 4 + [STAMP + 7] * 4
        cold = ColdLog(dated(stamps), log_start=4)
        slow = SlowStore(cold.memory)
        cold.store._store = slow  # type: ignore[attr-defined]
        await cold.write()
        segments = [await cold.roll(8), await cold.roll(12)]
        await cold.roll(16)
        slow.open.clear()
        looking = asyncio.create_task(at(cold, STAMP + 5))
        await settle()
        old = [segment for segment in segments if segment is not None]
        new = await cold.put_segment(b"".join(cold.batches[:3]), 0, 12)
        assert new is not None
        # The broker's own merge: it writes and needs no range.
        await cold.replace(old, new)
        slow.open.set()
        assert await looking == (STAMP + 5, 8)

    run(story())


def test_a_missing_segment_is_named() -> None:
    async def story() -> None:
        cold = await ColdLog(dated([STAMP + offset for offset in range(40)])).write()
        segment = await cold.roll(40)
        assert segment is not None
        await cold.memory.delete(segment.key(TOPIC_ID))
        with pytest.raises(CorruptObject) as error:
            await at(cold, STAMP + 3)
        assert error.value.key == segment.key(TOPIC_ID)

    run(story())
