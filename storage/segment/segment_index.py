"""A segment's footer in memory, and the byte ranges that hold given rows. Pure.

Bytes come in, rows go out. Arrow's errors for wrong bytes become CorruptObject.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tidelog.errors import CorruptObject, TidelogError
from tidelog.records.parse.row_arrays import integers_of
from tidelog.records.parse.varints import Integers
from tidelog.records.row_columns import MICROSECONDS_PER_MILLISECOND, ROW_SCHEMA
from tidelog.storage.object_store import Buffer, ByteRange
from tidelog.storage.segment.parquet_seal import check_chunks, chunk_places, open_footer, tail_bytes
from tidelog.storage.segment.segment import METADATA_KEY, SegmentIdentity, read_identity

RECORD_COLUMNS: Final = ("offset", "timestamp", "timestamp_type", "key", "value", "headers")
"""The columns that a consumer receives. They come first in a row group and form one range."""
TIME_COLUMNS: Final = ("offset", "timestamp")
UNDATED: Final = -1
"""Kafka's value for a missing timestamp."""
_NO_TIMESTAMP = -(2**63)
_NO_TIMESTAMP_MIN = 2**63 - 1
_FIELDS = {field.name: field for field in ROW_SCHEMA}


class SegmentIndex:
    """A segment's footer: row groups with their offsets, timestamps and byte ranges."""

    def __init__(self, key: str, size_bytes: int, tail: Buffer) -> None:
        """`tail`: the object's end, with seal and footer. CorruptObject, UnsupportedFormat."""
        self.key = key
        self.size_bytes = size_bytes
        self.tail_bytes = tail_bytes(key, tail)
        with _corruption(key, "its footer does not decode"):
            self._footer = open_footer(key, tail)
            self._metadata = self._footer.metadata
            description = (self._metadata.metadata or {}).get(METADATA_KEY)
        self.identity: SegmentIdentity = read_identity(key, description)
        with _corruption(key, "its footer lacks what a segment's has"):
            self._read_groups()

    @property
    def row_count(self) -> int:
        return int(self._rows.sum())

    @property
    def groups(self) -> int:
        """The number of row groups."""
        return len(self._rows)

    def group_at(self, offset: int) -> int | None:
        """The row group with the first row at or above an offset; None if all rows are below."""
        group = int(np.searchsorted(self._last_offsets, offset, "left"))
        return group if group < self.groups else None

    def group_of(self, offset: int) -> int:
        """The last row group that begins at or below an offset, else the first one."""
        return max(0, int(np.searchsorted(self._first_offsets, offset, "right")) - 1)

    def groups_between(
        self, start: int, end: int, since_ms: int | None = None, until_ms: int | None = None
    ) -> list[int]:
        """The row groups that may have rows at offsets [start, end) of times [since, until)."""
        wanted = (self._first_offsets < end) & (self._last_offsets >= start)
        if since_ms is not None:
            wanted &= self._timestamp_max >= since_ms * MICROSECONDS_PER_MILLISECOND
        if until_ms is not None:
            wanted &= self._timestamp_min < until_ms * MICROSECONDS_PER_MILLISECOND
        groups: list[int] = np.flatnonzero(wanted).tolist()
        return groups

    def runs(
        self, groups: Sequence[int], columns: Sequence[str], bytes_max: int | None = None
    ) -> list[tuple[int, int]]:
        """Ascending row groups as runs of neighbours (first, last), each at most `bytes_max` stored
        bytes of these columns, but one row group at least.
        """
        runs: list[tuple[int, int]] = []
        for group in groups:
            if runs and group == runs[-1][1] + 1:
                first = runs[-1][0]
                if bytes_max is None or self.byte_range(first, group, columns).length <= bytes_max:
                    runs[-1] = (first, group)
                    continue
            runs.append((group, group))
        return runs

    def groups_since(self, timestamp_ms: int, offset: int = 0) -> Sequence[int]:
        """The row groups that may have a row of `timestamp_ms` or later at or above `offset`,
        ascending.
        """
        late = self._timestamp_max >= timestamp_ms * MICROSECONDS_PER_MILLISECOND
        groups: list[int] = np.flatnonzero(late & (self._last_offsets >= offset)).tolist()
        return groups

    def timestamp_max_of(self, group: int) -> int:
        """The latest timestamp (ms) of a row group's rows; -1 if no row has one."""
        latest = int(self._timestamp_max[group])
        return UNDATED if latest == _NO_TIMESTAMP else latest // MICROSECONDS_PER_MILLISECOND

    def offsets_of(self, group: int) -> tuple[int, int]:
        """The offsets of a row group's first and last row."""
        return int(self._first_offsets[group]), int(self._last_offsets[group])

    def plain_bytes_of(self, group: int) -> int:
        """A row group's bytes before compression: about the size of its rows as batches."""
        return int(self._plain_bytes[group])

    def byte_range(
        self, first: int, last: int, columns: Sequence[str] = RECORD_COLUMNS
    ) -> ByteRange:
        """One range with these columns of the row groups `first` to `last`, inclusive."""
        wanted = self._chunks_of(columns)
        with _corruption(self.key, "its footer names places outside of it"):
            places = [
                self._places_of(group)[column] for group in (first, last) for column in wanted
            ]
            start, end = min(place[0] for place in places), max(place[1] for place in places)
            if not 0 <= start < end <= self.size_bytes:
                raise ValueError(f"bytes {start} to {end} of {self.size_bytes}")
        return ByteRange(start, end - start)

    def decode(
        self,
        first: int,
        last: int,
        start: int,
        data: Buffer,
        columns: Sequence[str] = RECORD_COLUMNS,
    ) -> list[pa.RecordBatch]:
        """The rows of these row groups, one batch each, from the bytes that begin at `start`.

        Checks the checksums, then that the offsets ascend and match the footer. CorruptObject.
        """
        held = _HeldBytes(self.size_bytes, start, data)
        schema = pa.schema([_FIELDS[name] for name in columns])
        for group in range(first, last + 1):
            check_chunks(self.key, self._footer, group, self._chunks_of(columns), start, data)
        with _corruption(self.key, "its rows do not decode"):
            file = pq.ParquetFile(
                pa.PythonFile(held, mode="r"),
                metadata=self._metadata,
                pre_buffer=False,
            )
            batches: list[pa.RecordBatch] = []
            for group in range(first, last + 1):
                table = file.read_row_group(group, columns=list(columns), use_threads=False)
                rows = _as_wanted(table, schema).combine_chunks()
                batches += rows.to_batches() or [pa.RecordBatch.from_pylist([], schema)]
                self._check_rows(group, batches[-1])
        return batches

    def _read_groups(self) -> None:
        metadata = self._metadata
        groups = range(metadata.num_row_groups)
        self._places: dict[int, list[tuple[int, int]]] = {}
        self._columns: dict[str, list[int]] = {}
        for index in range(metadata.num_columns):
            path = metadata.schema.column(index).path
            self._columns.setdefault(path.partition(".")[0], []).append(index)
        missing = [name for name in _FIELDS if name not in self._columns]
        if missing:
            raise CorruptObject(self.key, f"it has no column {missing[0]}")
        stats = [
            metadata.row_group(group).column(self._columns["offset"][0]).statistics
            for group in groups
        ]
        self._first_offsets = np.array([stat.min_raw for stat in stats], np.int64)
        self._last_offsets = np.array([stat.max_raw for stat in stats], np.int64)
        self._rows = np.array([metadata.row_group(group).num_rows for group in groups], np.int64)
        self._plain_bytes: Integers = np.array(
            [metadata.row_group(group).total_byte_size for group in groups], np.int64
        )
        times = [
            metadata.row_group(group).column(self._columns["timestamp"][0]).statistics
            for group in groups
        ]
        self._timestamp_min: Integers = np.array(
            [stat.min_raw if stat.has_min_max else _NO_TIMESTAMP_MIN for stat in times], np.int64
        )
        self._timestamp_max: Integers = np.array(
            [stat.max_raw if stat.has_min_max else _NO_TIMESTAMP for stat in times], np.int64
        )
        identity = self.identity
        bounds = np.stack([self._first_offsets, self._last_offsets], 1).ravel()
        ascending = (self._first_offsets[1:] > self._last_offsets[:-1]).all()
        if not len(bounds) or not ascending or (self._rows < 1).any():
            raise CorruptObject(self.key, "the offsets of its row groups do not ascend")
        if bounds[0] < identity.base_offset or bounds[-1] > identity.last_offset:
            raise CorruptObject(
                self.key,
                f"its rows from offset {bounds[0]} to {bounds[-1]} are not in the range"
                f" {identity.base_offset} to {identity.last_offset} that it says it covers",
            )

    def _places_of(self, group: int) -> list[tuple[int, int]]:
        """The byte range of each of a row group's columns."""
        places = self._places.get(group)
        if places is None:
            places = self._places[group] = list(chunk_places(self._metadata, group))
        return places

    def _chunks_of(self, columns: Sequence[str]) -> list[int]:
        """The chunk numbers of these columns; nested columns have several."""
        return [index for name in columns for index in self._columns[name]]

    def _check_rows(self, group: int, rows: pa.RecordBatch) -> None:
        offsets = integers_of(rows.column("offset"))
        first, last = self.offsets_of(group)
        if (
            len(offsets) != self._rows[group]
            or (offsets[0], offsets[-1]) != (first, last)
            or (offsets[1:] <= offsets[:-1]).any()
        ):
            raise CorruptObject(self.key, f"the rows of row group {group} are not as it says")


