"""The cost of a fetch of segments: requests to the store, read-ahead, shared reads, memory."""

from __future__ import annotations

import asyncio

import pytest

from tests.unit.broker.cold_log import MIB, ColdLog, received
from tests.unit.broker.read.cold_reads import log_of, offsets, run, slow_log
from tests.unit.broker.stored_log import settle
from tidelog.storage.segment import segment_writer


@pytest.fixture
def groups_of_a_mib(monkeypatch: pytest.MonkeyPatch) -> None:
    """Row groups of a MiB, four batches."""
    monkeypatch.setattr(segment_writer, "ROW_GROUP_BYTES", MIB)


def test_the_first_byte_costs_one_range_read_with_metadata_and_two_without() -> None:
    async def story() -> None:
        cold = await ColdLog(log_of(1000, size=5000)).write()
        await cold.roll(1000)
        before = cold.requests
        read = await cold.fetch(0)
        assert read.found.buffers
        assert cold.requests - before == 2
        before = cold.requests
        read = await cold.fetch(900)
        assert read.found.buffers
        assert cold.requests - before == 1
        before = cold.requests
        await cold.fetch(901)
        assert cold.requests - before == 0

    run(story())


def test_readers_of_the_same_records_share_one_read_and_one_encoding() -> None:
    async def story() -> None:
        cold, slow = await slow_log(100, 100)
        slow.open.clear()
        readers = [asyncio.create_task(cold.fetch(0)) for _ in range(5)]
        await settle()
        slow.open.set()
        answers = await asyncio.gather(*readers)
        assert [offsets(received(read, 0)[0]) for read in answers] == [list(range(100))] * 5
        assert (slow.gets, cold.chunks.encoded, cold.chunks.joined) == (1, 1, 4)

    run(story())


def test_a_read_without_waiters_is_cancelled_and_begun_again() -> None:
    async def story() -> None:
        cold, slow = await slow_log(100, 100)
        slow.open.clear()
        leaving, staying = (asyncio.create_task(cold.fetch(0)) for _ in range(2))
        await settle()
        leaving.cancel()
        await settle()
        assert slow.given_up == 0
        staying.cancel()
        await settle()
        assert slow.given_up == 1
        again = asyncio.create_task(cold.fetch(0))
        await settle()
        slow.open.set()
        assert offsets(received(await again, 0)[0]) == list(range(100))

    run(story())


@pytest.mark.usefixtures("groups_of_a_mib")
def test_a_sequential_reader_is_read_ahead_of_in_few_and_growing_ranges() -> None:
    async def story() -> None:
        # 10 MB in about ten row groups.
        cold, slow = await slow_log(2000, 5000)
        offset = 0
        while offset < 2000:
            read = await cold.fetch(offset, bytes_max=MIB // 4)
            _, offset = received(read, offset)
            await settle()
        groups = cold.chunks.encoded
        assert groups >= 9
        assert slow.gets < groups / 1.5
        assert cold.read_memory.wasted_bytes == 0

    run(story())


@pytest.mark.usefixtures("groups_of_a_mib")
def test_a_reader_in_leaps_is_not_read_ahead_of() -> None:
    async def story() -> None:
        cold, slow = await slow_log(2000, 5000)
        for offset in (1900, 100, 1500, 800):
            await cold.fetch(offset, bytes_max=MIB // 4)
            await settle()
        assert slow.gets == cold.chunks.encoded == 4

    run(story())


@pytest.mark.usefixtures("groups_of_a_mib")
def test_several_readers_of_a_partition_cost_no_more_than_one_reader() -> None:
    async def story() -> None:
        cold, slow = await slow_log(1000, 5000)
        groups = -(-1000 * 5000 // MIB)
        found = await asyncio.gather(*(cold.consume() for _ in range(4)))
        assert all(offsets(records) == list(range(1000)) for records in found)
        assert cold.chunks.encoded <= groups + 1
        assert slow.gets <= groups + 1

    run(story())


@pytest.mark.usefixtures("groups_of_a_mib")
def test_cached_reads_stay_within_their_memory() -> None:
    async def story() -> None:
        cold, _ = await slow_log(2000, 5000, read_cache_bytes=3 * MIB)
        offset = 0
        while offset < 2000:
            _, offset = received(await cold.fetch(offset, bytes_max=MIB // 4), offset)
            assert cold.read_memory.size_bytes <= 3 * MIB
            assert cold.read_memory.ahead_bytes <= 3 * MIB // 2

    run(story())


def test_a_broker_without_caches_serves_all_records_and_keeps_none() -> None:
    async def story() -> None:
        cold, _ = await slow_log(100, 100, read_cache_bytes=0, index_cache_bytes=0)
        assert offsets(await cold.consume()) == list(range(100))
        assert (cold.read_memory.size_bytes, cold.indexes.size_bytes) == (0, 0)

    run(story())
