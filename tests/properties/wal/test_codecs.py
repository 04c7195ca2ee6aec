"""Written values are read back equal; damaged ones are called corrupt, never taken for sound."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from awscrt.checksums import crc32c
from hypothesis import given
from hypothesis import strategies as st

from tests.properties.wal.batches import (
    METADATA,
    batch,
    header,
    incarnation,
    marker,
    stamps,
    topic_partition,
)
from tests.properties.wal.images import many_images
from tidelog.errors import CorruptObject, UnsupportedFormat
from tidelog.identifiers import LeaderEpoch, Slot, TopicId
from tidelog.records.batch import BatchHeader
from tidelog.wal.format.columns import table_bytes
from tidelog.wal.format.image_codec import Images, encode_images
from tidelog.wal.format.object_format import FOOTER_END_BYTES, ObjectHeader
from tidelog.wal.format.slot_index import SlotIndex, check_body, decode_tail, tail_bytes
from tidelog.wal.log.adoption import AdoptedBatch
from tidelog.wal.log.entries import COMMIT_FLAG, EntryKind, IndexEntry
from tidelog.wal.log.image import PartitionImage
from tidelog.wal.write.buffer import AssembledSlot, SlotBuffer
from tidelog.wal.write.checkpoint import checkpoint_key, decode_checkpoint, encode_checkpoint
from tidelog.wal.write.slot_entries import (
    AdoptedEntry,
    BatchEntry,
    LogStartEntry,
    MarkerEntry,
    OpeningEntry,
)

KINDS = st.sampled_from(["batch", "batch", "batch", "marker", "adopted", "log start"])


@st.composite
def slots(draw: st.DrawFn) -> tuple[AssembledSlot, list[IndexEntry], list[PartitionImage]]:
    """A slot, and the entries and opening images that went into it."""
    buffer, expected = SlotBuffer(), []
    opening = draw(many_images())
    for row, image in enumerate(opening):
        buffer.add(OpeningEntry(image))
        expected.append(
            placeless(
                EntryKind.OPENING, *image.partition, image.leader_epoch, image.next_offset, row
            )
        )
    offsets: dict[int, int] = {}
    for kind in draw(st.lists(KINDS, min_size=1, max_size=12)):
        number = draw(st.integers(0, 3))
        offset = offsets.get(number, draw(st.integers(0, 2**62)))
        expected.append(add(draw, buffer, kind, number, offset))
        if kind != "log start":
            offsets[number] = expected[-1].last_offset + 1
    if not draw(st.booleans()):
        return buffer.assemble(header(5, previous_crc=77)), expected, opening
    previous = {tenure: draw(st.integers(-1, 4)) for tenure in buffer.tenures}
    if draw(st.booleans()):
        previous[topic_partition(9), LeaderEpoch(0)] = 4
    stamped = header(5, previous_crc=77)._replace(stamps=stamps(draw(st.integers(0, 5))))
    return buffer.assemble(stamped, previous), expected, opening


def add(draw: st.DrawFn, buffer: SlotBuffer, kind: str, number: int, offset: int) -> IndexEntry:
    """Add an entry. Returns the entry that the reader should find, without the place of a body."""
    partition, epoch = topic_partition(number), LeaderEpoch(number)
    if kind == "log start":
        buffer.add(LogStartEntry(partition, epoch, offset))
        return placeless(EntryKind.LOG_START, *partition, epoch, offset, -1)
    ordinal = draw(st.integers(-1, 5))
    if kind == "marker":
        data, head = marker(draw(st.integers(0, 9)), 1, timestamp=draw(st.integers(0, 9)))
        commit = draw(st.booleans())
        buffer.add(MarkerEntry(
            partition, epoch, data, head, offset,
            ordinal=ordinal, commit=commit, coordinator_epoch=6,
        ))  # fmt: skip
        return described(EntryKind.BATCH, number, head, offset, ordinal, -1, 6, "own", 0)._replace(
            flags=head.attributes | (COMMIT_FLAG if commit else 0)
        )
    data, head = batch(
        draw(st.integers(1, 5)),
        producer=draw(st.integers(0, 9)),
        epoch=2,
        sequence=draw(st.integers(0, 2**31 - 1)),
        transactional=draw(st.booleans()),
        timestamp=draw(st.integers(-1, 9)),
        content=draw(st.binary(max_size=40)),
    )
    if kind == "adopted":
        key = draw(st.sampled_from(["staged/x", "staged/y"]))
        adopted = AdoptedBatch(
            head.attributes, head.last_offset_delta, head.base_timestamp, head.max_timestamp,
            head.producer_id, head.producer_epoch, head.record_count, key, 9, 100, head.crc,
        )  # fmt: skip
        buffer.add(AdoptedEntry(partition, epoch, adopted, offset, ordinal))
        entry = described(EntryKind.ADOPTED, number, head, offset, ordinal, -1, -1, key, 9)
        return entry._replace(length=100)
    buffer.add(BatchEntry(partition, epoch, data, head, offset, ordinal))
    first, last = head.base_sequence, head.last_sequence
    return described(EntryKind.BATCH, number, head, offset, ordinal, first, last, "own", 0)


def placeless(
    kind: EntryKind, topic: TopicId, partition: int, epoch: LeaderEpoch, offset: int, row: int
) -> IndexEntry:
    """The entry of something other than a batch."""
    unused = (-1, 0, -1, -1, -1, -1, -1, 0, -1, -1)
    return IndexEntry._make((kind, topic, partition, epoch, offset, *unused, "own", row, 0, 0))


def described(
    kind: EntryKind,
    number: int,
    head: BatchHeader,
    offset: int,
    ordinal: int,
    first: int,
    last: int,
    key: str,
    position: int,
) -> IndexEntry:
    """The entry of a batch."""
    return IndexEntry(
        kind, *topic_partition(number), LeaderEpoch(number), offset,
        offset + head.last_offset_delta, head.record_count, head.producer_id,
        head.producer_epoch, ordinal, first, last, head.attributes, head.base_timestamp,
        head.max_timestamp, key, position, head.size_bytes, head.crc,
    )  # fmt: skip


@given(slots())
def test_a_slot_is_read_back_as_it_was_filled(
    written: tuple[AssembledSlot, list[IndexEntry], list[PartitionImage]],
) -> None:
    slot, expected, opening = written
    found = check_body(slot.key, slot.data)
    assert found.header._replace(stamps=None) == header(5, previous_crc=77)
    assert found.crc == slot.crc
    for entry, wanted in zip(found.entries(), expected, strict=True):
        if entry.kind is EntryKind.BATCH:
            stored = BatchHeader.parse(slot.data, entry.position)
            assert stored.base_offset == entry.base_offset
            assert stored.leader_epoch == entry.leader_epoch
            assert stored.size_bytes == entry.length
            wanted = wanted._replace(position=entry.position)
        if found.header.stamps is None:
            wanted = wanted._replace(crc=-1)
        assert entry == (wanted._replace(key=slot.key) if wanted.key == "own" else wanted)
    assert list(found.images or ()) == opening


@given(slots())
def test_the_extents_of_a_slot_cover_its_batches(
    written: tuple[AssembledSlot, list[IndexEntry], list[PartitionImage]],
) -> None:
    slot, _, _ = written
    found = check_body(slot.key, slot.data)
    entries = list(found.entries())
    for advance in slot.advances:
        of_tenure = [
            e
            for e in entries
            if (e.topic_partition, e.leader_epoch) == (advance.partition, advance.leader_epoch)
        ]
        batches = [e for e in of_tenure if e.kind in (EntryKind.BATCH, EntryKind.ADOPTED)]
        covered = [o for x in advance.extents for o in range(x.base_offset, x.last_offset + 1)]
        assert covered == [o for e in batches for o in range(e.base_offset, e.last_offset + 1)]
        for extent in advance.extents:
            within = [
                e for e in batches if extent.base_offset <= e.base_offset <= extent.last_offset
            ]
            assert extent.max_timestamp == max(e.max_timestamp for e in within)
            assert extent.length == sum(e.length for e in within)
            if found.header.stamps is not None:
                assert extent.crc == crc32c(b"".join(e.crc.to_bytes(4, "big") for e in within))
            assert extent.position == within[0].position
            assert {e.key for e in within} == {extent.key}
            adoption = extent.adoption
            if within[0].kind is EntryKind.ADOPTED:
                assert adoption is not None
                (entry,) = within
                assert adoption == (
                    entry.producer_id,
                    entry.producer_epoch,
                    entry.ordinal,
                    entry.leader_epoch,
                )
            else:
                assert adoption is None
        starts = [e.base_offset for e in of_tenure if e.kind is EntryKind.LOG_START]
        assert advance.log_start == (starts[-1] if starts else None)


@given(slots(), st.data())
def test_the_end_of_an_object_is_enough_to_read_its_index(
    written: tuple[AssembledSlot, list[IndexEntry], list[PartitionImage]], data: st.DataObject
) -> None:
    slot, _, _ = written
    size = len(slot.data)
    read = data.draw(st.integers(FOOTER_END_BYTES, size))
    needed = tail_bytes(slot.key, slot.data[size - read :], size)
    found = decode_tail(slot.key, slot.data[size - needed :], size)
    assert isinstance(found, SlotIndex)
    assert list(found.entries()) == list(check_body(slot.key, slot.data).entries())


@given(slots(), st.data())
def test_any_damage_to_an_object_is_noticed(
    written: tuple[AssembledSlot, list[IndexEntry], list[PartitionImage]], data: st.DataObject
) -> None:
    slot, _, _ = written
    damaged = damage(bytes(slot.data), data)
    try:
        check_body(slot.key, damaged)
    except (CorruptObject, UnsupportedFormat):
        return
    raise AssertionError("damage went unnoticed")


@given(slots(), st.data())
def test_nonsense_with_a_right_checksum_is_called_corrupt(
    written: tuple[AssembledSlot, list[IndexEntry], list[PartitionImage]], data: st.DataObject
) -> None:
    slot, _, _ = written
    size = len(slot.data)
    changed = bytearray(slot.data)
    index = check_body(slot.key, slot.data).layout.index_position
    for _ in range(data.draw(st.integers(1, 3))):
        changed[data.draw(st.integers(index, size - FOOTER_END_BYTES - 1))] = data.draw(
            st.integers(0, 255)
        )
    # The writer made the mistake itself, so the checksums are right.
    crc_position = size - FOOTER_END_BYTES + 28
    covered = bytes(changed[index:crc_position])
    if slot_version(changed) > 1:
        covered += bytes(changed[crc_position + 4 : crc_position + 8])
    changed[crc_position : crc_position + 4] = crc32c(covered).to_bytes(4, "little")
    try:
        found = decode_tail(slot.key, changed, size)
        assert isinstance(found, SlotIndex)
        for entry in found.entries():
            assert entry.length >= 0
        list(found.images or ())
    except (CorruptObject, UnsupportedFormat):
        pass


def slot_version(data: bytes | bytearray) -> int:
    return int.from_bytes(data[-12:-8], "little")


@given(many_images())
def test_images_are_read_back_equal(images: list[PartitionImage]) -> None:
    assert list(Images("blob", encode_images(images))) == images


@given(many_images(), st.data())
def test_any_damage_to_images_is_noticed(images: list[PartitionImage], data: st.DataObject) -> None:
    damaged = damage(encode_images(images), data)
    try:
        list(Images("blob", damaged))
    except (CorruptObject, UnsupportedFormat):
        return
    raise AssertionError("damage went unnoticed")


@given(many_images(), st.data())
def test_images_of_a_writer_that_was_wrong_are_called_corrupt(
    images: list[PartitionImage], data: st.DataObject
) -> None:
    changed = bytearray(encode_images(images))
    for _ in range(data.draw(st.integers(1, 3))):
        changed[data.draw(st.integers(12, len(changed) - 5))] = data.draw(st.integers(0, 255))
    changed[-4:] = crc32c(bytes(changed[:-4])).to_bytes(4, "little")
    try:
        for image in Images("blob", changed):
            assert image.fault() is None
    except (CorruptObject, UnsupportedFormat):
        pass


@given(many_images(), st.data())
def test_any_damage_to_a_checkpoint_is_noticed(
    images: list[PartitionImage], data: st.DataObject
) -> None:
    key = checkpoint_key(incarnation(), Slot(3))
    stored = encode_checkpoint(incarnation(), Slot(3), 0, METADATA, images)
    assert list(decode_checkpoint(key, stored).images) == images
    damaged = damage(stored, data)
    try:
        list(decode_checkpoint(key, damaged).images)
    except (CorruptObject, UnsupportedFormat):
        return
    raise AssertionError("damage went unnoticed")


@given(st.binary(max_size=400))
def test_anything_else_is_no_wal_object(data: bytes) -> None:
    for decode in (
        lambda: decode_tail("key", data, len(data)),
        lambda: Images("key", data),
        lambda: decode_checkpoint("key", data),
    ):
        try:
            found = decode()
        except (CorruptObject, UnsupportedFormat):
            continue
        assert isinstance(found, ObjectHeader)


def damage(stored: bytes, data: st.DataObject) -> bytes:
    """A bit is flipped, the end is cut off, or bytes are added."""
    how = data.draw(st.sampled_from(["flip", "flip", "cut", "grow"]))
    if how == "cut":
        return stored[: data.draw(st.integers(0, len(stored) - 1))]
    if how == "grow":
        return stored + data.draw(st.binary(min_size=1, max_size=9))
    changed = bytearray(stored)
    changed[data.draw(st.integers(0, len(stored) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    return bytes(changed)


@given(
    st.lists(
        st.tuples(
            st.binary(min_size=16, max_size=16),
            *(
                st.integers(int(np.iinfo(kind).min), int(np.iinfo(kind).max))
                for kind in ("u1", "<u2", "<i2", "<u4", "<i4", "<i8")
            ),
        )
    )
)
def test_columns_equal_those_that_numpy_makes_of_a_table(
    rows: list[tuple[bytes | int, ...]],
) -> None:
    kinds = ("V16", "u1", "<u2", "<i2", "<u4", "<i4", "<i8")
    dtype = np.dtype([(kind, kind) for kind in kinds])
    table = np.array(rows, dtype) if rows else np.empty(0, dtype)
    assert b"".join(table_bytes(dtype, rows)) == b"".join(table[kind].tobytes() for kind in kinds)
    for position in range(1, len(kinds)):
        beyond = [0] * len(kinds)
        beyond[position] = int(np.iinfo(kinds[position]).max) + 1
        with pytest.raises(struct.error):
            table_bytes(dtype, [(bytes(16), *beyond[1:])])
