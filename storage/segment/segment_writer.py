"""Writes rows of one partition as a segment."""

from __future__ import annotations

import io
from array import array
from bisect import bisect_left
from typing import Any, Final, NamedTuple
from uuid import UUID

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from awscrt.checksums import combine_crc32c, crc32c

from tidelog.identifiers import TopicPartition
from tidelog.records.row_columns import MICROSECONDS_PER_MILLISECOND, ROW_SCHEMA
from tidelog.storage.object_store import Buffer, joined
from tidelog.storage.segment.parquet_seal import seal
from tidelog.storage.segment.segment import METADATA_KEY, Segment, SegmentName, describe

ROW_GROUP_BYTES = 4 * 1024 * 1024
"""Rows of a row group in memory, which a reader of one offset has to decode."""
ROW_GROUP_ROWS = 1 << 16
_ZSTD_LEVEL = 1
_DELTA_COLUMNS = ("offset", "timestamp")
# These columns have few distinct values, so a dictionary stores them almost for free.
_DICTIONARY_COLUMNS = (
    *("timestamp_type", "producer_id", "producer_epoch", "transaction"),
    "headers.list.element.key",
)


class WrittenSegment(NamedTuple):
    segment: Segment
    pieces: tuple[Buffer, ...]
    """The object's pieces after those already taken; store them unchanged."""


class _End(NamedTuple):
    """The rest of a finished and sealed file, and the properties of the whole file."""

    pieces: tuple[Buffer, ...]
    size_bytes: int
    tail_bytes: int
    crc32c: int


PIECE_BYTES_MIN: Final = 64 * 1024
"""Smaller writes are joined."""


class PieceSink(io.RawIOBase):
    """A file for Arrow to write to, as `pyarrow.PythonFile`.

    It keeps the written pieces as they are. A doubling buffer would hold the file up to three times
    while it moves, and would fragment the heap.
    """

    def __init__(self) -> None:
        super().__init__()
        self._pieces: list[Buffer] = []
        self._small: list[bytes] = []
        self._small_bytes = 0
        self._ends = array("q", [0])
        """The end of each write; 0 comes first."""
        self._crcs = array("L", [0])
        """CRC-32C of each write."""

    @property
    def size_bytes(self) -> int:
        return self._ends[-1]

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        """Append bytes. Arrow never changes the buffers that it passes."""
        piece = data if isinstance(data, bytes) else memoryview(data).cast("B")
        size = len(piece)
        if size:
            self._ends.append(self.size_bytes + size)
            # Compute it now, while the bytes are in the processor's cache.
            self._crcs.append(crc32c(piece))
        if size < PIECE_BYTES_MIN:
            self._small.append(bytes(piece))
            self._small_bytes += size
            if self._small_bytes < PIECE_BYTES_MIN:
                return size
        self._settle()
        if size >= PIECE_BYTES_MIN:
            self._pieces.append(piece)
        return size

    def take(self) -> list[Buffer]:
        """The pieces written since the last call, in order."""
        self._settle()
        taken, self._pieces = self._pieces, []
        return taken

    def crc32c(self, begin: int, end: int) -> int:
        """CRC-32C of bytes [begin, end) of the file, including taken pieces.

        ValueError unless the range consists of whole writes.
        """
        first, last = bisect_left(self._ends, begin), bisect_left(self._ends, end)
        is_known = begin <= end and last < len(self._ends)
        if not is_known or (self._ends[first], self._ends[last]) != (begin, end):
            raise ValueError(f"no writes begin at byte {begin} and end at byte {end}")
        crc = 0
        for index in range(first + 1, last + 1):
            size = self._ends[index] - self._ends[index - 1]
            crc = combine_crc32c(crc, self._crcs[index], size)
        return crc

    def _settle(self) -> None:
        if self._small:
            self._pieces.append(b"".join(self._small))
            self._small, self._small_bytes = [], 0


