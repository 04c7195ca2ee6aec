"""Merged objects: live batches of many WAL objects, copied into one object. Pure.

The batches keep every byte and their index rows: offsets, epochs, transactions. A merged object has
the layout of a slot (`object_format`), its own magic and the key
`merged/<incarnation>/<number>.merged`. `docs/formats/wal.md` describes it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np
from awscrt.checksums import crc32c
from numpy.typing import NDArray

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
    tenures: dict[TenureKey, int] = {}
    columns: list[dict[str, NDArray[np.generic]]] = []
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
            index = indexes[extent.key]
            rows = _rows_of(index, run.partition, extent)
            columns.append(_copied(index, rows, tenures, position - extent.position))
            places = index.columns["position"][rows] - extent.position
            crc = crc32c(_crcs_at(data, places.tolist()), crc)
            bodies.append(data)
            position += len(data)
        latest = max(extent.max_timestamp for extent, _ in run.sources)
        place = Extent(
            first.base_offset, last.last_offset, latest, key, start, position - start, crc
        )
        moved.append((run.partition, place))
    joined = [np.concatenate([each[name] for each in columns]).tolist() for name in _NAMES]
    index_bytes = encode_index(list(tenures), joined, [])
    end = position + len(index_bytes)
    head, foot = bytes(header.size_bytes), bytes(header.footer_bytes)
    data = bytearray().join((head, *bodies, index_bytes, foot))
    body_crc = crc32c(memoryview(data)[len(head) : position])
    finish_object(data, header, Layout(position, end, len(data)), body_crc)
    return MergedObject(key, (data,), len(data), moved)


def sources_of(runs: Iterable[ExtentRun]) -> set[str]:
    """The source objects of the runs."""
    return {source.extent.key for run in runs for source in run.sources}


def _rows_of(index: SlotIndex, partition: TopicPartition, extent: Extent) -> NDArray[np.intp]:
    """The rows of an extent's batches, in offset order."""
    columns = index.columns
    references = [n for n, (found, _) in enumerate(index.tenures) if found == partition]
    positions = columns["position"]
    rows = np.flatnonzero(
        (columns["kind"] == EntryKind.BATCH)
        & np.isin(columns["partition"], references)
        & (positions >= extent.position)
        & (positions < extent.position + extent.length)
    )
    rows = rows[np.argsort(columns["base_offset"][rows], kind="stable")]
    following = np.append(columns["base_offset"][rows][1:], extent.last_offset + 1)
    if (
        not len(rows)
        or columns["base_offset"][rows[0]] != extent.base_offset
        or (columns["last_offset"][rows] + 1 != following).any()
        or int(columns["length"][rows].sum()) != extent.length
    ):
        raise CorruptObject(
            extent.key,
            f"its index does not list the batches of {partition} from offset"
            f" {extent.base_offset} to {extent.last_offset}",
        )
    return rows


def _crcs_at(data: Buffer, positions: Sequence[int]) -> bytes:
    """The checksums in the headers of the batches at these positions."""
    view = memoryview(data)
    return b"".join([view[at + CRC_POSITION : at + CRC_POSITION + 4] for at in positions])


def _copied(
    index: SlotIndex,
    rows: NDArray[np.intp],
    tenures: dict[TenureKey, int],
    shift: int,
) -> dict[str, NDArray[np.generic]]:
    """The rows for the merged object's index."""
    columns: dict[str, NDArray[np.generic]] = {name: index.columns[name][rows] for name in _NAMES}
    numbers = [
        tenures.setdefault(index.tenures[reference], len(tenures))
        for reference in index.columns["partition"][rows].tolist()
    ]
    columns["partition"] = np.array(numbers, np.uint32)
    columns["object"] = np.full(len(rows), OWN_OBJECT, np.uint32)
    columns["position"] = index.columns["position"][rows] + shift
    return columns