def first_row_since(
    rows: pa.RecordBatch, timestamp_ms: int, offset: int = 0
) -> tuple[int, int] | None:
    """Offset and timestamp (ms) of the first row at or above `offset` with a time of `timestamp_ms`
    or later.
    """
    stamps = integers_of(rows.column("timestamp"), _NO_TIMESTAMP)
    offsets = integers_of(rows.column("offset"))
    late = stamps >= timestamp_ms * MICROSECONDS_PER_MILLISECOND
    found = np.flatnonzero(late & (offsets >= offset))
    if not len(found):
        return None
    row = int(found[0])
    return int(offsets[row]), int(stamps[row]) // MICROSECONDS_PER_MILLISECOND


def latest_row(rows: pa.RecordBatch, offset: int) -> tuple[int, int] | None:
    """Offset and timestamp (ms) of the first row with the latest timestamp, at or above an offset.

    As in Kafka, a row without a timestamp has -1.
    """
    offsets = integers_of(rows.column("offset"))
    first = int(np.searchsorted(offsets, offset, "left"))
    undated = UNDATED * MICROSECONDS_PER_MILLISECOND
    stamps = integers_of(rows.column("timestamp"), undated)[first:]
    if not len(stamps):
        return None
    row = int(stamps.argmax())
    return int(offsets[first + row]), int(stamps[row]) // MICROSECONDS_PER_MILLISECOND


