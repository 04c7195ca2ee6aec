"""Merged objects: every batch as it was, under one key; and how a log finds them again."""

from __future__ import annotations

import pytest

from tests.properties.wal.batches import (
    assembled,
    batch,
    header,
    incarnation,
    marker,
    topic_partition,
)
from tidelog.errors import CorruptObject
from tidelog.identifiers import LeaderEpoch, TopicPartition
from tidelog.wal.format.merged_object import ExtentRun, MergedObject, MergeSource, assemble_merged
from tidelog.wal.format.object_format import ObjectKind, merged_key
from tidelog.wal.format.slot_index import SlotIndex, check_body
from tidelog.wal.log.entries import EntryKind
from tidelog.wal.log.extents import Extent
from tidelog.wal.log.image import PartitionImage
from tidelog.wal.log.partition_log import PartitionLog
from tidelog.wal.write.buffer import AssembledSlot, SlotBuffer
from tidelog.wal.write.slot_entries import BatchEntry, MarkerEntry, RelocatedEntry

A, B = topic_partition(0), topic_partition(1)
ZERO, ONE = LeaderEpoch(0), LeaderEpoch(1)


def three_slots() -> list[AssembledSlot]:
    """Partition A is in all slots, over two leader epochs, with a transaction. B is in the first
    slot."""
    slots = []
    for number in range(3):
        buffer = SlotBuffer()
        data, head = batch(2, content=b"of A %d" % number, producer=5, epoch=0, sequence=2 * number)
        buffer.add(BatchEntry(A, ONE if number else ZERO, data, head, 3 * number, ordinal=number))
        data, head = marker(5, 0)
        buffer.add(
            MarkerEntry(
                A,
                ONE if number else ZERO,
                data,
                head,
                3 * number + 2,
                ordinal=number,
                commit=True,
                coordinator_epoch=9,
            )
        )
        if number == 0:
            data, head = batch(1, content=b"of B")
            buffer.add(BatchEntry(B, ZERO, data, head, 0))
        slots.append(assembled(buffer, header(number)))
    return slots


def extents_in(slots: list[AssembledSlot], partition: TopicPartition) -> list[Extent]:
    return [
        extent
        for slot in slots
        for advance in slot.advances
        if advance.partition == partition
        for extent in advance.extents
    ]


def merged_of(slots: list[AssembledSlot], *partitions: TopicPartition) -> MergedObject:
    data = {slot.key: slot.data for slot in slots}
    runs = []
    for partition in partitions:
        sources = [
            MergeSource(e, data[e.key][e.position : e.position + e.length])
            for e in extents_in(slots, partition)
        ]
        runs.append(ExtentRun(partition, sources))
    indexes = {slot.key: check_body(slot.key, slot.data) for slot in slots}
    return assemble_merged(incarnation(), 6, bytes(16), runs, indexes)


def test_batches_and_their_rows_are_as_they_were() -> None:
    slots = three_slots()
    merged = merged_of(slots, A, B)
    assert merged.key == merged_key(incarnation(), 6)
    data = b"".join(merged.pieces)
    index = check_body(merged.key, data)
    assert (index.header.kind, index.header.slot) == (ObjectKind.MERGED, 6)
    assert index.header.created_ms == min(
        check_body(slot.key, slot.data).header.created_ms for slot in slots
    )
    for partition, moved in merged.moved:
        before = b"".join(
            slot.data[e.position : e.position + e.length]
            for slot in slots
            for e in extents_in([slot], partition)
        )
        assert data[moved.position : moved.position + moved.length] == before
    entries = {
        (e.topic_partition, e.base_offset): e._replace(key="", position=0, crc=-1)
        for slot in slots
        for e in check_body(slot.key, slot.data).entries()
    }
    copied = {
        (e.topic_partition, e.base_offset): e._replace(key="", position=0) for e in index.entries()
    }
    assert copied == entries


def test_an_index_that_does_not_list_a_copied_extent_is_named() -> None:
    slots = three_slots()
    (extent, *_) = extents_in(slots, A)
    index = check_body(slots[1].key, slots[1].data)
    with pytest.raises(CorruptObject, match="does not list") as caught:
        assemble_merged(
            incarnation(),
            0,
            bytes(16),
            [ExtentRun(A, [MergeSource(extent, bytes(extent.length))])],
            {extent.key: index},
        )
    assert caught.value.key == extent.key


def test_a_log_that_is_replayed_finds_its_batches_in_the_merged_object() -> None:
    """The owner takes the new places up at once. An heir takes them up when it replays the
    entry."""
    slots = three_slots()
    merged = merged_of(slots, A)
    owner = PartitionLog.from_image(PartitionImage.empty(A, ZERO))
    for slot in slots:
        for entry in check_body(slot.key, slot.data).entries([(A, ZERO), (A, ONE)]):
            owner.replay(entry, 0)
    heir = PartitionLog.from_image(owner.image())
    ((_, moved),) = merged.moved
    assert owner.relocate(moved)
    buffer = SlotBuffer()
    buffer.add(RelocatedEntry(A, ONE, moved))
    slot = assembled(buffer, header(3))
    assert slot.advances == ()
    index = check_body(slot.key, slot.data)
    assert isinstance(index, SlotIndex)
    (entry,) = index.entries()
    assert (entry.kind, entry.key) == (EntryKind.RELOCATED, merged.key)
    heir.replay(entry, 0)
    assert heir.image() == owner.image()
    assert list(heir.extents) == [moved]
    assert (heir.next_offset, heir.high_watermark) == (9, 9)


def test_batches_in_the_table_meanwhile_are_not_moved() -> None:
    slots = three_slots()
    ((_, moved),) = merged_of(slots, A).moved
    log = PartitionLog.from_image(PartitionImage.empty(A, ZERO))
    for slot in slots:
        for entry in check_body(slot.key, slot.data).entries([(A, ZERO), (A, ONE)]):
            log.replay(entry, 0)
    log.advance_table(9)
    assert not log.relocate(moved)
    assert list(log.extents) == []


def test_batches_that_are_not_durable_are_not_moved() -> None:
    log = PartitionLog.from_image(PartitionImage.empty(A, ZERO))
    with pytest.raises(ValueError, match="not durable"):
        log.relocate(Extent(0, 0, 0, merged_key(incarnation(), 0), 64, 1))
