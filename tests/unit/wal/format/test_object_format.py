"""WAL objects: refused objects, and the names of their errors."""

from __future__ import annotations

import struct
from collections.abc import Mapping

import pytest
from awscrt.checksums import crc32c

from tests.properties.wal.batches import (
    EPOCH_0,
    batch,
    header,
    incarnation,
    of_newer_format,
    stamps,
    topic_partition,
)
from tidelog.errors import CorruptObject, UnsupportedFormat
from tidelog.identifiers import Slot, TenureKey
from tidelog.records.batch import BatchHeader, checksum
from tidelog.wal.format.object_format import (
    FOOTER_END_BYTES,
    HEADER_BYTES,
    ObjectKind,
    decode_header,
    encode_header,
    identify,
    wal_key,
)
from tidelog.wal.format.slot_index import SlotIndex, check_body, decode_tail, tail_bytes
from tidelog.wal.log.entries import EntryKind
from tidelog.wal.write.buffer import AssembledSlot, SlotBuffer
from tidelog.wal.write.slot_entries import BatchEntry

KEY = wal_key(incarnation(), Slot(0))


def slot(
    batches: int = 3,
    *,
    stamped: bool = False,
    previous: Mapping[TenureKey, int] | None = None,
) -> AssembledSlot:
    buffer = SlotBuffer()
    for number in range(batches):
        data, head = batch(2)
        buffer.add(BatchEntry(topic_partition(number % 2), EPOCH_0, data, head, number))
    if not stamped:
        return buffer.assemble(header(0))
    previous = previous or dict.fromkeys(buffer.tenures, -1)
    return buffer.assemble(header(0)._replace(stamps=stamps(5)), previous)


def seal_bytes(number: int = 4) -> bytes:
    return encode_header(header(number)._replace(kind=ObjectKind.SEAL))


def test_a_seal_is_a_header_alone() -> None:
    data = seal_bytes()
    assert len(data) == HEADER_BYTES
    found = decode_tail(KEY, data, len(data))
    assert not isinstance(found, SlotIndex)
    assert (found.kind, found.slot) == (ObjectKind.SEAL, 4)
    assert tail_bytes(KEY, data, len(data)) == HEADER_BYTES


def test_the_writer_id_tells_objects_and_seals_apart() -> None:
    assert identify(slot().data) == header(0).writer_id
    assert identify(seal_bytes(9)) == header(9).writer_id
    with pytest.raises(CorruptObject):
        identify(b"something else entirely" * 10)


