"""The WAL writer: groups, order, room, and how it ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from tests.properties.wal.batches import EPOCH_0, header
from tests.simulation.world.clock import SimulatedClock
from tests.unit.wal.gated_store import GatedStore
from tests.unit.wal.writer_desk import PARTITION, Desk, story
from tidelog.entropy import SeededEntropy
from tidelog.errors import Fenced, TidelogError
from tidelog.storage.object_store import AccessDenied, IfAbsent, ObjectStore
from tidelog.storage.stores.faulty import FaultyStore, StoreFault
from tidelog.storage.stores.memory import MemoryStore
from tidelog.wal.format.object_format import ObjectKind, encode_header
from tidelog.wal.format.slot_index import check_body
from tidelog.wal.log.image import PartitionImage
from tidelog.wal.settings import WalSettings
from tidelog.wal.write.buffer import SlotBuffer
from tidelog.wal.write.slot_entries import OpeningEntry
from tidelog.wal.write.writer import DurableSlot, WalClosed, WalLost


def faulty(*faults: StoreFault) -> Callable[[MemoryStore, SimulatedClock], ObjectStore]:
    """A store whose first puts meet these faults."""

    def wrap(bucket: MemoryStore, clock: SimulatedClock) -> ObjectStore:
        store = FaultyStore(bucket, clock, SeededEntropy(2))
        store.plan("put", *faults)
        return store

    return wrap


# Groups.


def test_the_first_batch_does_not_wait_and_takes_ready_batches_along() -> None:
    async def tell(desk: Desk) -> None:
        desk.gate.open()
        async with desk.running():
            started = desk.clock.monotonic()
            slots = [desk.add(), desk.add(), desk.add()]
            await desk.writer.durable(slots[2])
            assert desk.clock.monotonic() - started < 0.001
            assert slots == [0, 0, 0]
            assert await desk.offsets(0) == [0, 1, 2]

    story(tell, WalSettings(linger_ms=50))


def test_while_a_slot_is_in_flight_the_next_lingers() -> None:
    async def tell(desk: Desk) -> None:
        async with desk.running():
            desk.add()
            await desk.tick()
            desk.add()
            await desk.tick(0.004)
            desk.add()
            assert desk.gate.waiting == [desk.key(0)]
            await desk.tick(0.002)
            assert desk.gate.waiting == [desk.key(0), desk.key(1)]
            desk.gate.open()
            await desk.writer.flush()
            assert await desk.offsets(1) == [1, 2]

    story(tell, WalSettings(linger_ms=5))


def test_a_slot_behind_a_full_one_lingers_too() -> None:
    async def tell(desk: Desk) -> None:
        async with desk.running():
            assert [desk.add(600), desk.add(600)] == [0, 1]
            await desk.tick(0.004)
            assert desk.gate.waiting == [desk.key(0)]
            await desk.tick(0.002)
            assert desk.gate.waiting == [desk.key(0), desk.key(1)]

    story(tell, WalSettings(linger_ms=5, object_bytes_max=1_000))


def test_when_nothing_is_in_flight_any_more_the_linger_is_cut_short() -> None:
    async def tell(desk: Desk) -> None:
        async with desk.running():
            desk.add()
            await desk.tick()
            desk.add()
            desk.gate.release(desk.key(0))
            await desk.tick()
            assert desk.gate.waiting == [desk.key(1)]

    story(tell, WalSettings(linger_ms=500))


def test_a_full_slot_goes_at_once_and_no_more_than_allowed_are_in_flight() -> None:
    async def tell(desk: Desk) -> None:
        async with desk.running():
            slots = [desk.add(600) for _ in range(5)]
            assert slots == [0, 1, 2, 3, 4]
            await desk.tick()
            assert desk.gate.waiting == [desk.key(0), desk.key(1)]
            desk.gate.release(desk.key(1))
            await desk.tick()
            assert desk.gate.waiting == [desk.key(0), desk.key(2)]

    story(tell, WalSettings(linger_ms=500, object_bytes_max=1_000, uploads_in_flight_max=2))


def test_a_batch_that_is_larger_than_an_object_has_a_slot_to_itself() -> None:
    async def tell(desk: Desk) -> None:
        desk.gate.open()
        async with desk.running():
            assert [desk.add(10), desk.add(5_000), desk.add(10)] == [0, 1, 2]
            await desk.writer.flush()
            assert [await desk.offsets(slot) for slot in range(3)] == [[0], [1], [2]]

    story(tell, WalSettings(object_bytes_max=1_000))


def test_large_slots_are_laid_out_off_the_loop_and_chained_all_the_same() -> None:
    async def tell(desk: Desk) -> None:
        desk.gate.open()
        async with desk.running():
            for size in (200_000, 10, 200_000):
                desk.add(size)
                await desk.writer.flush()
        found = [check_body(slot.key, slot.data) for slot in desk.durable]
        assert [index.header.previous_crc for index in found] == [0, found[0].crc, found[1].crc]

    story(tell)


# Order.


def test_a_slot_counts_only_when_all_before_it_do() -> None:
    async def tell(desk: Desk) -> None:
        async with desk.running():
            first, second, third = desk.add(600), desk.add(600), desk.add(600)
            await desk.tick(0.01)
            waiting = [desk.writer.durable(slot) for slot in (first, second, third)]
            desk.gate.release(desk.key(second))
            desk.gate.release(desk.key(third))
            await desk.tick()
            assert not any(future.done() for future in waiting)
            assert desk.durable == []
            desk.gate.release(desk.key(first))
            await desk.tick()
            assert all(future.done() for future in waiting)
            assert [slot.slot for slot in desk.durable] == [first, second, third]

    story(tell, WalSettings(object_bytes_max=1_000))


def test_waiting_producers_go_on_after_the_listeners_of_the_durable_slot() -> None:
    async def tell(desk: Desk) -> None:
        desk.gate.open()
        async with desk.running():
            slot = desk.add()
            await desk.writer.durable(slot)
            (seen,) = desk.durable
            assert (seen.slot, seen.key) == (slot, desk.key(slot))
            assert seen.data == (await desk.bucket.get(seen.key)).data
            assert [advance.partition for advance in seen.advances] == [PARTITION]
            assert desk.writer.durable_end == slot + 1

    story(tell)


def test_a_cancelled_waiter_disturbs_no_other() -> None:
    async def tell(desk: Desk) -> None:
        async with desk.running():
            slot = desk.add()
            gone, stays = desk.writer.durable(slot), desk.writer.durable(slot)
            gone.cancel()
            desk.gate.open()
            await stays

    story(tell)


def test_all_that_was_added_so_far_can_be_waited_for() -> None:
    """The duplicate of a batch that is not durable yet must wait like this (H4)."""

    async def tell(desk: Desk) -> None:
        async with desk.running():
            assert desk.writer.newest_slot == -1
            await desk.writer.durable(desk.writer.newest_slot)
            desk.add()
            await desk.tick()
            newest = desk.writer.durable(desk.writer.newest_slot)
            await desk.tick()
            assert not newest.done()
            desk.gate.open()
            await newest

    story(tell)


def test_a_begun_slot_parts_earlier_entries_from_later_entries() -> None:
    async def tell(desk: Desk) -> None:
        async with desk.running():
            assert desk.writer.begin_slot() == 0
            desk.add()
            assert desk.writer.begin_slot() == 1
            assert desk.writer.begin_slot() == 1
            assert desk.add() == 1
            desk.gate.open()
            await desk.writer.flush()
            assert [await desk.offsets(0), await desk.offsets(1)] == [[0], [1]]

    story(tell)


# Room.


def test_above_the_bound_there_is_no_room_until_something_is_durable() -> None:
    async def tell(desk: Desk) -> None:
        async with desk.running():
            while desk.writer.has_room:
                desk.add(600)
            room = asyncio.create_task(desk.writer.wait_for_room())
            await desk.tick()
            assert not room.done()
            assert desk.writer.pending_bytes >= 2_000
            desk.gate.release(desk.key(0))
            await desk.tick()
            assert room.done()
            desk.gate.open()
            await desk.writer.flush()
            assert desk.writer.pending_bytes == 0

    story(tell, WalSettings(object_bytes_max=700, buffer_bytes_max=2_000))


# Faults.


@pytest.mark.parametrize(
    "faults",
    [
        (StoreFault.ANSWER_LOST,),
        (StoreFault.REQUEST_LOST,),
        (StoreFault.REFUSED, StoreFault.REFUSED),
        (StoreFault.REQUEST_LOST, StoreFault.ANSWER_LOST),
        (StoreFault.LATE,),
    ],
    ids=str,
)
def test_a_fault_that_passes_costs_time_only(faults: tuple[StoreFault, ...]) -> None:
    async def tell(desk: Desk) -> None:
        async with desk.running():
            for _ in range(3):
                await desk.writer.durable(desk.add())
            assert [await desk.offsets(slot) for slot in range(3)] == [[0], [1], [2]]

    story(tell, wrap=faulty(*faults))


async def ended(desk: Desk, kind: type[TidelogError]) -> str:
    """Add a batch and wait until the incarnation ends. Returns the error's message."""
    run = asyncio.create_task(desk.writer.run())
    waiting = desk.writer.durable(desk.add())
    behind = asyncio.create_task(desk.writer.wait_for_room())
    with pytest.raises(kind) as found:
        await run
    with pytest.raises(WalLost, match="unknown"):
        await waiting
    with pytest.raises(WalLost, match="unknown"):
        await desk.writer.durable(desk.writer.slot)
    with pytest.raises(WalLost, match="nothing was added"):
        desk.add()
    with pytest.raises(WalLost):
        await desk.writer.close()
    await asyncio.wait([behind])
    behind.exception()
    assert desk.durable == []
    return str(found.value)


