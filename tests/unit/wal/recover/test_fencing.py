"""Sealing a WAL: all sealers find the same end, and a zombie finds out by itself."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from tests.properties.wal.batches import (
    METADATA,
    batch,
    header,
    incarnation,
    of_newer_format,
    stamps,
    topic_partition,
)
from tests.properties.wal.worlds import Broker, World
from tests.simulation.world.loop import SimulatedLoop
from tidelog.errors import Fenced, UnsupportedFormat
from tidelog.identifiers import LeaderEpoch, Slot
from tidelog.storage.object_store import ByteRange, ObjectNotFound
from tidelog.storage.stores.faulty import FaultRates, StoreFault
from tidelog.wal.format.object_format import ObjectKind, decode_header, encode_header, wal_key
from tidelog.wal.recover.wal_end import BARRIERS, WalEnd, seal
from tidelog.wal.write.buffer import SlotBuffer
from tidelog.wal.write.checkpoint import checkpoint_key, encode_checkpoint
from tidelog.wal.write.slot_entries import BatchEntry

VICTIM = incarnation()
PARTITION = topic_partition(0)
IN_FLIGHT = 4


def story(tell: Callable[[World], Awaitable[None]], rates: FaultRates | None = None) -> None:
    """Run a story in virtual time."""
    with SimulatedLoop(3) as loop:
        world = World(loop, 3, rates)
        world.assign([PARTITION], VICTIM)

        async def told() -> None:
            await tell(world)

        loop.run(told(), seconds_max=10_000)


async def fence(world: World, told: int = 0) -> int:
    end = await seal(world.bucket, world.clock, world.entropy, VICTIM, IN_FLIGHT, Slot(told))
    assert not end.damaged
    return end.slot


async def kind(world: World, slot: int) -> ObjectKind | None:
    """The kind of the object in a slot."""
    key = wal_key(VICTIM, Slot(slot))
    try:
        return decode_header(key, (await world.bucket.get(key, ByteRange(0, 96))).data).kind
    except ObjectNotFound:
        return None


async def written(world: World, slots: int) -> Broker:
    """A broker that has written this many slots and stands still."""
    recovered = await world.recover(VICTIM)
    broker = Broker(world, 1, recovered.images)
    running = asyncio.create_task(broker.run())
    for _ in range(slots):
        await broker.produce(PARTITION)
    running.cancel()
    return broker


def test_a_wal_without_a_slot_ends_at_zero() -> None:
    async def tell(world: World) -> None:
        assert await fence(world) == 0
        assert await kind(world, 0) is ObjectKind.SEAL
        assert await fence(world) == 0

    story(tell)


def test_the_end_is_behind_the_last_slot_and_stays_there() -> None:
    async def tell(world: World) -> None:
        await written(world, 5)
        assert await fence(world) == 5
        assert await kind(world, 5) is ObjectKind.SEAL
        assert [await fence(world, told) for told in range(6)] == [5] * 6

    story(tell)


def test_slots_behind_a_hole_do_not_count() -> None:
    """Slot 4 has overtaken slot 3, which never arrives."""

    async def tell(world: World) -> None:
        await written(world, 3)
        buffer = SlotBuffer()
        data, head = batch()
        buffer.add(BatchEntry(PARTITION, LeaderEpoch(0), data, head, 4))
        stamped = header(4)._replace(stamps=stamps(3))
        await world.bucket.put(
            wal_key(VICTIM, Slot(4)),
            buffer.assemble(stamped, dict.fromkeys(buffer.tenures, 2)).data,
        )
        assert await fence(world) == 3
        assert await kind(world, 4) is ObjectKind.DATA

    story(tell)


@pytest.mark.parametrize("lost", [[0], [3], [1, 2], [0, 1, 2, 3], [0, 3]])
def test_a_lost_slot_is_not_the_end(lost: list[int]) -> None:
    """Later slots prove that the slot was confirmed."""

    async def tell(world: World) -> None:
        await written(world, 5)
        for slot in lost:
            await world.bucket.delete(wal_key(VICTIM, Slot(slot)))
        found = await seal(world.bucket, world.clock, world.entropy, VICTIM, IN_FLIGHT)
        assert found == WalEnd(Slot(5), tuple(map(Slot, lost)))
        assert await kind(world, lost[0]) is None
        assert await seal(world.bucket, world.clock, world.entropy, VICTIM, IN_FLIGHT) == found

    story(tell)


def test_the_last_slots_are_told_by_the_lease_alone() -> None:
    async def tell(world: World) -> None:
        await written(world, 5)
        for slot in (3, 4):
            await world.bucket.delete(wal_key(VICTIM, Slot(slot)))
        found = await seal(world.bucket, world.clock, world.entropy, VICTIM, IN_FLIGHT, Slot(5))
        assert found == WalEnd(Slot(5), (Slot(3), Slot(4)))

    story(tell)


def test_a_seal_in_the_place_of_a_confirmed_slot_is_damage_too() -> None:
    """The first release put a seal into the first hole that it found."""

    async def tell(world: World) -> None:
        await written(world, 5)
        header_of_seal = header(2)._replace(kind=ObjectKind.SEAL)
        await world.bucket.put(wal_key(VICTIM, Slot(2)), encode_header(header_of_seal))
        found = await seal(world.bucket, world.clock, world.entropy, VICTIM, IN_FLIGHT)
        assert found == WalEnd(Slot(5), (Slot(2),))

    story(tell)


def test_barriers_lie_ahead_of_a_writer_that_is_alive() -> None:
    async def tell(world: World) -> None:
        await written(world, 2)
        await fence(world)
        ahead = [2 + IN_FLIGHT * 4**power for power in range(1, BARRIERS + 1)]
        assert [await kind(world, slot) for slot in ahead] == [ObjectKind.SEAL] * BARRIERS
        assert await kind(world, 3) is None

    story(tell)


def test_a_zombie_that_writes_on_is_stopped_and_its_acknowledged_records_count() -> None:
    async def tell(world: World) -> None:
        images = (await world.recover(VICTIM)).images
        broker = Broker(world, 1, images)
        running = asyncio.create_task(broker.run())
        producer = asyncio.create_task(broker.keep_producing(PARTITION, 0.001))
        await world.clock.sleep(0.1)
        end = await world.seal(VICTIM, world.patient_store())
        await asyncio.gather(running, producer)
        assert isinstance(broker.ended_by, Fenced)
        assert broker.writer.durable_end <= end
        world.ends[VICTIM] = end
        image = (await world.recover()).images[PARTITION]
        assert image.next_offset >= world.truth.acknowledged_end(PARTITION) > 0

    story(tell)


def test_a_put_that_arrives_after_the_seal_changes_nothing() -> None:
    async def tell(world: World) -> None:
        broker = Broker(world, 1, (await world.recover(VICTIM)).images)
        running = asyncio.create_task(broker.run())
        await broker.produce(PARTITION)
        broker.store.pause()
        _, _, slot = broker.append(PARTITION)
        await world.clock.sleep(0.1)
        assert await fence(world) == slot
        broker.store.resume()
        await running
        assert isinstance(broker.ended_by, Fenced)
        assert await kind(world, slot) is ObjectKind.SEAL

    story(tell)


def test_an_object_that_does_not_decode_is_passed_by() -> None:
    """The slot is decided. Slots behind it may have been acknowledged."""

    async def tell(world: World) -> None:
        await written(world, 4)
        await world.bucket.put(wal_key(VICTIM, Slot(1)), b"rotten" * 100)
        assert await fence(world) == 4

    story(tell)


def test_an_object_of_a_newer_format_is_not_touched() -> None:
    async def tell(world: World) -> None:
        await written(world, 1)
        key = wal_key(VICTIM, Slot(0))
        await world.bucket.put(key, of_newer_format(bytes((await world.bucket.get(key)).data)))
        with pytest.raises(UnsupportedFormat, match="format 9"):
            await fence(world)

    story(tell)


def test_slots_that_a_newer_checkpoint_made_superfluous_are_no_end() -> None:
    """A sealing process scanned from slot 0 and stalled. The slots were deleted meanwhile."""

    async def tell(world: World) -> None:
        broker = await written(world, 6)
        image = broker.logs[PARTITION].image()
        data = encode_checkpoint(VICTIM, Slot(4), 0, METADATA, [image])
        await world.bucket.put(checkpoint_key(VICTIM, Slot(4)), data)
        for slot in range(4):
            await world.bucket.delete(wal_key(VICTIM, Slot(slot)))
        assert await fence(world) == 6

    story(tell)


def test_two_that_seal_at_once_through_a_bad_network_agree() -> None:
    async def tell(world: World) -> None:
        await written(world, 3)
        world.rates = FaultRates(request_lost=0.2, answer_lost=0.2, late=0.1, late_seconds_max=5)
        ends = await asyncio.gather(*(world.seal(VICTIM, world.patient_store()) for _ in range(3)))
        await world.settled()
        assert set(ends) == {3}
        assert await fence(world) == 3

    story(tell)


def test_a_lost_answer_to_the_seal_itself_is_read_back() -> None:
    async def tell(world: World) -> None:
        await written(world, 1)
        store = world.store()
        store.plan("put", StoreFault.ANSWER_LOST, key=wal_key(VICTIM, Slot(1)))
        assert await world.seal(VICTIM, store) == 1

    story(tell)
