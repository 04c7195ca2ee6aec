"""Recovery: where a log begins, what follows it, and whom damage harms."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace

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
from tests.simulation.loop import SimulatedLoop
from tidelog.errors import UnsupportedFormat
from tidelog.identifiers import LeaderEpoch, Slot
from tidelog.offload import InlineOffload
from tidelog.storage.object_store import Buffer, ByteRange, StoredObject, Suffix
from tidelog.storage.stores.memory import MemoryStore
from tidelog.wal.format.image_codec import encode_images
from tidelog.wal.format.object_format import ObjectKind, check_body, encode_header, wal_key
from tidelog.wal.log.extents import Extents
from tidelog.wal.log.image import PartitionImage
from tidelog.wal.log.partition_log import PartitionLog
from tidelog.wal.log.tenure import Tenure
from tidelog.wal.recover.recovery import Recovered, recover
from tidelog.wal.write.buffer import SlotBuffer
from tidelog.wal.write.checkpoint import checkpoint_key, encode_checkpoint

P = [topic_partition(number) for number in range(4)]
FIRST, SECOND, THIRD = incarnation(1), incarnation(2), incarnation(3)


def story(tell: Callable[[World], Awaitable[None]]) -> None:
    """Tell a story in virtual time. All partitions belong to the first incarnation."""
    with SimulatedLoop(7) as loop:
        world = World(loop, 7)
        world.assign(P, FIRST)

        async def told() -> None:
            await tell(world)

        loop.run(told(), seconds_max=10_000)


@asynccontextmanager
async def life(world: World, epoch: int = 1) -> AsyncIterator[Broker]:
    """An incarnation that begins with what is there, and is sealed at the end."""
    owner = incarnation(epoch)
    recovered = await world.recover(owner)
    assert not recovered.failures
    broker = Broker(world, epoch, recovered.images)
    running = asyncio.create_task(broker.run())
    yield broker
    running.cancel()
    world.ends[owner] = await world.seal(owner, world.bucket)


def slot_key(slot: int, epoch: int = 1) -> str:
    return wal_key(incarnation(epoch), Slot(slot))


async def damage(world: World, key: str) -> None:
    """Flip a bit near the end."""
    data = bytearray((await world.bucket.get(key)).data)
    data[-30] ^= 4
    await world.bucket.put(key, data)


def ends_at(recovered: Recovered) -> list[int | None]:
    """Each partition's next offset, None for those that failed."""
    return [None if p in recovered.failures else recovered.images[p].next_offset for p in P]


# Where a log begins.


def test_a_new_partition_begins_empty() -> None:
    async def tell(world: World) -> None:
        async with life(world):
            pass
        recovered = await world.recover()
        assert ends_at(recovered) == [0, 0, 0, 0]
        assert recovered.images[P[0]].leader_epoch == 0

    story(tell)


def test_a_log_begins_with_its_opening_image() -> None:
    async def tell(world: World) -> None:
        async with life(world) as broker:
            for number, records in enumerate((3, 2, 1)):
                await broker.produce(P[number], records)
            await broker.produce(P[0], 5)
        assert ends_at(await world.recover()) == [8, 2, 1, 0]

    story(tell)


def test_a_log_begins_with_the_newest_checkpoint() -> None:
    async def tell(world: World) -> None:
        async with life(world) as broker:
            await broker.produce(P[0], 3)
            await broker.checkpointer.checkpoint()
            await broker.produce(P[0], 2)
            await broker.checkpointer.checkpoint()
            await broker.produce(P[1], 4)
        # What lies below the newest checkpoint is not looked at.
        await world.bucket.delete(slot_key(0))
        await world.bucket.delete(slot_key(1))
        await world.bucket.delete(checkpoint_key(FIRST, Slot(1)))
        assert ends_at(await world.recover()) == [5, 4, 0, 0]

    story(tell)


def test_a_tenure_that_never_opened_leads_to_the_one_before() -> None:
    async def tell(world: World) -> None:
        async with life(world) as broker:
            await broker.produce(P[0], 3)
            await broker.produce(P[1], 2)
        world.assign(P, SECOND)
        async with life(world, 2) as broker:
            await broker.produce(P[0], 4)
        world.assign(P, THIRD)
        async with life(world, 3):
            pass
        recovered = await world.recover()
        assert ends_at(recovered) == [7, 2, 0, 0]
        assert [recovered.images[p].leader_epoch for p in P] == [1, 0, 0, 0]
        assert await world.read(recovered.images[P[0]]) == world.truth.acknowledged[P[0]]

    story(tell)


def test_a_tenure_that_was_given_begins_with_the_image_that_was_left() -> None:
    async def tell(world: World) -> None:
        async with life(world) as broker:
            await broker.produce(P[0], 3)
            image = broker.logs[P[0]].image()
            await world.bucket.put("handover/x", encode_images([image]))
        world.tenures[P[0]].append(Tenure(LeaderEpoch(1), SECOND, "handover/x"))
        world.ends[SECOND] = await world.seal(SECOND, world.bucket)
        assert ends_at(await world.recover()) == [3, 0, 0, 0]

    story(tell)