def test_a_writer_that_meets_a_seal_is_fenced() -> None:
    async def tell(desk: Desk) -> None:
        seal = encode_header(header(0)._replace(kind=ObjectKind.SEAL))
        await desk.bucket.put(desk.key(0), seal, IfAbsent())
        desk.gate.open()
        assert "a seal" in await ended(desk, Fenced)

    story(tell)


def test_a_writer_that_meets_anothers_object_is_fenced() -> None:
    async def tell(desk: Desk) -> None:
        # The object of a second process with the same incarnation.
        buffer = SlotBuffer()
        buffer.add(OpeningEntry(PartitionImage.empty(PARTITION, EPOCH_0)))
        await desk.bucket.put(desk.key(0), buffer.assemble(header(0)).data)
        desk.gate.open()
        assert "another writer's object" in await ended(desk, Fenced)

    story(tell)


def test_a_slot_that_was_taken_and_deleted_fences_too() -> None:
    async def tell(desk: Desk) -> None:
        assert "and is deleted" in await ended(desk, Fenced)

    story(tell, wrap=faulty(StoreFault.GONE))


def test_a_slot_that_stays_unknown_ends_the_incarnation_at_its_deadline() -> None:
    async def tell(desk: Desk) -> None:
        started = desk.clock.monotonic()
        assert "may or may not be stored" in await ended(desk, WalLost)
        assert desk.clock.monotonic() - started == pytest.approx(7.0, abs=0.1)

    story(tell, WalSettings(upload_deadline_ms=7_000))


