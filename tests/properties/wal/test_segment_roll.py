"""Any mix of batches and transactions, in WAL objects of any size, becomes exactly the committed
records at their offsets. The range may be cut into any pieces and segments."""

from __future__ import annotations

import io
from collections.abc import Sequence
from uuid import UUID

import numpy as np
import pyarrow.parquet as pq
import pytest
from awscrt.checksums import crc32c
from hypothesis import given
from hypothesis import strategies as st

from tidelog.errors import CorruptObject
from tidelog.identifiers import TopicPartition
from tidelog.records.buffers import Buffer
from tidelog.records.compression import Compression
from tidelog.records.control import MarkerType, control_batch
from tidelog.records.records import NewRecord, encode_batch
from tidelog.records.row_columns import AbortedRange
from tidelog.wal.log.extents import Extent
from tidelog.wal.read.ordinals import OrdinalColumns, Ordinals
from tidelog.wal.read.verify import StoredBatches
from tidelog.wal.roll.segment_roll import RollProgress, SegmentRoll, scan

PLACE = TopicPartition(UUID(int=1), 0)
PADDING = 50


class Written:
    """A partition's log: the written batches, and the rows that a reader of the table must find."""

    def __init__(self) -> None:
        self.pieces: list[StoredBatches] = []
        self.ordinals: dict[str, Ordinals] = {}
        self.aborted: list[AbortedRange] = []
        self.next_offset = 0
        self.kept: list[tuple[int, bytes, int | None]] = []
        self._open: dict[int, tuple[int, int, list[tuple[int, bytes, int | None]]]] = {}
        self._object: list[tuple[bytes, int]] = []
        self._first = 0

    def add(self, producer: int, count: int, codec: Compression) -> None:
        """Producer 0 stands for no producer. The other producers write in transactions."""
        base = self.next_offset
        values = [b"%d" % (base + number) for number in range(count)]
        records = [NewRecord(value, None) for value in values]
        if producer:
            _, ordinal, rows = self._open.setdefault(producer, (base, base % 7, []))
            rows += [(base + n, value, ordinal) for n, value in enumerate(values)]
            data = encode_batch(
                records,
                base_offset=base,
                producer_id=producer,
                producer_epoch=1,
                base_sequence=0,
                is_transactional=True,
                compression=codec,
            )
        else:
            ordinal = -1
            self.kept += [(base + n, value, None) for n, value in enumerate(values)]
            data = encode_batch(records, base_offset=base, compression=codec)
        self._object.append((bytes(data), ordinal))
        self.next_offset += count

    def end(self, producer: int, commit: bool) -> None:
        """A marker, if a transaction is open."""
        opened = self._open.pop(producer, None)
        if opened is None:
            return
        first, ordinal, rows = opened
        if commit:
            self.kept += rows
        else:
            self.aborted.append(AbortedRange(producer, first, self.next_offset))
        data = bytearray(
            control_batch(
                MarkerType.COMMIT if commit else MarkerType.ABORT,
                producer_id=producer,
                producer_epoch=1,
                coordinator_epoch=0,
                timestamp=0,
            )
        )
        data[:8] = self.next_offset.to_bytes(8, "big")
        self._object.append((bytes(data), ordinal))
        self.next_offset += 1

    def cut(self) -> None:
        """Put the batches written since the last object into a WAL object."""
        if not self._object:
            return
        key = f"wal/{len(self.pieces)}"
        data = b"".join(body for body, _ in self._object)
        sizes = np.array([len(body) for body, _ in self._object], np.int64)
        positions = PADDING + np.cumsum(sizes) - sizes
        numbers = np.array([ordinal for _, ordinal in self._object], np.int64)
        last = self.next_offset - 1
        extent = Extent(self._first, last, 0, key, PADDING, len(data))
        self.pieces.append(StoredBatches(extent, data))
        self.ordinals[key] = Ordinals(positions, numbers)
        self._first, self._object = self.next_offset, []


@st.composite
def logs(draw: st.DrawFn) -> Written:
    written = Written()
    for _ in range(draw(st.integers(1, 30))):
        producer = draw(st.integers(0, 3))
        match draw(st.sampled_from(["add", "add", "end", "cut"])):
            case "add":
                codec = draw(st.sampled_from(list(Compression)))
                written.add(producer, draw(st.integers(1, 4)), codec)
            case "end":
                written.end(producer, draw(st.booleans()))
            case "cut":
                written.cut()
    for producer in (1, 2, 3):
        written.end(producer, draw(st.booleans()))
    written.cut()
    return written


def in_one_array(pieces: Sequence[StoredBatches], between: int) -> list[StoredBatches]:
    """The pieces as another process sends them: side by side, or with some bytes between them."""
    parts = [bytes(between) + piece.data for piece in pieces]
    whole = np.frombuffer(b"pickle" + b"".join(parts), np.uint8).copy()
    ends = 6 + np.cumsum([len(part) for part in parts])
    return [
        piece._replace(data=whole.data[end - piece.extent.length : end])
        for piece, end in zip(pieces, ends.tolist(), strict=True)
    ]


