"""Checks a whole segment: its rows agree with its footer and its table."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from awscrt.checksums import crc32c

from tidelog.errors import CorruptObject
from tidelog.identifiers import TopicPartition
from tidelog.records.parse.row_arrays import integers_of
from tidelog.records.row_columns import MICROSECONDS_PER_MILLISECOND, ROW_SCHEMA
from tidelog.storage.object_store import Buffer, ByteRange, ObjectStore
from tidelog.storage.segment.segment import Segment
from tidelog.storage.segment.segment_index import SegmentIndex
from tidelog.storage.segment.segment_reader import SegmentReader
from tidelog.workers.offload import Offload

READ_BYTES_MAX = 8 * 1024 * 1024
"""The bytes of one range, unless a single row group is larger."""
_COLUMNS = ROW_SCHEMA.names


async def check_segment(
    store: ObjectStore, offload: Offload, partition: TopicPartition, segment: Segment, *, deep: bool
) -> None:
    """Compare a segment's footer with its table, and if `deep` every byte and row.

    Raises ObjectNotFound and other StoreErrors, CorruptObject and UnsupportedFormat.
    """
    reader = await SegmentReader.open(store, offload, partition, segment)
    if not deep:
        return
    statistics, crc = await read_whole(store, offload, reader.index)
    statistics.compare(reader.index.key, segment)
    if crc != segment.crc32c:
        raise CorruptObject(reader.index.key, "it does not match the checksum in the table")


async def read_whole(
    store: ObjectStore, offload: Offload, index: SegmentIndex
) -> tuple[RowStatistics, int]:
    """The statistics of all rows of a segment, and the CRC-32C of the object.

    Reads a few MiB at a time. Raises the errors of `check_segment`.
    """
    statistics = RowStatistics()
    crc = position = 0
    for first, last, end in _pieces(index):
        data = await _read(store, index, position, end)
        crc = crc32c(data, crc)
        rows = await offload.run(index.decode, first, last, position, data, _COLUMNS)
        await offload.run(statistics.add, index.key, rows)
        position = end
    while position < index.size_bytes:
        end = min(index.size_bytes, position + READ_BYTES_MAX)
        crc = crc32c(await _read(store, index, position, end), crc)
        position = end
    return statistics, crc


class RowStatistics:
    """The statistics of rows, for comparison with a table. Pure."""

    def __init__(self) -> None:
        self._rows = self._undated = self._raw_bytes = 0
        self._first = self._last = -1
        self._timestamp_min: int | None = None
        self._timestamp_max: int | None = None

    def add(self, key: str, batches: list[pa.RecordBatch]) -> None:
        """Add rows. CorruptObject if their offsets do not ascend."""
        for rows in batches:
            offsets = integers_of(rows.column("offset"))
            if offsets[0] <= self._last or (offsets[1:] <= offsets[:-1]).any():
                raise CorruptObject(key, f"its rows after offset {self._last} do not ascend")
            self._first = int(offsets[0]) if self._rows == 0 else self._first
            self._last = int(offsets[-1])
            self._rows += rows.num_rows
            self._raw_bytes += sum(
                _bytes_in(array)
                for array in (rows.column("key"), rows.column("value"), *_headers(rows))
            )
            self._add_times(rows.column("timestamp"))

    def facts(self) -> dict[str, int | None]:
        """The statistics by the names of the fields of `Segment`."""
        return {
            "row_count": self._rows,
            "first_row": self._first,
            "last_row": self._last,
            "undated_rows": self._undated,
            "raw_bytes": self._raw_bytes,
            "timestamp_min": self._timestamp_min,
            "timestamp_max": self._timestamp_max,
        }

    def compare(self, key: str, segment: Segment) -> None:
        """CorruptObject, naming `key`, if the table differs."""
        wrong = [
            f"{name} is {found}, the table says {getattr(segment, name)}"
            for name, found in self.facts().items()
            if found != getattr(segment, name)
        ]
        if wrong:
            raise CorruptObject(key, "; ".join(wrong))

    def _add_times(self, column: pa.Array) -> None:
        self._undated += column.null_count
        extremes = pc.min_max(column.cast(pa.int64()))
        low, high = extremes["min"].as_py(), extremes["max"].as_py()
        if low is None:
            return
        low, high = low // MICROSECONDS_PER_MILLISECOND, high // MICROSECONDS_PER_MILLISECOND
        earliest, latest = self._timestamp_min, self._timestamp_max
        self._timestamp_min = low if earliest is None else min(low, earliest)
        self._timestamp_max = high if latest is None else max(high, latest)


def _headers(rows: pa.RecordBatch) -> list[pa.Array]:
    column = rows.column("headers")
    if column.null_count == len(column):
        return []
    structs = column.flatten()
    return [structs.field(index) for index in range(structs.type.num_fields)]


def _bytes_in(array: pa.Array) -> int:
    return int(np.int64(pc.sum(pc.binary_length(array)).as_py() or 0))


def _pieces(index: SegmentIndex) -> Iterator[tuple[int, int, int]]:
    """Runs of row groups: the first group, the last one, and the end of their bytes.

    Each run begins at the end of the one before, the first at the start of the file.
    """
    first, start = 0, 0
    for group in range(index.groups):
        end = _end_of(index, group)
        if group + 1 == index.groups or _end_of(index, group + 1) - start > READ_BYTES_MAX:
            yield first, group, end
            first, start = group + 1, end


def _end_of(index: SegmentIndex, group: int) -> int:
    wanted = index.byte_range(group, group, _COLUMNS)
    return wanted.start + wanted.length


async def _read(store: ObjectStore, index: SegmentIndex, start: int, end: int) -> Buffer:
    stored = await store.get(index.key, ByteRange(start, end - start))
    if len(stored.data) != end - start:
        raise CorruptObject(index.key, f"it ends before position {end}")
    return stored.data
