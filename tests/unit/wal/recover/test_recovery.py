"""Recovery: where a partition's log begins, which entries follow, and the cost in requests."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from tests.properties.wal.batches import batch, incarnation, topic_partition
from tests.properties.wal.worlds import Broker, World
from tests.unit.wal.recover.lives import ends_at, life, slot_key, story
from tidelog.identifiers import LeaderEpoch, Slot, TopicPartition
from tidelog.storage.object_store import ByteRange, StoredObject, Suffix
from tidelog.storage.stores.memory import MemoryStore
from tidelog.wal.format.image_codec import encode_images
from tidelog.wal.format.slot_index import check_body
from tidelog.wal.log.extents import Extents
from tidelog.wal.log.image import PartitionImage
from tidelog.wal.log.partition_log import PartitionLog
from tidelog.wal.log.tenure import Tenure
from tidelog.wal.recover.recovery import recover
from tidelog.wal.write.checkpoint import checkpoint_key
from tidelog.wal.write.slot_entries import BatchEntry, LogStartEntry
from tidelog.workers.offload import InlineOffload

P = [topic_partition(number) for number in range(4)]
FIRST, SECOND, THIRD = incarnation(1), incarnation(2), incarnation(3)


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
        # Recovery does not read slots below the newest checkpoint.
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
    """The metadata log forgets tenures only when a later tenure has opened."""

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
            # The partition was given away and has come back, with records that others wrote
            # meanwhile.
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
            slot = broker.writer.add(LogStartEntry(P[0], log.leader_epoch, 3))
            await broker.writer.durable(slot)
            assert log.log_start == 3
        image = (await world.recover()).images[P[0]]
        assert (image.log_start, image.extents.base_offset, image.next_offset) == (3, 2, 6)

    story(tell)


class CountingStore(MemoryStore):
    """Counts requests and read bytes."""

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
            slot = broker.writer.add(BatchEntry(many[0], log.leader_epoch, data, head, place))
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
        # One get for the checkpoint, and one for the slot behind it.
        assert bucket.gets == 2
        assert bucket.bytes_read < 200_000

    story(tell)


class Compared(TopicPartition):
    """A partition's name that counts comparisons with it."""

    comparisons = 0

    def __eq__(self, other: object) -> bool:
        Compared.comparisons += 1
        return super().__eq__(other)

    __hash__ = TopicPartition.__hash__


def test_comparisons_grow_with_the_number_of_partitions_alone() -> None:
    async def tell(world: World) -> None:
        many = [Compared(*topic_partition(number)) for number in range(400)]
        tenures = {place: [Tenure(LeaderEpoch(0), FIRST, None)] for place in many}
        Compared.comparisons = 0
        recovered = await recover(
            world.bucket, world.clock, InlineOffload(), tenures, {}, opener=FIRST
        )
        assert len(recovered.images) == 400
        assert Compared.comparisons < 10 * 400

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