def taken_up(
    roll: SegmentRoll,
    written: Written,
    read: Sequence[StoredBatches],
    upper: int,
    aborted: Sequence[AbortedRange],
) -> RollProgress:
    """The batches as the roll takes them up: in a second step if transactional batches are among
    them."""
    found = roll.try_add(read, upper, aborted)
    if isinstance(found, RollProgress):
        return found
    ordinals = {key: written.ordinals[key] for key in sorted(found.transactional)}
    return roll.add(upper, aborted, OrdinalColumns.of(ordinals))


@given(
    logs(),
    st.lists(st.integers(1, 4)),
    st.integers(1, 4),
    st.integers(0, 40),
    st.sampled_from([None, 0, 3]),
)
def test_the_table_gets_exactly_the_committed_records(
    written: Written,
    piece_sizes: list[int],
    pieces_a_segment: int,
    log_start: int,
    between: int | None,
) -> None:
    found: list[tuple[int, bytes, int | None]] = []
    offset, at, sizes = 0, 0, iter(piece_sizes)
    upper = written.next_offset
    while offset < upper:
        base, roll = offset, SegmentRoll(PLACE, offset, log_start)
        pieces: list[Buffer] = []
        for _ in range(pieces_a_segment):
            if offset >= upper:
                break
            count = next(sizes, 1)
            read = written.pieces[at : at + count]
            at += count
            touched = [
                each
                for each in written.aborted
                if each.last_offset >= offset and each.first_offset <= read[-1].extent.last_offset
            ]
            if between is not None:
                read = in_one_array(read, between)
            progress = taken_up(roll, written, read, upper, touched)
            pieces += progress.pieces
            offset = progress.next_offset
        segment = roll.finish(offset, UUID(int=at))
        if segment is not None:
            name = segment.segment.name
            assert (name.base_offset, name.last_offset) == (base, offset - 1)
            data = b"".join((*pieces, *segment.pieces))
            assert segment.segment.size_bytes == len(data)
            assert segment.segment.crc32c == crc32c(data)
            found += [
                (row["offset"], row["value"], row["transaction"])
                for row in pq.read_table(io.BytesIO(data)).to_pylist()
            ]
    assert found == [row for row in sorted(written.kept) if row[0] >= log_start]


def test_neighbouring_pieces_are_not_copied() -> None:
    written = Written()
    for _ in range(3):
        written.add(0, 2, Compression.NONE)
        written.cut()
    sent = in_one_array(written.pieces, 0)
    found = scan(sent).buffer
    assert np.shares_memory(found, sent[0].data)
    assert bytes(found) == b"".join(piece.data for piece in written.pieces)
    apart = in_one_array(written.pieces, 1)
    assert not np.shares_memory(scan(apart).buffer, apart[0].data)
    assert bytes(scan(apart).buffer) == bytes(found)


def test_an_undecodable_piece_may_be_read_again_and_a_damaged_one_not() -> None:
    """Rows of the same batches may have been written already."""
    written = Written()
    written.add(0, 2, Compression.NONE)
    written.add(0, 2, Compression.GZIP)
    written.cut()
    (piece,) = written.pieces
    roll = SegmentRoll(PLACE, 0, 0)
    with pytest.raises(CorruptObject, match="checksum"):
        roll.try_add([piece._replace(data=piece.data[:-1] + b"?")], 4, [])
    found = roll.try_add([piece], 4, [])
    assert isinstance(found, RollProgress)
    assert found.next_offset == 4

    damaged = bytearray(piece.data)
    second = int(scan([piece]).positions[1])
    damaged[-10:] = bytes(10)
    damaged[second + 17 : second + 21] = crc32c(bytes(damaged[second + 21 :])).to_bytes(4, "big")
    roll = SegmentRoll(PLACE, 0, 0)
    for read in ([piece._replace(data=bytes(damaged))], [piece]):
        with pytest.raises(CorruptObject, match="wal/0"):
            roll.try_add(read, 4, [])


@given(logs(), st.data())
def test_a_range_that_ends_within_an_object_is_gone_on_from(
    written: Written, data: st.DataObject
) -> None:
    """This happens if a transaction was open when the first roll was made."""
    bounds = {0, written.next_offset}
    for piece in written.pieces:
        bounds |= set(scan([piece]).headers["base_offset"].tolist())
    middle = data.draw(st.sampled_from(sorted(bounds)))
    found = []
    for base, upper in ((0, middle), (middle, written.next_offset)):
        pieces = [
            piece
            for piece in written.pieces
            if piece.extent.last_offset >= base and piece.extent.base_offset < upper
        ]
        if not pieces:
            continue
        roll = SegmentRoll(PLACE, base, 0)
        progress = taken_up(roll, written, pieces, upper, written.aborted)
        assert progress.next_offset == upper
        segment = roll.finish(upper, UUID(int=1))
        if segment is not None:
            file = io.BytesIO(b"".join((*progress.pieces, *segment.pieces)))
            found += [(row["offset"], row["value"]) for row in pq.read_table(file).to_pylist()]
    assert found == [(offset, value) for offset, value, _ in sorted(written.kept)]
