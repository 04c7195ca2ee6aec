"""Checkpoints begin with a slot, and are written when all slots below are durable."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Awaitable, Callable

import pytest
from awscrt.checksums import crc32c

from tests.properties.wal.batches import EPOCH_0, METADATA, batch, incarnation, topic_partition
from tests.properties.wal.worlds import Broker, World
from tests.simulation.world.loop import SimulatedLoop
from tidelog.errors import CorruptObject, UnsupportedFormat
from tidelog.identifiers import Slot
from tidelog.storage.object_store import StoreError
from tidelog.storage.stores.faulty import StoreFault
from tidelog.wal.format.image_codec import encode_images
from tidelog.wal.log.extents import Extent, SlotEffect
from tidelog.wal.log.image import PartitionImage
from tidelog.wal.log.partition_log import PartitionLog
from tidelog.wal.settings import WalSettings
from tidelog.wal.write.checkpoint import (
    CheckpointSchedule,
    checkpoint_key,
    decode_checkpoint,
    encode_checkpoint,
    list_checkpoints,
    newest_checkpoint,
)

PARTITIONS = [topic_partition(number) for number in range(3)]


def story(
    tell: Callable[[World, Broker], Awaitable[None]], settings: WalSettings | None = None
) -> None:
    """A broker runs, and is closed at the end."""
    with SimulatedLoop(5) as loop:
        world = World(loop, 5)
        world.assign(PARTITIONS, incarnation())

        async def told() -> None:
            images = (await world.recover(incarnation())).images
            broker = Broker(world, 1, images, settings)
            running = asyncio.create_task(broker.run())
            await tell(world, broker)
            await broker.writer.close()
            await running

        loop.run(told(), seconds_max=10_000)


async def stored(world: World, slot: int) -> dict[object, PartitionImage]:
    key = checkpoint_key(incarnation(), Slot(slot))
    found = decode_checkpoint(key, (await world.bucket.get(key)).data)
    return {image.partition: image for image in found.images}


def test_a_checkpoint_holds_all_below_its_slot_and_nothing_else() -> None:
    async def tell(world: World, broker: Broker) -> None:
        await broker.produce(PARTITIONS[0], records=3)
        broker.append(PARTITIONS[0], records=2)
        broker.store.pause()
        writing = asyncio.create_task(broker.checkpointer.checkpoint())
        await world.clock.sleep(0.001)
        # These records belong to the checkpoint's own slot, and become durable before it is
        # written.
        broker.append(PARTITIONS[0], records=10)
        broker.append(PARTITIONS[1], records=10)
        await world.clock.sleep(0.1)
        broker.store.resume()
        assert await writing == 2
        images = await stored(world, 2)
        assert set(images) == set(PARTITIONS)
        assert images[PARTITIONS[0]].next_offset == 5
        assert images[PARTITIONS[0]].extents.next_offset == 5
        assert images[PARTITIONS[1]].next_offset == 0

    story(tell)


def test_a_checkpoint_is_not_written_before_all_below_is_durable() -> None:
    async def tell(world: World, broker: Broker) -> None:
        broker.append(PARTITIONS[0])
        broker.store.pause()
        writing = asyncio.create_task(broker.checkpointer.checkpoint())
        await world.clock.sleep(5)
        assert await list_checkpoints(world.bucket, incarnation()) == []
        broker.store.resume()
        assert await writing == 1
        assert await newest_checkpoint(world.bucket, incarnation()) == 1

    story(tell)


def test_an_image_that_is_ahead_of_the_durable_end_is_refused() -> None:
    log = PartitionLog.from_image(PartitionImage.empty(PARTITIONS[0], EPOCH_0))
    _, head = batch()
    log.append(head, 0)
    with pytest.raises(ValueError, match="ahead of the durable end"):
        log.complete(log.image())


def test_a_checkpoint_equal_to_the_newest_is_not_written() -> None:
    async def tell(world: World, broker: Broker) -> None:
        assert await broker.checkpointer.checkpoint() == 0
        assert await broker.checkpointer.checkpoint() is None
        await broker.produce(PARTITIONS[0])
        assert await broker.checkpointer.checkpoint() == 1
        assert await broker.checkpointer.checkpoint() is None
        assert broker.checkpointer.metrics.written == 2
        assert await list_checkpoints(world.bucket, incarnation()) == [0, 1]

    story(tell)


def test_records_rolled_without_another_slot_are_in_the_next_checkpoint() -> None:
    """Otherwise an idle broker's checkpoint would name its WAL objects for ever."""

    async def tell(world: World, broker: Broker) -> None:
        await broker.produce(PARTITIONS[0], records=4)
        assert await broker.checkpointer.checkpoint() == 1
        assert not broker.checkpointer.has_changes
        broker.logs[PARTITIONS[0]].advance_table(4)
        assert broker.checkpointer.has_changes
        assert await broker.checkpointer.checkpoint() == 1
        image = (await stored(world, 1))[PARTITIONS[0]]
        assert (image.table_next, len(image.extents)) == (4, 0)
        assert not broker.checkpointer.has_changes
        assert await broker.checkpointer.checkpoint() is None

    story(tell)


def test_changes_of_a_failed_checkpoint_are_in_the_next_one_without_another_slot() -> None:
    """Otherwise an idle broker's checkpoint would name obsolete objects after an error of the
    store."""

    async def tell(world: World, broker: Broker) -> None:
        await broker.produce(PARTITIONS[0], records=4)
        assert await broker.checkpointer.checkpoint() == 1
        broker.logs[PARTITIONS[0]].advance_table(4)
        broker.store.plan("put", StoreFault.REFUSED)
        with pytest.raises(StoreError):
            await broker.checkpointer.checkpoint()
        assert broker.checkpointer.has_changes
        assert await broker.checkpointer.checkpoint() == 1
        assert (await stored(world, 1))[PARTITIONS[0]].table_next == 4
        assert not broker.checkpointer.has_changes
        assert await broker.checkpointer.checkpoint() is None

    story(tell)


