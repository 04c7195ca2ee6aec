"""Bytes from the store must be an extent's batches. Otherwise they are refused with the object's
key."""

from __future__ import annotations

import pytest

from tidelog.errors import CorruptObject
from tidelog.records.batch import BatchHeader, stamp
from tidelog.records.records import NewRecord, encode_batch
from tidelog.wal.log.extents import Extent, crc_of_batch, grown_crc
from tidelog.wal.read.verify import verify

KEY = "wal/0-1/00000000000000000002.wal"


def batches(first: int, *records: int) -> tuple[Extent, bytes]:
    """An extent of batches with this many records each, and its bytes."""
    data, offset, crc = bytearray(), first, 0
    for count in records:
        batch = bytearray(encode_batch([NewRecord(value=b"v%d" % n) for n in range(count)]))
        stamp(batch, 0, offset, 3)
        header = BatchHeader.parse(batch)
        crc = grown_crc(crc, header.crc) if data else crc_of_batch(header.crc)
        data += batch
        offset += count
    return Extent(first, offset - 1, 0, KEY, 64, len(data), crc), bytes(data)


def test_batches_are_given_as_they_are_stored_with_their_places() -> None:
    extent, data = batches(40, 1, 2, 3)
    verified = verify(extent, data)
    assert verified.data is data
    bases = [BatchHeader.parse(data, at).base_offset for at in verified.positions]
    assert bases == [40, 41, 43]


def test_no_altered_byte_goes_unseen_but_the_leader_epoch() -> None:
    """As in Kafka, the checksum of a batch does not cover its leader epoch."""
    extent, data = batches(40, 2, 1)
    second = verify(extent, data).positions[1]
    epochs = {start + at for start in (0, second) for at in range(12, 16)}
    for position in set(range(len(data))) - epochs:
        altered = bytearray(data)
        altered[position] ^= 1
        with pytest.raises(CorruptObject, match=KEY):
            verify(extent, altered)


def test_an_object_that_ends_early_is_named() -> None:
    extent, data = batches(40, 2, 1)
    for size in range(len(data)):
        with pytest.raises(CorruptObject, match=f"{size} of {len(data)} bytes at position 64"):
            verify(extent, data[:size])


@pytest.mark.parametrize(
    "said",
    [{"base_offset": 39}, {"base_offset": 41}, {"last_offset": 41}, {"last_offset": 43}],
)
def test_whole_batches_of_other_offsets_are_refused(said: dict[str, int]) -> None:
    extent, data = batches(40, 2, 1)
    with pytest.raises(CorruptObject, match="expected"):
        verify(extent._replace(**said), data)


def test_other_batches_that_fit_into_the_place_are_refused() -> None:
    extent, _ = batches(40, 1, 1)
    other = bytearray(encode_batch([NewRecord(value=b"w0")]))
    stamp(other, 0, 40, 3)
    following = bytearray(encode_batch([NewRecord(value=b"v0")]))
    stamp(following, 0, 41, 3)
    data = bytes(other + following)
    assert len(data) == extent.length
    with pytest.raises(CorruptObject, match="but others"):
        verify(extent, data)
