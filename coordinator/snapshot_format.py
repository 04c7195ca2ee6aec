"""Snapshots of coordinators' states: Parquet files that restore a machine exactly.

Other tools query each as a table. `docs/formats/state.md` has the columns.

    state/<internal topic>/<partition>/<next offset>.parquet

A snapshot at offset n is the machine's state after the log's records below n. It is a sequence of
records that bring an empty machine into that state (rule H6). So the format needs no knowledge of
the machine: it is compacted log. Pure. Both directions go in steps, so that a large state does not
block other users of the worker thread.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from tidelog.errors import CorruptObject, TidelogError, UnsupportedFormat
from tidelog.identifiers import LeaderEpoch, TopicId
from tidelog.records.buffers import Buffer
from tidelog.storage.segment.parquet_seal import SealedFile, check_chunks, open_footer, seal

STATE_PREFIX: Final = "state/"
SNAPSHOT_SUFFIX: Final = ".parquet"
OFFSET_DIGITS: Final = 20
FORMAT_VERSION: Final = 1
ROWS_A_STEP: Final = 16_384
"""Rows of a row group; a step of encoding or decoding takes tens of milliseconds."""

_METADATA_PREFIX: Final = "tidelog."

RecordT = TypeVar("RecordT")
RecordT_contra = TypeVar("RecordT_contra", contravariant=True)


class StateTable(Protocol[RecordT]):
    """The table form of one coordinator kind's records."""

    @property
    def name(self) -> str:
        """The table's name, such as tidelog.groups."""
        ...

    @property
    def schema(self) -> pa.Schema:
        """The columns of the newest version."""
        ...

    @property
    def descriptive(self) -> frozenset[str]:
        """Columns only for other tools: older snapshots lack them."""
        ...

    @property
    def added(self) -> frozenset[str]:
        """Columns that the first release did not write: they are null in its snapshots."""
        ...

    def rows(self, records: list[RecordT]) -> pa.RecordBatch:
        """The records as rows, in order."""
        ...

    def records(self, rows: pa.RecordBatch) -> Iterator[RecordT]:
        """The records of `rows`, which has the columns of `schema`, perhaps without the descriptive
        ones.

        Raises TidelogError or ValueError for rows that no record has.
        """
        ...


class SnapshotOrigin(NamedTuple):
    """The log of a snapshot: one partition in one cluster."""

    cluster_id: str
    topic: str
    topic_id: TopicId
    partition: int

    @property
    def prefix(self) -> str:
        """The key prefix of its snapshots."""
        return f"{STATE_PREFIX}{self.topic}/{self.partition}/"

    def key(self, next_offset: int) -> str:
        """The key of its snapshot at an offset."""
        return f"{self.prefix}{next_offset:0{OFFSET_DIGITS}d}{SNAPSHOT_SUFFIX}"

    def offset_in(self, key: str) -> int | None:
        """The offset in a snapshot's key; None if no snapshot has this key."""
        digits = key.removeprefix(self.prefix).removesuffix(SNAPSHOT_SUFFIX)
        if not (digits.isascii() and digits.isdigit()) or key != self.key(int(digits)):
            return None
        return int(digits)


class SnapshotPosition(NamedTuple):
    """The part of the log in a snapshot: all below `next_offset`."""

    next_offset: int
    leader_epoch: LeaderEpoch
    """The leader epoch of the writing tenure, for people."""
    created_ms: int
    """The time of writing, for people."""


class SnapshotEncoder(Generic[RecordT]):
    """Encodes a captured state, one row group a step."""

    def __init__(
        self,
        table: StateTable[RecordT],
        origin: SnapshotOrigin,
        position: SnapshotPosition,
        records: Iterable[RecordT],
    ) -> None:
        self._table = table
        self._records = iter(records)
        self._sink = pa.BufferOutputStream()
        self._writer = pq.ParquetWriter(
            self._sink,
            table.schema,
            compression="zstd",
            compression_level=1,
            store_schema=False,
        )
        self._fields = _fields_of(table.name, origin, position)
        self.rows = 0

    def step(self) -> bool:
        """Encode some records; False when there are no more."""
        records = list(islice(self._records, ROWS_A_STEP))
        if records:
            self._writer.write_batch(self._table.rows(records), row_group_size=ROWS_A_STEP)
            self.rows += len(records)
        return len(records) == ROWS_A_STEP

    def finish(self) -> SealedFile:
        """The complete file. No step may follow."""
        fields = self._fields | _named({"rows": str(self.rows)})
        self._writer.add_key_value_metadata(fields)
        self._writer.close()
        return seal(memoryview(self._sink.getvalue()))