class SegmentWriter:
    """Collects rows in offset order; the file grows in memory by row groups.

    Memory holds the part of the file that is not taken yet, one row group of rows, and the rows of
    one `write`.
    """

    def __init__(self, topic_partition: TopicPartition, base_offset: int) -> None:
        """`base_offset`: the first offset that the segment covers."""
        self._topic_partition = topic_partition
        self._base_offset = base_offset
        self._next_offset = base_offset
        self._sink = PieceSink()
        self._writer = pq.ParquetWriter(
            pa.PythonFile(self._sink, mode="w"),
            ROW_SCHEMA,
            version="2.6",
            compression="zstd",
            compression_level=_ZSTD_LEVEL,
            use_dictionary=list(_DICTIONARY_COLUMNS),
            column_encoding=dict.fromkeys(_DELTA_COLUMNS, "DELTA_BINARY_PACKED"),
            write_statistics=list(_DELTA_COLUMNS),
            write_page_index=True,
            # Arrow's own schema would only repeat Parquet's.
            store_schema=False,
        )
        self._pending: list[pa.RecordBatch] = []
        self._pending_bytes = self._pending_rows = 0
        self._row_count = self._undated_rows = self._raw_bytes = self._tombstones = 0
        self._first_row = self._last_row = -1
        self._timestamp_min: int | None = None
        self._timestamp_max: int | None = None

    @property
    def size_bytes(self) -> int:
        """Bytes of the file so far, without pending rows."""
        return self._sink.size_bytes

    @property
    def row_count(self) -> int:
        """Rows written so far, with pending ones."""
        return self._row_count

    @property
    def raw_bytes(self) -> int:
        """Bytes of keys, values and headers written so far, with pending rows."""
        return self._raw_bytes

    def write(self, rows: pa.RecordBatch) -> None:
        """Add rows (ROW_SCHEMA), ascending by offset and above all earlier rows."""
        if not rows.num_rows:
            return
        offsets = rows.column("offset")
        first, last = offsets[0].as_py(), offsets[-1].as_py()
        if first < self._next_offset:
            raise ValueError(f"row at offset {first} is below {self._next_offset}")
        self._next_offset = last + 1
        self._first_row = self._first_row if self._row_count else first
        self._last_row = last
        self._note(rows)
        start = 0
        while start < rows.num_rows:
            count = self._room(rows, start)
            piece = rows.slice(start, count)
            self._pending.append(piece)
            self._pending_rows += count
            self._pending_bytes += piece.nbytes
            start += count
            if self._pending_bytes >= ROW_GROUP_BYTES or self._pending_rows >= ROW_GROUP_ROWS:
                self._flush()

    def take(self) -> tuple[Buffer, ...]:
        """The pieces of the file written since the last call."""
        return tuple(self._sink.take())

    def finish(self, next_offset: int, segment_id: UUID) -> WrittenSegment:
        """The segment, which covers all offsets below `next_offset`, with the rest of its file.

        ValueError if it has no rows: only the table records an empty range.
        """
        if not self._row_count or next_offset < self._next_offset:
            raise ValueError(
                f"{self._row_count} rows up to offset {self._next_offset} make no segment that ends"
                f" at {next_offset}"
            )
        self._flush()
        name = SegmentName(
            partition=self._topic_partition.partition,
            base_offset=self._base_offset,
            last_offset=next_offset - 1,
            id=segment_id,
        )
        description = describe(self._topic_partition, name.base_offset, name.last_offset)
        self._writer.add_key_value_metadata({METADATA_KEY: description})
        end = self._close()
        segment = Segment(
            name=name,
            size_bytes=end.size_bytes,
            row_count=self._row_count,
            first_row=self._first_row,
            last_row=self._last_row,
            undated_rows=self._undated_rows,
            raw_bytes=self._raw_bytes,
            timestamp_min=self._timestamp_min,
            timestamp_max=self._timestamp_max,
            crc32c=end.crc32c,
            tail_bytes=end.tail_bytes,
            tombstones=self._tombstones,
        )
        return WrittenSegment(segment, end.pieces)

    def _close(self) -> _End:
        """Finish and seal the file."""
        sink = self._sink
        pieces, size_before = sink.take(), sink.size_bytes
        self._writer.close()
        # Arrow begins and ends each column chunk with a write, so the sink knows its checksum.
        made = seal(joined(sink.take()), sink.crc32c)
        crc = sink.crc32c(0, size_before)
        for piece in made.pieces:
            crc = crc32c(piece, crc)
        size_bytes = size_before + made.size_bytes
        return _End((*pieces, *made.pieces), size_bytes, made.tail_bytes, crc)

    def _room(self, rows: pa.RecordBatch, start: int) -> int:
        """The number of rows that fit into the current row group: at least one."""
        left: int = rows.num_rows - start
        row_bytes: int = max(1, rows.nbytes // rows.num_rows)
        by_bytes = -(-(ROW_GROUP_BYTES - self._pending_bytes) // row_bytes)
        return max(1, min(left, by_bytes, ROW_GROUP_ROWS - self._pending_rows))

    def _flush(self) -> None:
        if not self._pending:
            return
        group = pa.Table.from_batches(self._pending, ROW_SCHEMA)
        self._pending = []
        self._pending_bytes = self._pending_rows = 0
        self._writer.write_table(group, row_group_size=group.num_rows)

    def _note(self, rows: pa.RecordBatch) -> None:
        self._row_count += rows.num_rows
        for name in ("key", "value"):
            self._raw_bytes += _content_bytes(rows.column(name))
        headers = rows.column("headers")
        if headers.null_count < len(headers):
            structs = headers.flatten()
            self._raw_bytes += sum(_content_bytes(structs.field(index)) for index in range(2))
        self._undated_rows += rows.column("timestamp").null_count
        self._tombstones += rows.column("value").null_count
        extremes = pc.min_max(rows.column("timestamp").cast(pa.int64()))
        low, high = extremes["min"].as_py(), extremes["max"].as_py()
        if low is None:
            return
        low, high = low // MICROSECONDS_PER_MILLISECOND, high // MICROSECONDS_PER_MILLISECOND
        earlier, later = self._timestamp_min, self._timestamp_max
        self._timestamp_min = low if earlier is None else min(earlier, low)
        self._timestamp_max = high if later is None else max(later, high)


def _content_bytes(array: pa.Array) -> int:
    return int(pc.sum(pc.binary_length(array)).as_py() or 0)
