"""The cost of readers behind the tail cache: few reads of WAL objects, and no byte twice or in
vain."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Coroutine

from tests.unit.broker.stored_log import MIB, StoredLog, WatchedStore, offsets_in, settle, slot_of
from tidelog.errors import CorruptObject
from tidelog.protocol.error_codes import ErrorCode

KIB = 1024


def run(story: Coroutine[None, None, None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(20):
            await story

    asyncio.run(bounded())


async def written(slots: int, sizes: list[int], **settings: int) -> StoredLog:
    log = StoredLog(slots, sizes, **settings)
    await log.write()
    return log


def reads_by_slot(store: WatchedStore) -> Counter[int]:
    return Counter(slot for slot, _, _ in store.ranges)


def test_a_reader_of_all_partitions_reads_each_object_once() -> None:
    async def story() -> None:
        log = await written(40, [64 * KIB] * 16)
        await log.read(range(16))
        assert set(reads_by_slot(log.store)) == set(range(40))
        assert len(log.store.ranges) <= 42
        assert log.store.bytes_asked < 1.01 * 40 * log.object_bytes

    run(story())


def test_the_only_reader_of_a_small_partition_reads_little_of_other_partitions() -> None:
    async def story() -> None:
        log = await written(60, [400 * KIB, 1 * KIB, 400 * KIB])
        await log.read([1])
        wanted = sum(extent.length for extent in log.extents[1])
        assert log.store.bytes_asked == wanted
        assert max(reads_by_slot(log.store).values()) == 1

    run(story())


def test_readers_of_one_partition_each_share_their_reads() -> None:
    async def story() -> None:
        log = await written(30, [128 * KIB] * 8)
        fetches = await asyncio.gather(*(log.read([number]) for number in range(8)))
        assert all(fetches)
        # Without sharing, the readers would have read each object eight times.
        assert len(log.store.ranges) < 4 * 30
        assert log.store.bytes_asked < 1.5 * 30 * log.object_bytes

    run(story())


def test_a_latecomer_gets_bytes_that_were_read_for_other_readers() -> None:
    async def story() -> None:
        log = await written(20, [64 * KIB] * 4)
        await log.read([0, 1, 2])
        before = len(log.store.ranges)
        await log.read([3])
        assert len(log.store.ranges) - before <= 20
        before = len(log.store.ranges)
        await log.read([0, 1, 2, 3])
        assert len(log.store.ranges) == before

    run(story())


def test_a_reader_waits_for_a_read_that_is_under_way() -> None:
    async def story() -> None:
        log = await written(1, [10 * KIB])
        log.store.open.clear()
        readers = [asyncio.create_task(log.fetch({0: 0})) for _ in range(5)]
        await settle()
        assert len(log.store.ranges) == 1
        log.store.open.set()
        answers = await asyncio.gather(*readers)
        assert [offsets_in(reads[0]) for reads in answers] == [[0]] * 5
        assert len(log.store.ranges) == 1
        assert log.reader.reads.joined == 4

    run(story())


def test_a_reader_that_leaves_does_not_cancel_a_read_that_others_wait_for() -> None:
    async def story() -> None:
        log = await written(1, [10 * KIB])
        log.store.open.clear()
        leaving, staying = (asyncio.create_task(log.fetch({0: 0})) for _ in range(2))
        await settle()
        leaving.cancel()
        await settle()
        assert log.store.given_up == 0
        log.store.open.set()
        assert offsets_in((await staying)[0]) == [0]

    run(story())


def test_a_read_without_waiters_is_cancelled() -> None:
    async def story() -> None:
        log = await written(1, [10 * KIB])
        log.store.open.clear()
        reader = asyncio.create_task(log.fetch({0: 0}))
        await settle()
        reader.cancel()
        await settle()
        assert log.store.given_up == 1
        log.store.open.set()
        assert offsets_in((await log.fetch({0: 0}))[0]) == [0]

    run(story())


def test_sequential_readers_find_the_next_batches_read() -> None:
    async def story() -> None:
        log = await written(50, [64 * KIB])
        for offset in (0, 2):
            await log.fetch({0: offset}, partition_bytes=150 * KIB)
        await settle()
        asked = len(log.store.ranges)
        log.store.open.clear()
        assert offsets_in((await log.fetch({0: 4}, partition_bytes=150 * KIB))[0]) == [4, 5]
        log.store.open.set()
        await settle()
        assert len(log.store.ranges) > asked

    run(story())


def test_answers_become_small_while_others_are_not_taken_but_never_empty() -> None:
    """Answers that many clients do not take are bounded, and a client that takes its answer is
    served."""

    async def story() -> None:
        log = await written(10, [100 * KIB])
        whole = await log.fetch({0: 0})
        assert offsets_in(whole[0]) == list(range(10))
        log.answers.change((1 << 30) - 1200 * KIB)
        assert offsets_in((await log.fetch({0: 0}))[0]) == [0, 1]
        log.answers.change(1200 * KIB)
        assert offsets_in((await log.fetch({0: 3}))[0]) == [3]
        log.answers.change(-(1 << 30))
        assert offsets_in((await log.fetch({0: 0}))[0]) == list(range(10))

    run(story())


def test_readers_that_jump_have_nothing_read_ahead() -> None:
    async def story() -> None:
        log = await written(50, [64 * KIB])
        for offset in (40, 3, 20, 9, 33):
            await log.fetch({0: offset}, partition_bytes=70 * KIB)
            await settle()
        assert len(log.store.ranges) == 5
        assert log.reader.reads.ahead_bytes_total == 0

    run(story())


def test_read_ahead_fills_half_of_the_read_cache_at_most() -> None:
    async def story() -> None:
        log = await written(60, [64 * KIB] * 10, read_cache_bytes=4 * MIB)
        seen = []
        for offset in range(40):
            await log.fetch(dict.fromkeys(range(10), offset), partition_bytes=400 * KIB)
            await settle()
            seen.append(log.cache.memory.ahead_bytes)
            assert log.cache.memory.size_bytes <= 4 * MIB
        assert 0 < max(seen) <= 2 * MIB

    run(story())


def test_without_a_read_cache_all_is_served_and_nothing_kept() -> None:
    async def story() -> None:
        log = await written(10, [20 * KIB] * 3, read_cache_bytes=0)
        await log.read([0, 1, 2])
        assert log.cache.memory.size_bytes == 0
        assert log.reader.reads.ahead_bytes_total == 0

    run(story())


def test_a_wrong_batch_in_a_shared_range_harms_only_its_partition() -> None:
    async def story() -> None:
        log = await written(3, [20 * KIB] * 3)
        await log.spoil(1, 1)
        reads = await log.fetch(dict.fromkeys(range(3), 1))
        assert [read.code for read in reads] == [
            ErrorCode.NONE,
            ErrorCode.KAFKA_STORAGE_ERROR,
            ErrorCode.NONE,
        ]
        (fault,) = (await log.reader.load([log.extents[1][1]])).values()
        assert isinstance(fault, CorruptObject)
        assert slot_of(fault.key) == 1
        # Each fetch reads the damaged batch alone. The other batches come from the first read.
        before = len(log.store.ranges)
        reads = await log.fetch(dict.fromkeys(range(3), 1))
        assert [read.code != 0 for read in reads] == [False, True, False]
        extent = log.extents[1][1]
        assert log.store.ranges[before:] == [(1, extent.position, extent.position + extent.length)]

    run(story())


def test_a_batch_that_came_wrong_once_is_served_when_it_comes_right() -> None:
    async def story() -> None:
        log = await written(2, [20 * KIB] * 2)
        extent = log.extents[1][0]
        right = bytes((await log.memory.get(extent.key)).data)
        await log.spoil(0, 1)
        assert (await log.fetch({0: 0, 1: 0}))[1].code == ErrorCode.KAFKA_STORAGE_ERROR
        await log.memory.put(extent.key, right)
        assert offsets_in((await log.fetch({1: 0}))[0]) == [0, 1]

    run(story())


def test_an_object_that_is_missing_is_named_and_others_are_served() -> None:
    async def story() -> None:
        log = await written(3, [20 * KIB] * 2)
        await log.memory.delete(log.extents[0][1].key)
        assert offsets_in((await log.fetch({0: 0}))[0]) == [0]
        assert (await log.fetch({0: 1}))[0].code == ErrorCode.KAFKA_STORAGE_ERROR
        (fault,) = (await log.reader.load([log.extents[0][1]])).values()
        assert isinstance(fault, CorruptObject)
        assert "missing" in str(fault)
        assert offsets_in((await log.fetch({0: 2}))[0]) == [2]

    run(story())


def test_an_unreachable_store_fails_all_waiting_reads_and_is_asked_again() -> None:
    async def story() -> None:
        log = await written(1, [20 * KIB] * 2)
        log.store.is_broken = True
        answers = await asyncio.gather(*(log.fetch({number: 0}) for number in (0, 0, 1)))
        codes = {reads[0].code for reads in answers}
        assert codes == {ErrorCode.KAFKA_STORAGE_ERROR}
        log.store.is_broken = False
        assert offsets_in((await log.fetch({0: 0}))[0]) == [0]

    run(story())


def test_reads_that_are_under_way_end_with_the_broker() -> None:
    async def story() -> None:
        log = await written(40, [64 * KIB])
        for offset in (0, 2):
            await log.fetch({0: offset}, partition_bytes=150 * KIB)
        log.store.open.clear()
        await settle()
        await log.reader.close()
        assert len(asyncio.all_tasks()) == 1

    run(story())


def test_small_batches_of_many_objects_come_in_few_fetches() -> None:
    async def story() -> None:
        log = await written(200, [2 * KIB] * 4)
        fetches = await log.read(range(4))
        assert fetches <= 200 // 16
        assert len(log.store.ranges) <= 210

    run(story())
