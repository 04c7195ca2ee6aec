"""A checkpoint looks only at the partitions that changed, and not at the many others."""

from __future__ import annotations

import asyncio

from tests.properties.wal.batches import EPOCH_0, METADATA, batch, incarnation, topic_partition
from tests.properties.wal.worlds import Broker, World
from tests.simulation.world.loop import SimulatedLoop
from tidelog.identifiers import Slot
from tidelog.wal.log.extents import Extent, SlotEffect
from tidelog.wal.log.image import PartitionImage
from tidelog.wal.log.partition_log import PartitionLog
from tidelog.wal.write.checkpoint import checkpoint_key, decode_checkpoint, encode_checkpoint
from tidelog.wal.write.checkpoint_images import BLOCK_PARTITIONS, CheckpointImages

MANY = 1000


class Led:
    """The partitions of a broker. Appended batches are durable at once."""

    def __init__(self, count: int) -> None:
        self.images = CheckpointImages()
        self.logs = [
            PartitionLog.from_image(PartitionImage.empty(topic_partition(number), EPOCH_0))
            for number in range(count)
        ]
        for log in self.logs:
            log.watch(self)
            self.images.add(log)

    def changed(self, log: PartitionLog) -> None:
        self.images.changed(log)

    def producers_changed(self, log: PartitionLog, more: int) -> None:
        pass

    def append(self, number: int, *, durable: bool = True) -> None:
        log = self.logs[number]
        base = log.next_offset
        log.append(batch()[1], 0)
        if durable:
            extent = Extent(base, base, 0, f"wal/{number}-{base}", 64, 100)
            log.advance(SlotEffect(log.partition, EPOCH_0, (extent,), None))

    def checkpoint(self) -> dict[object, PartitionImage]:
        """The images in a checkpoint, which must equal those of the logs."""
        taken = self.images.take()
        others = [log.complete(image) for log, image in taken.others]
        data = encode_checkpoint(incarnation(), Slot(7), 0, METADATA, others, taken.settled)
        stored = list(decode_checkpoint(checkpoint_key(incarnation(), Slot(7)), data).images)
        found: dict[object, PartitionImage] = {image.partition: image for image in stored}
        assert len(found) == len(stored)
        return found

    def visited_by_checkpoint(self) -> int:
        """Take a checkpoint and check its images. Returns the number of partitions that it looked
        at."""
        before = self.images.visited
        found = self.checkpoint()
        present = [log for log in self.logs if log in self.images]
        assert found == {log.partition: log.image() for log in present}
        return self.images.visited - before


def test_idle_partitions_are_looked_at_twice_and_never_again() -> None:
    led = Led(MANY)
    for number in range(MANY):
        led.append(number)
    assert led.visited_by_checkpoint() == MANY
    assert led.visited_by_checkpoint() == MANY
    for _ in range(20):
        for number in (3, 500, 999):
            led.append(number)
        # The checkpoint looks at these three, at first at their blocks, and at the last, partial
        # block.
        assert led.visited_by_checkpoint() <= 4 * BLOCK_PARTITIONS
    assert led.visited_by_checkpoint() <= 2 * BLOCK_PARTITIONS


def test_a_partition_that_is_gone_asks_for_one_more_checkpoint() -> None:
    """Otherwise the objects that its image names are kept for as long as all other partitions are
    idle."""
    led = Led(BLOCK_PARTITIONS + 2)
    for _ in range(2):
        led.checkpoint()
    for number in (0, BLOCK_PARTITIONS + 1):
        led.images.discard(led.logs[number])
        assert led.images.have_changed
        assert led.logs[number].partition not in led.checkpoint()
        assert not led.images.have_changed
    led.images.discard(led.logs[0])
    assert not led.images.have_changed, "the partition was removed before"


def test_the_number_of_idle_partitions_makes_no_difference() -> None:
    visited = []
    for count in (4 * BLOCK_PARTITIONS, 40 * BLOCK_PARTITIONS):
        led = Led(count)
        led.visited_by_checkpoint()
        led.visited_by_checkpoint()
        total = 0
        for _ in range(10):
            led.append(5)
            led.append(70)
            total += led.visited_by_checkpoint()
        visited.append(total)
    assert visited[0] == visited[1]


def test_a_partition_that_changes_after_long_is_right_at_once() -> None:
    led = Led(3 * BLOCK_PARTITIONS)
    for _ in range(3):
        led.visited_by_checkpoint()
    led.append(17)
    image = led.checkpoint()[topic_partition(17)]
    assert (image.next_offset, image.extents.next_offset) == (1, 1)


def test_partitions_come_and_go() -> None:
    led = Led(3 * BLOCK_PARTITIONS)
    for _ in range(3):
        led.visited_by_checkpoint()
    for number in (0, 70, 71, 190):
        led.images.discard(led.logs[number])
        led.images.discard(led.logs[number])
    assert len(led.images) == 3 * BLOCK_PARTITIONS - 4
    led.visited_by_checkpoint()
    # A partition that has been removed may still get effects of earlier appends.
    led.append(70)
    assert len(led.checkpoint()) == 3 * BLOCK_PARTITIONS - 4
    led.images.add(led.logs[70])
    led.images.add(led.logs[70])
    assert len(led.checkpoint()) == 3 * BLOCK_PARTITIONS - 3


def test_an_image_that_is_not_durable_does_not_settle() -> None:
    led = Led(BLOCK_PARTITIONS)
    for number in range(BLOCK_PARTITIONS):
        led.append(number, durable=number != 5)
    for _ in range(3):
        taken = led.images.take()
        assert taken.settled == []
    log = led.logs[5]
    extent = Extent(0, 0, 0, "wal/5-0", 64, 100)
    log.advance(SlotEffect(log.partition, EPOCH_0, (extent,), None))
    led.visited_by_checkpoint()
    led.visited_by_checkpoint()
    assert len(led.images.take().settled) == 1


def test_a_broker_recovers_from_a_checkpoint_of_settled_partitions() -> None:
    partitions = [topic_partition(number) for number in range(BLOCK_PARTITIONS + 5)]
    with SimulatedLoop(5) as loop:
        world = World(loop, 5)
        world.assign(partitions, incarnation())

        async def told() -> None:
            broker = Broker(world, 1, (await world.recover(incarnation())).images)
            running = asyncio.create_task(broker.run())
            for partition in partitions:
                await broker.produce(partition, 2)
            for _ in range(4):
                await broker.produce(partitions[1])
                await broker.checkpointer.checkpoint()
            await broker.produce(partitions[2])
            await broker.writer.close()
            await running
            images = (await world.recover()).images
            assert [images[each].next_offset for each in partitions[:4]] == [2, 6, 3, 2]
            assert all(images[each].next_offset == 2 for each in partitions[4:])

        loop.run(told(), seconds_max=10_000)
