"""Damaged and missing slots harm the partitions that need them, and no other."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from tests.properties.wal.batches import (
    METADATA,
    batch,
    header,
    incarnation,
    of_newer_format,
    topic_partition,
)
from tests.properties.wal.worlds import World
from tests.unit.wal.recover.lives import ends_at, life, slot_key, story, three_lives_in_one
from tidelog.errors import UnsupportedFormat
from tidelog.identifiers import LeaderEpoch, Slot
from tidelog.storage.object_store import ByteRange, StoredObject, Suffix
from tidelog.storage.stores.memory import MemoryStore
from tidelog.wal.format.object_format import ObjectKind, encode_header
from tidelog.wal.log.image import PartitionImage
from tidelog.wal.log.partition_log import PartitionLog
from tidelog.wal.write.buffer import SlotBuffer
from tidelog.wal.write.checkpoint import checkpoint_key, encode_checkpoint
from tidelog.wal.write.slot_entries import BatchEntry

P = [topic_partition(number) for number in range(4)]
FIRST, SECOND, THIRD = incarnation(1), incarnation(2), incarnation(3)


async def damage(world: World, key: str) -> None:
    """Flip a bit near the end."""
    data = bytearray((await world.bucket.get(key)).data)
    data[-30] ^= 4
    await world.bucket.put(key, data)


@pytest.mark.parametrize(
    ("slot", "left"),
    [
        (0, [None, 2, 0, 0]),
        (1, [None, 2, 0, 0]),
        (2, [3, None, 0, 0]),
        (3, [3, None, 0, 0]),
        (4, [None, None, None, None]),
    ],
)
@pytest.mark.parametrize("how", ["missing", "broken"])
def test_a_slot_that_is_gone_or_broken_harms_the_partitions_of_its_entries(
    slot: int, left: list[int | None], how: str
) -> None:
    """The slot behind names those partitions. The last slot has none behind it."""

    async def tell(world: World) -> None:
        await three_lives_in_one(world)
        if how == "missing":
            await world.bucket.delete(slot_key(slot))
        else:
            await damage(world, slot_key(slot))
        recovered = await world.recover()
        assert ends_at(recovered) == left
        assert {failure.key for failure in recovered.failures.values()} == {slot_key(slot)}

    story(tell)


def test_recovery_needs_the_first_slot_behind_a_checkpoint() -> None:
    async def tell(world: World) -> None:
        async with life(world) as broker:
            await broker.checkpointer.checkpoint()
            await broker.produce(P[0])
            await broker.produce(P[1])
        await world.bucket.delete(slot_key(0))
        assert ends_at(await world.recover()) == [None, 1, 0, 0]

    story(tell)


def test_partitions_with_a_later_owner_are_not_harmed() -> None:
    async def tell(world: World) -> None:
        await three_lives_in_one(world)
        world.assign(P[:1], SECOND)
        async with life(world, 2) as broker:
            await broker.produce(P[0])
        await world.bucket.delete(slot_key(1))
        assert ends_at(await world.recover()) == [4, 2, 0, 0]

    story(tell)


def test_a_broken_checkpoint_harms_all_partitions_without_a_later_opening() -> None:
    async def tell(world: World) -> None:
        async with life(world) as broker:
            broker.give_away(P[1])
            await broker.produce(P[0])
            await broker.checkpointer.checkpoint()
            broker.lead(PartitionLog.from_image(PartitionImage.empty(P[1], LeaderEpoch(0))))
            await broker.produce(P[1], 6)
        await damage(world, checkpoint_key(FIRST, Slot(1)))
        recovered = await world.recover()
        assert ends_at(recovered) == [None, 6, None, None]
        assert recovered.failures[P[0]].key == checkpoint_key(FIRST, Slot(1))

    story(tell)


def test_a_slot_in_anothers_place_is_noticed() -> None:
    async def tell(world: World) -> None:
        await three_lives_in_one(world)
        data = (await world.bucket.get(slot_key(1))).data
        await world.bucket.put(slot_key(4), data)
        recovered = await world.recover()
        assert "it is slot 1" in str(recovered.failures[P[1]])

    story(tell)


def test_a_slot_that_does_not_continue_the_one_before_is_noticed() -> None:
    async def tell(world: World) -> None:
        await three_lives_in_one(world)
        # An intact object with the right number and incarnation, but of another history.
        buffer = SlotBuffer()
        data, head = batch()
        buffer.add(BatchEntry(P[1], LeaderEpoch(0), data, head, 1))
        await world.bucket.put(slot_key(3), buffer.assemble(header(3, previous_crc=1)).data)
        recovered = await world.recover()
        assert "does not continue" in str(recovered.failures[P[1]])

    story(tell)


def test_a_seal_below_the_end_is_noticed() -> None:
    async def tell(world: World) -> None:
        await three_lives_in_one(world)
        seal = encode_header(header(2)._replace(kind=ObjectKind.SEAL))
        await world.bucket.put(slot_key(2), seal)
        recovered = await world.recover()
        assert ends_at(recovered) == [3, None, 0, 0]
        assert "a seal lies in the place of records" in str(recovered.failures[P[1]])

    story(tell)


def test_a_newer_format_stops_everything() -> None:
    async def tell(world: World) -> None:
        await three_lives_in_one(world)
        data = bytes((await world.bucket.get(slot_key(2))).data)
        await world.bucket.put(slot_key(2), of_newer_format(data))
        with pytest.raises(UnsupportedFormat, match="format 9"):
            await world.recover()

    story(tell)


class ShiftingStore(MemoryStore):
    """At the first read of a slot, a checkpoint appears, and the slots below it are deleted."""

    shift: Callable[[], Awaitable[None]] | None = None

    async def get(self, key: str, byte_range: ByteRange | Suffix | None = None) -> StoredObject:
        if self.shift is not None and key.startswith("wal/"):
            shift, self.shift = self.shift, None
            await shift()
        return await super().get(key, byte_range)


@pytest.mark.parametrize("is_sealed", [True, False])
def test_slots_that_go_while_they_are_read_lead_to_the_newer_checkpoint(is_sealed: bool) -> None:
    async def tell(world: World) -> None:
        bucket = ShiftingStore(world.clock)
        world.bucket = bucket
        async with life(world) as broker:
            for partition in (P[0], P[0], P[1], P[1], P[0]):
                await broker.produce(partition)
            images = [log.image() for log in broker.logs.values()]
        if not is_sealed:
            world.ends.clear()

        async def shift() -> None:
            checkpoint = encode_checkpoint(FIRST, Slot(5), 0, METADATA, images)
            await bucket.put(checkpoint_key(FIRST, Slot(5)), checkpoint)
            for slot in range(5):
                await bucket.delete(slot_key(slot))

        bucket.shift = shift
        assert ends_at(await world.recover()) == [3, 2, 0, 0]

    story(tell)