@pytest.mark.parametrize("stamped", [False, True])
@pytest.mark.parametrize("position", [8, -12])
def test_a_damaged_version_is_a_damaged_object(position: int, stamped: bool) -> None:
    for bit in range(32):
        data = bytearray(slot(stamped=stamped).data)
        data[position % len(data) + bit // 8] ^= 1 << bit % 8
        with pytest.raises(CorruptObject, match="checksum"):
            check_body(KEY, data)


def test_a_newer_format_is_named_with_both_versions() -> None:
    data = slot(stamped=True).data
    newer = of_newer_format(bytes(data))
    for read in (check_body, decode_header):
        with pytest.raises(UnsupportedFormat, match=r"format 9.*reads formats up to 2"):
            read(KEY, newer)


def test_stamps_come_back() -> None:
    previous = {(topic_partition(0), EPOCH_0): 3, (topic_partition(1), EPOCH_0): -1}
    before = (topic_partition(7), EPOCH_0)
    made = slot(stamped=True, previous={**previous, before: 4})
    found = check_body(KEY, made.data)
    assert found.header.stamps == stamps(5)
    assert [found.previous_slot(each) for each in (*previous, before)] == [3, -1, 4]
    assert found.previous_slot((topic_partition(9), EPOCH_0)) is None
    assert identify(made.data) == header(0).writer_id
    assert decode_header(KEY, made.data[:96]) == found.header
    assert [entry.partition for entry in found.entries()] == [0, 1, 0]


@pytest.mark.parametrize("place", range(64, 96))
def test_damaged_stamps_prove_nothing(place: int) -> None:
    data = bytearray(slot(stamped=True).data)
    data[place] ^= 0x10
    with pytest.raises(CorruptObject, match="stamps"):
        decode_header(KEY, data)


def test_damaged_batches_do_not_keep_the_index_from_being_read() -> None:
    data = bytearray(slot().data)
    data[HEADER_BYTES + 70] ^= 1
    found = decode_tail(KEY, data, len(data))
    assert isinstance(found, SlotIndex)
    assert len(found) == 3
    with pytest.raises(CorruptObject, match="record batches"):
        check_body(KEY, data)


def test_a_header_of_another_object_is_noticed() -> None:
    data = bytearray(slot().data)
    data[:HEADER_BYTES] = encode_header(header(1))
    with pytest.raises(CorruptObject, match="different objects"):
        check_body(KEY, data)


def test_a_header_without_anything_behind_it_is_no_object() -> None:
    data = bytes(slot().data[:HEADER_BYTES])
    with pytest.raises(CorruptObject, match="ends after its header"):
        decode_tail(KEY, data, len(data))


def test_an_object_of_another_size_than_its_footer_says_is_noticed() -> None:
    data = bytes(slot().data)
    with pytest.raises(CorruptObject, match="bytes"):
        decode_tail(KEY, data, len(data) + 5)


def test_a_batch_that_the_index_places_outside_the_bodies_is_noticed() -> None:
    data = bytearray(slot(1).data)
    size = len(data)
    found = decode_tail(KEY, data, size)
    assert isinstance(found, SlotIndex)
    # The last columns are position (8 bytes) and length (4) of the only entry; no strings follow.
    position = found.layout.images_position - 12
    struct.pack_into("<q", data, position, found.layout.index_position - 1)
    crc_position = size - FOOTER_END_BYTES + 28
    covered = bytes(data[found.layout.index_position : crc_position])
    struct.pack_into("<I", data, crc_position, crc32c(covered))
    with pytest.raises(CorruptObject, match="outside the bodies"):
        decode_tail(KEY, data, size)


def test_offsets_and_epochs_are_stamped_outside_the_checksum() -> None:
    made = slot()
    for entry in check_body(KEY, made.data).entries():
        stored = BatchHeader.parse(made.data, entry.position)
        assert stored.base_offset == entry.base_offset
        end = entry.position + entry.length
        assert stored.crc == checksum(made.data, entry.position, end)


def test_the_callers_bytes_are_left_alone() -> None:
    data, head = batch(2)
    given = bytearray(data)
    buffer = SlotBuffer()
    buffer.add(BatchEntry(topic_partition(0), EPOCH_0, given, head, 1_000))
    first, second = buffer.assemble(header(0)), buffer.assemble(header(0))
    assert given == data
    assert first.data == second.data


def test_the_index_keeps_the_order_of_appends_though_bodies_are_grouped() -> None:
    found = check_body(KEY, slot(5).data)
    entries = list(found.entries())
    assert [entry.base_offset for entry in entries] == [0, 1, 2, 3, 4]
    by_place = sorted(entries, key=lambda entry: entry.position)
    assert [entry.partition for entry in by_place] == [0, 0, 0, 1, 1]


def test_entries_of_some_tenures_only() -> None:
    found = check_body(KEY, slot(5).data)
    wanted = {(topic_partition(1), EPOCH_0)}
    assert [entry.base_offset for entry in found.entries(wanted)] == [1, 3]
    assert list(found.entries({(topic_partition(7), EPOCH_0)})) == []


def test_thousands_of_batches_in_one_slot() -> None:
    buffer = SlotBuffer()
    data, head = batch()
    for number in range(5_000):
        buffer.add(BatchEntry(topic_partition(number % 100), EPOCH_0, data, head, number // 100))
    made = buffer.assemble(header(0))
    found = check_body(KEY, made.data)
    assert len(found) == 5_000
    assert len(made.advances) == 100
    assert all(len(advance.extents) == 1 for advance in made.advances)
    assert {entry.kind for entry in found.entries()} == {EntryKind.BATCH}