def _as_wanted(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """The schema's columns of a table, with the schema's types."""
    table = table.select(schema.names)
    if not table.schema.equals(schema):
        return table.cast(schema)
    # Only Parquet's field metadata differs. A cast would change nothing, cost some percent of the
    # read, and load all of Arrow's functions into the process.
    return pa.Table.from_arrays(table.columns, schema=schema)


@contextmanager
def _corruption(key: str, what: str) -> Iterator[None]:
    """Convert Arrow's errors for wrong bytes, and the errors they cause, to CorruptObject."""
    try:
        yield
    except TidelogError:
        raise
    except (pa.ArrowException, OSError, ValueError, TypeError, AttributeError, KeyError) as error:
        raise CorruptObject(key, f"{what}: {error}") from error


class _HeldBytes(io.RawIOBase):
    """A file with one byte range in memory; reads of other bytes raise OSError."""

    def __init__(self, size: int, start: int, data: Buffer) -> None:
        super().__init__()
        self._size = size
        self._start = start
        self._data = memoryview(data)
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def size(self) -> int:
        """The whole file's size, as Arrow requires."""
        return self._size

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        origin = (0, self._position, self._size)[whence]
        self._position = origin + offset
        return self._position

    def read(self, size: int = -1) -> Any:
        """A view of the held bytes; Arrow copies it if it must."""
        begin = self._position - self._start
        end = len(self._data) if size < 0 else begin + size
        if begin < 0 or end > len(self._data):
            raise OSError(f"bytes {self._position} to {self._start + end} were not read")
        self._position = self._start + end
        return self._data[begin:end]
