"""The metadata log proves itself: stamps show lost and replaced entries (rule C11)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.properties.wal.batches import EPOCH_0, batch, topic_partition
from tests.unit.coordinator.cluster.world import Broker, World, simulate, within
from tidelog.bucket.cluster_reader import ClusterReader
from tidelog.coordinator.cluster.log.leases import decode_lease, lease_key
from tidelog.coordinator.cluster.records.documents import checksum_of
from tidelog.coordinator.cluster.records.records import decode_entry, encode_entry
from tidelog.coordinator.cluster.records.settings import ClusterSettings
from tidelog.errors import CorruptObject, MissingObject
from tidelog.identifiers import BrokerId, MetadataStamp, Slot
from tidelog.wal.format.object_format import ObjectHeader, ObjectKind, SlotStamps, wal_key
from tidelog.wal.write.buffer import SlotBuffer
from tidelog.wal.write.checkpoint import checkpoint_key, encode_checkpoint
from tidelog.wal.write.slot_entries import BatchEntry
from tidelog.workers.offload import InlineOffload

SEVEN = BrokerId(7)


def entry_key(number: int) -> str:
    return f"cluster/log/{number:020d}.json"


def stamp_slot(world: World, broker: Broker, slot: int = 0) -> None:
    """A slot that the broker writes into its WAL now."""
    incarnation = broker.registered.incarnation
    stamps = SlotStamps(Slot(slot), broker.log.state.stamp)
    header = ObjectHeader(
        ObjectKind.DATA, incarnation, Slot(slot), 0, bytes(16), previous_crc=0, stamps=stamps
    )
    buffer = SlotBuffer()
    data, head = batch()
    buffer.add(BatchEntry(topic_partition(0), EPOCH_0, data, head, 0))
    assembled = buffer.assemble(header, dict.fromkeys(buffer.tenures, -1))
    world.place(wal_key(incarnation, Slot(slot)), bytes(assembled.data))


def stamp_checkpoint(world: World, broker: Broker) -> None:
    incarnation = broker.registered.incarnation
    data = encode_checkpoint(incarnation, Slot(3), 0, broker.log.state.stamp, [])
    world.place(checkpoint_key(incarnation, Slot(3)), data)


async def stamp_lease(world: World, broker: Broker) -> None:
    await within(broker.process, broker.keeper().renew())
    lease = decode_lease(lease_key(SEVEN), world.stored(lease_key(SEVEN)))
    assert lease.metadata == broker.log.state.stamp


async def dead_broker(world: World, stamped_by: str) -> int:
    """A broker that created a topic, left one stamp and died. Returns the number of the entry."""
    broker = await world.broker(7, world.process("a"))
    number = await broker.create("flights")
    if stamped_by == "lease":
        await stamp_lease(world, broker)
    elif stamped_by == "slot":
        stamp_slot(world, broker)
    elif stamped_by == "checkpoint":
        stamp_checkpoint(world, broker)
    broker.process.kill()
    return number


@pytest.mark.parametrize("stamped_by", ["lease", "slot", "checkpoint"])
def test_the_loss_of_the_newest_entry_is_noticed_if_a_later_stamp_exists(stamped_by: str) -> None:
    async def story(world: World) -> None:
        number = await dead_broker(world, stamped_by)
        await world.log(world.process("b"))
        world.remove(entry_key(number))
        before = world.keys("")
        with pytest.raises(MissingObject, match="Restore the object") as caught:
            await world.log(world.process("c"))
        assert caught.value.key == entry_key(number)
        assert world.keys("") == before

    simulate(story)


def test_without_a_stamp_the_newest_entry_is_lost_unseen() -> None:
    """The window that the documents describe: all entries since the last heartbeat's lease."""

    async def story(world: World) -> None:
        number = await dead_broker(world, "nothing")
        world.remove(entry_key(number))
        log = await world.log(world.process("b"))
        assert log.state.sequence == number - 1

    simulate(story)