class SnapshotDecoder(Generic[RecordT]):
    """Reads a snapshot, one row group a step."""

    def __init__(
        self, table: StateTable[RecordT], origin: SnapshotOrigin, key: str, data: Buffer
    ) -> None:
        """Raises CorruptObject unless it is a whole snapshot of this origin under its own key.

        Raises UnsupportedFormat if a newer version of Tidelog wrote it.
        """
        self._table = table
        self._key = key
        self._data = data
        self._footer = open_footer(key, data)
        self._file = pq.ParquetFile(pa.BufferReader(data), metadata=self._footer.metadata)
        fields = _fields_in(self._file.metadata.metadata or {})
        _refuse_newer(key, fields)
        self.rows: int = self._file.metadata.num_rows
        self.position = _position_in(key, fields)
        expected = _fields_of(table.name, origin, self.position)
        expected |= _named({"rows": str(self.rows)})
        for name, value in expected.items():
            if fields.get(name) != value:
                raise CorruptObject(key, f"its {name} is {fields.get(name)!r}, not {value!r}")
        if origin.key(self.position.next_offset) != key:
            raise CorruptObject(key, f"it holds the state at offset {self.position.next_offset}")
        self._lacking = table.added.difference(self._file.schema_arrow.names)
        self._needed = self._columns_needed()
        self._group = 0

    def step(self) -> list[RecordT] | None:
        """The next records; None after the last. Raises CorruptObject."""
        if self._group == self._file.num_row_groups:
            return None
        columns = range(self._file.metadata.num_columns)
        check_chunks(self._key, self._footer, self._group, columns, 0, self._data)
        try:
            present = [name for name in self._needed.names if name not in self._lacking]
            found = self._file.read_row_group(
                self._group, columns=present, use_threads=False
            ).combine_chunks()
            rows = pa.RecordBatch.from_arrays(
                [
                    pa.nulls(found.num_rows, field.type)
                    if field.name in self._lacking
                    else found.column(field.name).combine_chunks()
                    for field in self._needed
                ],
                schema=self._needed,
            )
            rows.validate(full=True)
            records = list(self._table.records(rows))
        except (pa.ArrowException, OSError, ValueError, KeyError, TidelogError) as error:
            raise CorruptObject(
                self._key, f"row group {self._group} does not decode: {error}"
            ) from error
        self._group += 1
        return records

    def _columns_needed(self) -> pa.Schema:
        """The known columns without the descriptive ones; others come from later versions."""
        found = self._file.schema_arrow
        table = self._table
        needed = [field for field in table.schema if field.name not in table.descriptive]
        for field in needed:
            if field.name in self._lacking:
                continue
            index = found.get_field_index(field.name)
            if index < 0 or found.field(index).type != field.type:
                has = "no" if index < 0 else f"another ({found.field(index).type})"
                raise CorruptObject(self._key, f"it has {has} column {field.name}: {field.type}")
        return pa.schema(needed)


def _fields_of(table: str, origin: SnapshotOrigin, position: SnapshotPosition) -> dict[str, str]:
    return _named(
        {
            "format": table,
            "format.version": str(FORMAT_VERSION),
            "cluster": origin.cluster_id,
            "topic": origin.topic,
            "topic.id": str(origin.topic_id),
            "partition": str(origin.partition),
            "next.offset": str(position.next_offset),
            "leader.epoch": str(position.leader_epoch),
            "created.ms": str(position.created_ms),
        }
    )


def _named(fields: Mapping[str, str]) -> dict[str, str]:
    return {_METADATA_PREFIX + name: value for name, value in fields.items()}


def _fields_in(metadata: Mapping[bytes, bytes]) -> dict[str, str]:
    return {
        name.decode(errors="replace"): value.decode(errors="replace")
        for name, value in metadata.items()
    }


def _number(key: str, fields: Mapping[str, str], name: str) -> int:
    text = fields.get(_METADATA_PREFIX + name, "")
    if not text.removeprefix("-").isdecimal():
        raise CorruptObject(key, f"it says {_METADATA_PREFIX}{name} {text!r}, which is no number")
    return int(text)


def _refuse_newer(key: str, fields: Mapping[str, str]) -> None:
    version = _number(key, fields, "format.version")
    if version > FORMAT_VERSION:
        raise UnsupportedFormat(
            f"object {key} is of state snapshot format {version}; this version of Tidelog reads"
            f" format {FORMAT_VERSION}: use a newer one; nothing was changed"
        )


def _position_in(key: str, fields: Mapping[str, str]) -> SnapshotPosition:
    return SnapshotPosition(
        _number(key, fields, "next.offset"),
        LeaderEpoch(_number(key, fields, "leader.epoch")),
        _number(key, fields, "created.ms"),
    )
