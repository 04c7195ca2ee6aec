"""Merged objects: live batches of many WAL objects, copied into one object. Pure.

The batches keep every byte and their index rows: offsets, epochs, transactions. A merged object has
the layout of a slot (`object_format`), its own magic and the key
`merged/<incarnation>/<number>.merged`. `docs/formats/wal.md` describes it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np
from awscrt.checksums import crc32c

from tidelog.errors import CorruptObject
from tidelog.identifiers import Incarnation, Slot, TenureKey, TopicPartition
from tidelog.records.batch import CRC_POSITION
from tidelog.storage.object_store import Buffer
from tidelog.wal.format.object_format import (
    OWN_OBJECT,
    PLAIN_INDEX_DTYPE,
    Layout,
    ObjectHeader,
    ObjectKind,
    encode_index,
    finish_object,
    merged_key,
)
from tidelog.wal.format.slot_index import SlotIndex
from tidelog.wal.log.entries import EntryKind
from tidelog.wal.log.extents import Extent

_NAMES: Final = PLAIN_INDEX_DTYPE.names or ()


class MergeSource(NamedTuple):
    """An extent to copy, and its verified bytes."""

    extent: Extent
    data: Buffer


class ExtentRun(NamedTuple):
    """Consecutive extents of one partition, which become one extent."""

    partition: TopicPartition
    sources: Sequence[MergeSource]


class MergedObject(NamedTuple):
    """A merged object, ready for its PUT, and the new extent of each run."""

    key: str
    pieces: Sequence[Buffer]
    size_bytes: int
    moved: Sequence[tuple[TopicPartition, Extent]]


def assemble_merged(
    incarnation: Incarnation,
    number: int,
    writer_id: bytes,
    runs: Sequence[ExtentRun],
    indexes: Mapping[str, SlotIndex],
) -> MergedObject:
    """Assemble the runs into one object. `indexes` holds the index of every source object.

    The merged object gets the time of its oldest source, since rolls by age use it. Raises
    CorruptObject for a source whose index does not list an extent's batches.
    """
    key = merged_key(incarnation, number)
    batches = {name: _Batches(index) for name, index in indexes.items()}
    row_count = 0
    first_rows: dict[str, int] = {}
    for name, index in indexes.items():
        first_rows[name] = row_count
        row_count += len(index)
    rows: list[int] = []
    shifts: list[int] = []
    tenures: dict[TenureKey, int] = {}
    references: list[int] = []
    bodies: list[Buffer] = []
    moved: list[tuple[TopicPartition, Extent]] = []
    created_ms = min(index.header.created_ms for index in indexes.values())
    header = ObjectHeader(
        ObjectKind.MERGED, incarnation, Slot(number), created_ms, writer_id, previous_crc=0
    )
    position = header.size_bytes
    for run in runs:
        first, last = run.sources[0].extent, run.sources[-1].extent
        start, crc = position, 0
        for extent, data in run.sources:
            source, first_row = batches[extent.key], first_rows[extent.key]
            found = source.rows_of(run.partition, extent)
            rows += [first_row + row for row in found]
            shifts += [position - extent.position] * len(found)
            references += [tenures.setdefault(source.tenure_of(row), len(tenures)) for row in found]
            places = [source.positions[row] - extent.position for row in found]
            crc = crc32c(_crcs_at(data, places), crc)
            bodies.append(data)
            position += len(data)
        latest = max(extent.max_timestamp for extent, _ in run.sources)
        place = Extent(
            first.base_offset, last.last_offset, latest, key, start, position - start, crc
        )
        moved.append((run.partition, place))
    columns = {
        name: np.concatenate([index.columns[name] for index in indexes.values()])[rows]
        for name in _NAMES
    }
    columns["partition"] = np.array(references, np.uint32)
    columns["object"] = np.full(len(rows), OWN_OBJECT, np.uint32)
    columns["position"] += np.array(shifts)
    index_bytes = encode_index(list(tenures), [columns[name].tolist() for name in _NAMES], [])
    end = position + len(index_bytes)
    head, foot = bytes(header.size_bytes), bytes(header.footer_bytes)
    data = bytearray().join((head, *bodies, index_bytes, foot))
    body_crc = crc32c(memoryview(data)[len(head) : position])
    finish_object(data, header, Layout(position, end, len(data)), body_crc)
    return MergedObject(key, (data,), len(data), moved)


def sources_of(runs: Iterable[ExtentRun]) -> set[str]:
    """The source objects of the runs."""
    return {source.extent.key for run in runs for source in run.sources}


def _crcs_at(data: Buffer, positions: Sequence[int]) -> bytes:
    """The checksums in the headers of the batches at these positions."""
    view = memoryview(data)
    return b"".join([view[at + CRC_POSITION : at + CRC_POSITION + 4] for at in positions])


class _Batches:
    """The batches that a source object's index lists."""

    def __init__(self, index: SlotIndex) -> None:
        self._tenures = index.tenures
        self._references: list[int] = index.columns["partition"].tolist()
        self._base_offsets: list[int] = index.columns["base_offset"].tolist()
        self._last_offsets: list[int] = index.columns["last_offset"].tolist()
        self.positions: list[int] = index.columns["position"].tolist()
        self._lengths: list[int] = index.columns["length"].tolist()
        self._rows: defaultdict[TopicPartition, list[int]] = defaultdict(list)
        own = np.flatnonzero(index.columns["kind"] == EntryKind.BATCH).tolist()
        for row in sorted(own, key=self._base_offsets.__getitem__):
            self._rows[self.tenure_of(row)[0]].append(row)

    def tenure_of(self, row: int) -> TenureKey:
        return self._tenures[self._references[row]]

    def rows_of(self, partition: TopicPartition, extent: Extent) -> list[int]:
        """The rows of an extent's batches, in offset order. Raises CorruptObject."""
        bytes_of_extent = range(extent.position, extent.position + extent.length)
        rows = [row for row in self._rows[partition] if self.positions[row] in bytes_of_extent]
        next_offset, length = extent.base_offset, 0
        for row in rows:
            if self._base_offsets[row] != next_offset:
                break
            next_offset = self._last_offsets[row] + 1
            length += self._lengths[row]
        if next_offset != extent.last_offset + 1 or length != extent.length:
            raise CorruptObject(
                extent.key,
                f"its index does not list the batches of {partition} from offset"
                f" {extent.base_offset} to {extent.last_offset}",
            )
        return rows