@pytest.mark.parametrize("stamped_by", ["lease", "slot", "checkpoint"])
def test_an_entry_that_was_replaced_is_named(stamped_by: str) -> None:
    async def story(world: World) -> None:
        number = await dead_broker(world, stamped_by)
        entry = decode_entry(entry_key(number), world.stored(entry_key(number)))
        other = encode_entry(replace(entry, time_ms=entry.time_ms + 1))
        world.place(entry_key(number), other)
        with pytest.raises(CorruptObject, match="another entry") as caught:
            await world.log(world.process("b"))
        assert caught.value.key == entry_key(number)

    simulate(story)


def test_an_entry_that_follows_another_one_is_named() -> None:
    async def story(world: World) -> None:
        broker = await world.broker(7, world.process("a"))
        first = await broker.create("flights")
        await broker.create("delays")
        entry = decode_entry(entry_key(first), world.stored(entry_key(first)))
        world.place(entry_key(first), encode_entry(replace(entry, time_ms=entry.time_ms + 1)))
        with pytest.raises(CorruptObject, match="follows an entry with checksum") as caught:
            await world.log(world.process("b"))
        assert caught.value.key == entry_key(first + 1)

    simulate(story)


def test_a_process_that_had_applied_a_lost_entry_ends_when_another_takes_its_number() -> None:
    async def story(world: World) -> None:
        broker = await world.broker(7, world.process("a"))
        other = await world.broker(8, world.process("b"))
        number = await broker.create("flights")
        world.remove(entry_key(number))
        assert await other.create("delays") == number
        assert await other.create("arrivals") == number + 1
        with pytest.raises(CorruptObject, match="follows an entry with checksum"):
            await within(broker.process, broker.log.refresh())
        with pytest.raises(CorruptObject, match="follows an entry with checksum"):
            await broker.create("late")

    simulate(story)


def test_a_stamp_above_the_view_makes_a_reader_read_on() -> None:
    async def story(world: World) -> None:
        broker = await world.broker(7, world.process("a"))
        log = await world.log(world.process("b"))
        seen = log.state.sequence
        await broker.create("flights")
        await log.verify(broker.log.state.stamp, "cluster/lease/7.json")
        assert log.state.sequence == seen + 1

    simulate(story)


def test_entries_replaced_by_a_snapshot_are_not_compared() -> None:
    """The entries are deleted, so no process can compare them."""

    async def story(world: World) -> None:
        broker = await world.broker(7, world.process("a"), snapshot_interval_entries=10)
        early = broker.log.state.stamp
        while broker.log.state.sequence < 10:
            await broker.show_life()
        await world.process("clock").clock.sleep(1)
        for number in range(1, 10):
            world.remove(entry_key(number))
        log = await world.log(world.process("b"))
        await log.verify(early, "cluster/lease/7.json")
        kept = MetadataStamp(10, checksum_of(world.stored(entry_key(10))))
        await log.verify(kept, "cluster/lease/7.json")
        with pytest.raises(CorruptObject, match="another entry"):
            await log.verify(replace(kept, checksum=1), "cluster/lease/7.json")

    simulate(story)


def test_readers_compare_stamps_too() -> None:
    async def story(world: World) -> None:
        broker = await world.broker(7, world.process("a"))
        number = await broker.create("flights")
        reader = world.process("b")
        cluster = ClusterReader(
            world.store.of(reader), reader.clock, InlineOffload(), ClusterSettings()
        )
        await cluster.verify(broker.log.state.stamp, "wal/7-1/0.wal")
        world.remove(entry_key(number))
        anew = ClusterReader(
            world.store.of(reader), reader.clock, InlineOffload(), ClusterSettings()
        )
        with pytest.raises(MissingObject, match=r"wal/7-1/0\.wal was written when it had"):
            await anew.verify(broker.log.state.stamp, "wal/7-1/0.wal")

    simulate(story)