def test_a_partition_that_was_given_away_meanwhile_is_left_out() -> None:
    async def tell(world: World, broker: Broker) -> None:
        broker.append(PARTITIONS[0])
        broker.store.pause()
        writing = asyncio.create_task(broker.checkpointer.checkpoint())
        await world.clock.sleep(0.1)
        broker.give_away(PARTITIONS[2])
        broker.store.resume()
        await writing
        assert set(await stored(world, 1)) == set(PARTITIONS[:2])

    story(tell)


def test_records_rolled_during_a_checkpoint_are_left_out_of_its_extents() -> None:
    async def tell(world: World, broker: Broker) -> None:
        await broker.produce(PARTITIONS[0], records=4)
        broker.append(PARTITIONS[0])
        broker.store.pause()
        writing = asyncio.create_task(broker.checkpointer.checkpoint())
        await world.clock.sleep(0.1)
        broker.logs[PARTITIONS[0]].advance_table(4)
        broker.store.resume()
        await writing
        image = (await stored(world, 2))[PARTITIONS[0]]
        assert (image.table_next, image.extents.base_offset, image.next_offset) == (4, 4, 5)

    story(tell)


def test_a_checkpoint_has_a_log_start_that_moved_meanwhile() -> None:
    """The extents below it are deleted, so the image must have the new log start."""
    log = PartitionLog.from_image(PartitionImage.empty(PARTITIONS[0], EPOCH_0))

    def durable(base: int, last: int, log_start: int | None = None) -> None:
        extent = Extent(base, last, 0, f"wal/{base}", 64, 100)
        log.advance(SlotEffect(PARTITIONS[0], EPOCH_0, (extent,), log_start))

    log.append(batch(4)[1], 0)
    durable(0, 3)
    log.append(batch(2)[1], 0)
    taken = log.image()
    log.set_log_start(4)
    durable(4, 5, log_start=4)
    image = log.complete(taken)
    assert image.fault() is None
    assert (image.log_start, image.extents.base_offset) == (4, 4)


def test_a_checkpoint_is_due_after_a_number_of_durable_bytes() -> None:
    async def tell(world: World, broker: Broker) -> None:
        for _ in range(40):
            await broker.produce(PARTITIONS[0])
        await world.clock.sleep(1)
        total = sum(slot.size_bytes for slot in broker.durable_slots)
        assert 0 < broker.checkpointer.metrics.written <= total / 3_000

    story(tell, WalSettings(checkpoint_interval_bytes=3_000))


def test_a_put_that_fails_is_tried_again() -> None:
    async def tell(world: World, broker: Broker) -> None:
        faults = (StoreFault.REFUSED, StoreFault.REQUEST_LOST, StoreFault.ANSWER_LOST)
        broker.store.plan("put", *faults, key=checkpoint_key(incarnation(), Slot(1)))
        await broker.produce(PARTITIONS[0])
        await world.clock.sleep(10)
        assert (broker.checkpointer.metrics.written, broker.checkpointer.metrics.failures) == (1, 3)

    story(tell, WalSettings(checkpoint_interval_bytes=1))


def test_the_caller_of_a_failed_checkpoint_is_told() -> None:
    async def tell(_: World, broker: Broker) -> None:
        broker.store.plan("put", StoreFault.REFUSED)
        with pytest.raises(StoreError):
            await broker.checkpointer.checkpoint()
        assert await broker.checkpointer.checkpoint() == 0

    story(tell)


def test_bytes_durable_during_a_checkpoint_count_towards_the_next() -> None:
    schedule = CheckpointSchedule(interval_bytes=100, interval_slots=1000)
    schedule.note(Slot(0), 80)
    schedule.note(Slot(1), 30)
    assert schedule.is_due
    assert schedule.take(Slot(3), has_changed=False)
    schedule.note(Slot(2), 500)
    schedule.note(Slot(3), 60)
    assert schedule.is_due
    schedule.written(0)
    assert not schedule.is_due
    schedule.note(Slot(4), 40)
    assert schedule.is_due
    assert not schedule.take(Slot(3), has_changed=False)


def test_a_checkpoint_under_a_wrong_name_or_of_a_newer_format_is_refused() -> None:
    key = checkpoint_key(incarnation(), Slot(3))
    data = bytearray(encode_checkpoint(incarnation(), Slot(3), 0, METADATA, []))
    assert len(decode_checkpoint(key, data).images) == 0
    with pytest.raises(CorruptObject, match="at slot 3"):
        decode_checkpoint(checkpoint_key(incarnation(), Slot(4)), data)
    for bit in range(32):
        damaged = bytearray(data)
        damaged[8 + bit // 8] ^= 1 << bit % 8
        with pytest.raises(CorruptObject, match="checksum"):
            decode_checkpoint(key, damaged)
    data[8] = 9
    data[40:44] = crc32c(bytes(data[:40])).to_bytes(4, "little")
    with pytest.raises(UnsupportedFormat, match=r"format 9.*reads formats up to 2"):
        decode_checkpoint(key, data)


def test_a_checkpoint_of_the_first_release_is_read() -> None:
    key = checkpoint_key(incarnation(), Slot(3))
    head = struct.pack("<8sIiqqq", b"TIDECKPT", 1, *incarnation(), 3, 0)
    old = head + crc32c(head).to_bytes(4, "little") + encode_images([])
    found = decode_checkpoint(key, old)
    assert (found.slot, found.metadata, len(found.images)) == (3, None, 0)