@pytest.mark.parametrize("left", [None, b"rotten", encode_images([])])
def test_an_image_that_was_left_and_is_no_good_harms_its_partition_alone(
    left: bytes | None,
) -> None:
    async def tell(world: World) -> None:
        async with life(world) as broker:
            await broker.produce(P[1])
        if left is not None:
            await world.bucket.put("handover/x", left)
        world.tenures[P[0]].append(Tenure(LeaderEpoch(1), SECOND, "handover/x"))
        world.ends[SECOND] = await world.seal(SECOND, world.bucket)
        recovered = await world.recover()
        assert ends_at(recovered) == [None, 1, 0, 0]
        assert recovered.failures[P[0]].key == "handover/x"

    story(tell)


def test_the_oldest_tenure_that_is_known_must_have_an_image() -> None:
    """The metadata log forgets tenures only when a later one has opened."""

    async def tell(world: World) -> None:
        async with life(world):
            pass
        world.tenures[P[0]] = [Tenure(LeaderEpoch(4), FIRST, None)]
        recovered = await world.recover()
        assert ends_at(recovered) == [None, 0, 0, 0]
        assert "wal/7-1/" in str(recovered.failures[P[0]])

    story(tell)


def test_entries_of_an_earlier_tenure_in_the_same_wal_are_left_out() -> None:
    async def tell(world: World) -> None:
        async with life(world) as broker:
            await broker.produce(P[0], 3)
            log = broker.logs[P[0]]
            # It was given away and has come back, with what others wrote meanwhile.
            image = replace(
                log.image(),
                leader_epoch=LeaderEpoch(2),
                next_offset=9,
                table_next=9,
                extents=Extents(),
            )
            broker.lead(PartitionLog.from_image(image))
            broker.opened.discard(P[0])
            await broker.produce(P[0], 1)
        world.tenures[P[0]].append(Tenure(LeaderEpoch(2), FIRST, "handover/x"))
        assert ends_at(await world.recover())[0] == 10

    story(tell)


def test_a_checkpoint_may_list_a_partition_that_opens_later() -> None:
    async def tell(world: World) -> None:
        async with life(world) as broker:
            await broker.checkpointer.checkpoint()
            await broker.produce(P[0], 2)
        assert ends_at(await world.recover())[0] == 2

    story(tell)


def test_a_later_log_start_is_recovered() -> None:
    async def tell(world: World) -> None:
        async with life(world) as broker:
            for _ in range(3):
                await broker.produce(P[0], 2)
            log = broker.logs[P[0]]
            assert log.set_log_start(3)
            assert log.log_start == 0
            slot = broker.writer.add_log_start(P[0], log.leader_epoch, 3)
            await broker.writer.durable(slot)
            assert log.log_start == 3
        image = (await world.recover()).images[P[0]]
        assert (image.log_start, image.extents.base_offset, image.next_offset) == (3, 2, 6)

    story(tell)


# Damage.


async def three_lives_in_one(world: World) -> None:
    """Slots 0: p0, 1: p0, 2: p1 opens, 3: p1, 4: p0."""
    async with life(world) as broker:
        for partition in (P[0], P[0], P[1], P[1], P[0]):
            await broker.produce(partition)
    assert ends_at(await world.recover()) == [3, 2, 0, 0]


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
def test_a_slot_that_is_gone_or_broken_harms_the_partitions_with_entries_in_it(
    slot: int, left: list[int | None], how: str
) -> None:
    """The slot behind it tells which those are. Behind the last slot there is none."""

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


def test_the_first_slot_behind_a_checkpoint_belongs_to_what_is_replayed() -> None:
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


def test_a_broken_checkpoint_harms_all_that_do_not_open_after_it() -> None:
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
        # A whole object of the right number and incarnation, but of another history.
        buffer = SlotBuffer()
        data, head = batch()
        buffer.add_batch(P[1], LeaderEpoch(0), data, head, 1)
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


# What is missing may have been deleted meanwhile (C7).


class ShiftingStore(MemoryStore):
    """At the first read of a slot a checkpoint appears and the slots below it are deleted."""

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


# Reading a WAL that is being written (G2).


def test_a_live_wal_ends_at_its_first_missing_slot() -> None:
    async def tell(world: World) -> None:
        await three_lives_in_one(world)
        world.ends.clear()
        recovered = await world.recover()
        assert ends_at(recovered) == [3, 2, 0, 0]
        assert recovered.ends == {FIRST: 5}
        # Slot 6 has overtaken slot 5, which is still on its way.
        await world.bucket.put(slot_key(6), overtaking(6, durable_end=5))
        recovered = await world.recover()
        assert ends_at(recovered) == [3, 2, 0, 0]
        assert recovered.ends == {FIRST: 5}

    story(tell)