def test_a_store_that_refuses_ends_the_incarnation() -> None:
    class ReadOnlyStore(GatedStore):
        async def put(self, key: str, *_: object) -> str:
            raise AccessDenied(key, "this bucket is read-only")

    async def tell(desk: Desk) -> None:
        assert "read-only" in await ended(desk, WalLost)

    story(tell, wrap=lambda bucket, _: ReadOnlyStore(bucket))


def test_slots_behind_a_lost_one_are_never_acknowledged() -> None:
    async def tell(desk: Desk) -> None:
        run = asyncio.create_task(desk.writer.run())
        waiting = [desk.writer.durable(desk.add(600)) for _ in range(3)]
        await desk.tick(0.01)
        desk.gate.release(desk.key(1))
        desk.gate.release(desk.key(2))
        with pytest.raises(WalLost):
            await run
        for future in waiting:
            with pytest.raises(WalLost):
                await future
        assert await desk.offsets(2) == [2]
        assert desk.writer.durable_end == 0

    story(tell, WalSettings(object_bytes_max=1_000, upload_deadline_ms=1_000))


def test_stopping_the_task_tells_waiting_producers() -> None:
    async def tell(desk: Desk) -> None:
        run = asyncio.create_task(desk.writer.run())
        waiting = desk.writer.durable(desk.add())
        await desk.tick()
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run
        with pytest.raises(WalLost, match="was stopped"):
            await waiting

    story(tell)


def test_a_listeners_error_ends_the_incarnation() -> None:
    async def tell(desk: Desk) -> None:
        def fail(_: DurableSlot) -> None:
            raise KeyError("a mistake")

        desk.writer._on_durable = fail
        desk.gate.open()
        run = asyncio.create_task(desk.writer.run())
        waiting = desk.writer.durable(desk.add())
        with pytest.raises(KeyError):
            await run
        with pytest.raises(WalLost):
            await waiting

    story(tell)


# Closing.


def test_closing_flushes_and_takes_nothing_more() -> None:
    async def tell(desk: Desk) -> None:
        desk.gate.open()
        run = asyncio.create_task(desk.writer.run())
        slot = desk.add()
        await desk.writer.close()
        with pytest.raises(WalClosed, match="nothing was added"):
            desk.add()
        await run
        assert desk.writer.durable_end == slot + 1
        with pytest.raises(WalClosed):
            desk.writer.begin_slot()

    story(tell)


def test_closing_a_writer_that_wrote_nothing() -> None:
    async def tell(desk: Desk) -> None:
        run = asyncio.create_task(desk.writer.run())
        await desk.writer.close()
        await run

    assert story(tell).durable == []


def test_slots_and_flushes_are_counted() -> None:
    async def tell(desk: Desk) -> None:
        desk.gate.open()
        async with desk.running():
            for _ in range(3):
                desk.add()
                desk.add()
                await desk.writer.flush()

    desk = story(tell)
    metrics = desk.writer.metrics
    assert (metrics.puts, metrics.slots, metrics.batches) == (3, 3, 6)
    assert metrics.bytes == sum(slot.size_bytes for slot in desk.durable)
    assert sum(metrics.put_seconds.counts) == 3
