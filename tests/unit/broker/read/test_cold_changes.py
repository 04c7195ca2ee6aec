"""Tables change under a reader of segments, or are damaged. The reader gets an error, or reads on
elsewhere."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from tests.unit.broker.cold_log import TOPIC_ID, WAL_KEY, ColdLog, received
from tests.unit.broker.read.cold_reads import ColdLogView, SlowStore, log_of, offsets, run, slow_log
from tests.unit.broker.stored_log import settle
from tidelog.broker.read.fetcher import PartitionRead
from tidelog.errors import CorruptObject, MissingObject
from tidelog.protocol.error_codes import ErrorCode
from tidelog.storage.stores.memory import MemoryStore
from tidelog.wal.log.extents import Extent, Extents
from tidelog.wal.log.partition_log import PartitionLog

STAMP = 1_700_000_000_000


@pytest.mark.parametrize("footers_known", [False, True])
def test_segments_compacted_and_collected_under_a_reader_are_no_matter(footers_known: bool) -> None:
    async def story() -> None:
        cold, slow = await slow_log(100, 100)
        two = await ColdLog(log_of(100)).write()
        segments = [await two.roll(30), await two.roll(60)]
        if footers_known:
            for segment in segments:
                assert segment is not None
                await two.indexes.open(two.log.partition, segment)
        del cold, slow
        # When the table changes, the reader has read the table and waits for the store.
        slow = SlowStore(two.memory)
        two.store._store = slow  # type: ignore[attr-defined]
        slow.open.clear()
        reader = asyncio.create_task(two.fetch(0))
        await settle()
        assert slow.gets == 1
        other = ColdLogView(two)
        await other.merge(segments, 60)
        slow.open.set()
        records, _ = received(await reader, 0)
        assert records
        assert offsets(await two.consume()) == list(range(100))

    run(story())


def test_the_table_may_roll_on_while_a_fetch_waits_for_the_wal() -> None:
    async def story() -> None:
        cold = ColdLog(log_of(100))
        slow = SlowStore(cold.memory)
        cold.store._store = slow  # type: ignore[attr-defined]
        await cold.write()
        await cold.roll(30)
        slow.open.clear()
        reader = asyncio.create_task(cold.fetch(50))
        await settle()
        slow.open.set()
        await cold.roll(100)
        records, _ = received(await reader, 50)
        assert offsets(records) == list(range(50, 100))

    run(story())


def test_a_reader_learns_that_the_log_start_has_passed_its_position() -> None:
    async def story() -> None:
        cold, slow = await slow_log(100, 100)
        slow.open.clear()
        reader = asyncio.create_task(cold.fetch(10))
        await settle()
        cold.log._show_log_start(50)
        slow.open.set()
        assert (await reader).code is ErrorCode.OFFSET_OUT_OF_RANGE
        assert offsets(await cold.consume(50)) == list(range(50, 100))

    run(story())


def test_a_table_that_others_have_rolled_on_is_read_again() -> None:
    async def story() -> None:
        cold = await ColdLog(log_of(100)).write()
        await cold.roll(30)
        other = ColdLogView(cold).cold
        await other.tables.open(TOPIC_ID)
        segment = await other.put_segment(b"".join(other.batches[3:7]), 30, 70)
        assert segment is not None
        await other.commit(70, segment)
        # A log that was opened from another broker's image knows this segment.
        cold.log.advance_table(70)
        assert offsets(await cold.consume()) == list(range(100))

    run(story())


def test_wal_objects_collected_since_another_broker_rolled_them_are_looked_for_in_the_table() -> (
    None
):
    async def story() -> None:
        # The partition's own log does not know the roll: a fenced broker committed it late.
        cold = await ColdLog(log_of(100)).write()
        other = ColdLogView(cold).cold
        await other.roll(100)
        await cold.memory.delete(WAL_KEY)
        assert await cold.lookup.of_maximum(cold.partition, 100) == (STAMP + 99, 99)
        cold.partition.log = (await ColdLog(log_of(100)).write()).log
        assert offsets(await cold.consume()) == list(range(100))
        assert cold.log.table_next == 100

    run(story())


def test_a_wal_object_that_is_missing_and_in_no_table_is_corruption() -> None:
    async def story() -> None:
        cold = await ColdLog(log_of(100)).write()
        await cold.roll(30)
        await cold.memory.delete(WAL_KEY)
        await refused(cold, 50)
        assert offsets(received(await cold.fetch(0), 0)[0]) == list(range(30))
        with pytest.raises(CorruptObject, match="missing"):
            await cold.lookup.of_maximum(cold.partition, 100)

    run(story())


def test_an_extent_that_is_only_partly_in_the_table_still_needs_its_object() -> None:
    async def story() -> None:
        cold = await ColdLog(log_of(100)).write()
        size = sum(map(len, cold.batches))
        extents = Extents([Extent(0, 99, STAMP + 99, WAL_KEY, 0, size)])
        whole = replace(cold.log.image(), extents=extents)
        cold.partition.log = PartitionLog.from_image(whole)
        await cold.roll(50)
        await cold.memory.delete(WAL_KEY)
        with pytest.raises(MissingObject, match=WAL_KEY):
            await cold.lookup.of_maximum(cold.partition, 100)
        lost = await cold.fetch(50)
        assert lost.code is ErrorCode.KAFKA_STORAGE_ERROR

    run(story())


async def refused(cold: ColdLog, offset: int = 0) -> PartitionRead:
    read = await cold.fetch(offset)
    assert read.code is ErrorCode.KAFKA_STORAGE_ERROR
    assert not read.found.buffers
    return read


async def damaged(store: MemoryStore, key: str, how: str) -> None:
    data = bytearray((await store.get(key)).data)
    match how:
        case "missing":
            await store.delete(key)
            return
        case "truncated":
            del data[len(data) // 2 :]
        case "longer":
            data += b"x"
        case "altered data":
            data[100] ^= 1
        case _:
            data[-60] ^= 1
    await store.put(key, bytes(data))


@pytest.mark.parametrize(
    ("how", "footers_known"),
    [
        *(
            (how, known)
            for how in ("missing", "truncated", "longer", "altered data")
            for known in (False, True)
        ),
        # A reader that knows the footer does not read it again.
        ("altered footer", False),
    ],
)
def test_a_damaged_segment_fails_its_own_records_and_is_named(
    how: str, footers_known: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async def story() -> None:
        cold = await ColdLog(log_of(100)).write()
        first, second = await cold.roll(30), await cold.roll(60)
        assert first is not None
        assert second is not None
        if footers_known:
            await cold.indexes.open(cold.log.partition, second)
        key = second.key(TOPIC_ID)
        whole = bytes((await cold.memory.get(key)).data)
        await damaged(cold.memory, key, how)
        await refused(cold, 30)
        assert any(getattr(each, "key", None) == key for each in caplog.records)
        # Segments before and behind it are served. A fetch that reaches the damaged segment ends
        # before it.
        assert offsets(received(await cold.fetch(0), 0)[0]) == list(range(30))
        assert offsets(await cold.consume(60)) == list(range(60, 100))
        # The reader keeps no damaged bytes: it serves a repaired object.
        await cold.memory.put(key, whole)
        assert offsets(await cold.consume()) == list(range(100))

    run(story())


@pytest.mark.parametrize("how", ["missing", "truncated", "altered data"])
def test_a_damaged_table_log_fails_records_of_the_table_alone(how: str) -> None:
    async def story() -> None:
        cold = await ColdLog(log_of(100)).write()
        await cold.roll(30)
        await cold.roll(60)
        prefix = f"topics/{TOPIC_ID}/_delta_log/"
        await damaged(cold.memory, f"{prefix}{0:020d}.json", how)
        fresh = ColdLogView(cold).cold
        fresh.log.advance_table(60)
        await refused(fresh, 30)
        assert offsets(await fresh.consume(60)) == list(range(60, 100))

    run(story())


def test_a_table_that_ends_below_table_next_is_corrupt() -> None:
    async def story() -> None:
        cold = await ColdLog(log_of(100)).write()
        await cold.roll(30)
        cold.log.advance_table(60)
        await refused(cold, 10)
        await refused(cold, 40)
        assert offsets(await cold.consume(60)) == list(range(60, 100))

    run(story())


def test_a_store_that_is_away_is_an_error_until_it_is_back() -> None:
    async def story() -> None:
        cold, slow = await slow_log(100, 100)
        slow.is_broken = True
        await refused(cold)
        slow.is_broken = False
        assert offsets(await cold.consume()) == list(range(100))

    run(story())