def overtaking(slot: int, durable_end: int) -> Buffer:
    """A slot that was laid out when not all before it were durable."""
    buffer = SlotBuffer()
    data, head = batch()
    buffer.add_batch(P[0], LeaderEpoch(0), data, head, 3)
    stamped = header(slot)._replace(stamps=stamps(durable_end))
    return buffer.assemble(stamped, {(P[0], LeaderEpoch(0)): 4}).data


@pytest.mark.parametrize("told", [False, True])
def test_a_slot_that_was_confirmed_is_never_the_end_of_a_live_wal(told: bool) -> None:
    """Slots behind it tell that it was confirmed, or the lease does where there are none."""

    async def tell(world: World) -> None:
        await three_lives_in_one(world)
        world.ends.clear()
        lost = (4,) if told else (2,)
        for slot in lost:
            await world.bucket.delete(slot_key(slot))
        known = {FIRST: Slot(5)} if told else {}
        recovered = await world.recover(told=known)
        assert ends_at(recovered) == ([None] * 4 if told else [3, None, 0, 0])
        assert {failure.key for failure in recovered.failures.values()} == {slot_key(lost[0])}
        assert recovered.ends == {FIRST: 5}

    story(tell)


def test_several_slots_that_were_confirmed_and_are_lost() -> None:
    """Who is not proved to have had nothing in them is not served."""

    async def tell(world: World) -> None:
        await three_lives_in_one(world)
        world.ends.clear()
        for slot in (2, 3):
            await world.bucket.delete(slot_key(slot))
        recovered = await world.recover()
        assert ends_at(recovered) == [3, None, None, None]

    story(tell)


def test_slots_of_the_first_release_prove_nothing() -> None:
    async def tell(world: World) -> None:
        buffer = SlotBuffer()
        data, head = batch()
        buffer.add_batch(P[0], LeaderEpoch(0), data, head, 3)
        await world.bucket.put(slot_key(1), buffer.assemble(header(1)).data)
        recovered = await world.recover()
        assert ends_at(recovered) == [0, 0, 0, 0]

    story(tell)


def test_reading_a_live_wal_changes_nothing() -> None:
    async def tell(world: World) -> None:
        async with life(world) as broker:
            await broker.produce(P[0])
            world.ends.clear()
            await world.recover()
            await broker.produce(P[0])
            assert ends_at(await world.recover())[0] == 2

    story(tell)


# What it costs.


class CountingStore(MemoryStore):
    """Counts requests, and bytes that were read."""

    gets = 0
    bytes_read = 0

    async def get(self, key: str, byte_range: ByteRange | Suffix | None = None) -> StoredObject:
        found = await super().get(key, byte_range)
        self.gets += 1
        self.bytes_read += len(found.data)
        return found


def test_bodies_are_not_read_and_requests_do_not_grow_with_partitions() -> None:
    async def tell(world: World) -> None:
        bucket = CountingStore(world.clock)
        world.bucket = bucket
        many = [topic_partition(number) for number in range(500)]
        world.tenures.clear()
        world.assign(many, FIRST)
        images = {p: PartitionImage.empty(p, LeaderEpoch(0)) for p in many}
        broker = Broker(world, 1, images)
        running = asyncio.create_task(broker.run())
        for partition in many[:100]:
            broker.append(partition)
        data, head = batch(content=bytes(1_000_000))
        log = broker.logs[many[0]]
        for _ in range(3):
            place = log.append(head, 0).base_offset
            slot = broker.writer.add_batch(many[0], log.leader_epoch, data, head, place)
            await broker.writer.durable(slot)
        await broker.checkpointer.checkpoint()
        broker.append(many[0])
        await broker.writer.flush()
        running.cancel()
        world.ends[FIRST] = await world.seal(FIRST, bucket)
        bucket.gets = bucket.bytes_read = 0
        recovered = await recover(bucket, world.clock, InlineOffload(), world.tenures, world.ends)
        assert len(recovered.images) == 500
        assert recovered.images[many[0]].next_offset == 5
        # The checkpoint, and the one slot behind it.
        assert bucket.gets == 2
        assert bucket.bytes_read < 200_000

    story(tell)


def test_an_index_that_is_larger_than_the_first_read_is_read_in_full() -> None:
    async def tell(world: World) -> None:
        async with life(world) as broker:
            for _ in range(1_500):
                broker.append(P[0])
            await broker.writer.flush()
            key = slot_key(0)
            index = check_body(key, (await world.bucket.get(key)).data)
            assert index.layout.size - index.layout.index_position > 100_000
        assert ends_at(await world.recover())[0] == 1_500

    story(tell)


def test_the_clean_end_of_an_owner_needs_no_replay() -> None:
    async def tell(world: World) -> None:
        async with life(world) as broker:
            await broker.produce(P[0], 3)
            await broker.checkpointer.checkpoint()
            await broker.writer.close()
        await world.bucket.delete(slot_key(0))
        assert ends_at(await world.recover()) == [3, 0, 0, 0]

    story(tell)
