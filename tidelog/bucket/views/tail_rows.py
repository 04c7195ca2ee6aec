"""The batches of a partition's tail as table rows. Pure.

Batches that are proved (`wal/read/verify`) are decoded by the code that makes segments of them: a
row reads the same before it is rolled and after.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from tidelog.errors import CorruptObject, TidelogError
from tidelog.identifiers import TopicPartition
from tidelog.records.batch import (
    CONTROL_FLAG,
    TRANSACTIONAL_FLAG,
    headers_of,
)
from tidelog.records.parse.row_arrays import integers_of
from tidelog.records.parse.varints import Booleans, Integers
from tidelog.records.row_columns import AbortedRange
from tidelog.records.rows.row_decoding import BatchHeaders, decode_rows
from tidelog.storage.object_store import Buffer
from tidelog.wal.format.object_format import SlotIndex
from tidelog.wal.log.adoption import adoption_of, object_key
from tidelog.wal.log.entries import COMMIT_FLAG, EntryKind
from tidelog.wal.log.extents import Extent
from tidelog.wal.read.verify import VerifiedBatches


class TailBatches(NamedTuple):
    """The batches of one extent: where each begins in its bytes, and its header."""

    positions: Integers
    headers: BatchHeaders

    @classmethod
    def of(cls, verified: VerifiedBatches) -> TailBatches:
        """The headers of batches that are proved."""
        positions = np.array(verified.positions, np.int64)
        return cls(positions, headers_of(verified.data, positions))

    @property
    def base_offsets(self) -> Integers:
        return self.headers["base_offset"].astype(np.int64)

    @property
    def last_offsets(self) -> Integers:
        return self.base_offsets + self.headers["last_offset_delta"].astype(np.int64)


class IndexedBatches(NamedTuple):
    """One partition's batches in one WAL object, as its index has them, by offset."""

    base_offsets: Integers
    producer_ids: Integers
    ordinals: Integers
    is_transactional: Booleans
    is_marker: Booleans
    is_commit: Booleans
    """Of markers."""


def index_batches(index: SlotIndex, partition: TopicPartition) -> IndexedBatches:
    """What a WAL object's index says of a partition's batches."""
    columns = index.columns
    tenures = [row for row, (found, _) in enumerate(index.tenures) if found == partition]
    placed = np.isin(columns["kind"], [EntryKind.BATCH, EntryKind.ADOPTED])
    rows = np.flatnonzero(placed & np.isin(columns["partition"], tenures))
    rows = rows[np.argsort(columns["base_offset"][rows], kind="stable")]
    flags = columns["flags"][rows]
    return IndexedBatches(
        columns["base_offset"][rows].astype(np.int64),
        columns["producer_id"][rows].astype(np.int64),
        columns["ordinal"][rows].astype(np.int64),
        (flags & TRANSACTIONAL_FLAG) != 0,
        (flags & CONTROL_FLAG) != 0,
        (flags & COMMIT_FLAG) != 0,
    )


def adopted_batches(extents: Iterable[Extent]) -> IndexedBatches:
    """The adopted batches among a partition's extents, which say of themselves whose they are."""
    found = [
        (extent.base_offset, adoption.producer_id, adoption.ordinal)
        for extent in extents
        if (adoption := adoption_of(extent.key)) is not None
    ]
    columns = np.array(found, np.int64).reshape(-1, 3)
    data = np.ones(len(found), np.bool_)
    return IndexedBatches(columns[:, 0], columns[:, 1], columns[:, 2], data, ~data, ~data)


def ordinals_in(key: str, indexed: IndexedBatches, base_offsets: Integers) -> Integers:
    """The ordinals of the batches that begin at these offsets. CorruptObject, naming `key`, where
    the index does not list one."""
    rows = np.searchsorted(indexed.base_offsets, base_offsets)
    found = np.minimum(rows, max(0, len(indexed.base_offsets) - 1))
    if not len(indexed.base_offsets) or (indexed.base_offsets[found] != base_offsets).any():
        raise CorruptObject(key, "its index does not list all of its batches")
    ordinals: Integers = indexed.ordinals[found]
    return ordinals


def rows_of(
    extent: Extent,
    data: Buffer,
    batches: TailBatches,
    start: int,
    upper: int,
    aborted: Sequence[AbortedRange],
    ordinals: Integers | None,
    kept: Booleans | None = None,
) -> Iterator[pa.RecordBatch]:
    """The rows at offsets [start, upper) of the extent, some MiB at a time, without markers and
    what lies in `aborted`, and of the batches that are `kept` if that is given.

    CorruptObject; rows already given are right.
    """
    wanted = (batches.last_offsets >= start) & (batches.base_offsets < upper)
    if kept is not None:
        wanted &= kept
    chosen = np.flatnonzero(wanted)
    try:
        for rows in decode_rows(
            data,
            batches.positions[chosen],
            ordinals=None if ordinals is None else ordinals[chosen],
            aborted=aborted,
            check_crc=False,
        ):
            offsets = integers_of(rows.column("offset"))
            first, following = np.searchsorted(offsets, [start, upper])
            if first < following:
                yield rows.slice(first, following - first)
    except TidelogError as error:
        raise _corrupt(extent, error) from error


def _corrupt(extent: Extent, error: TidelogError) -> CorruptObject:
    return CorruptObject(
        object_key(extent.key),
        f"the record batches of offsets {extent.base_offset} to {extent.last_offset}: {error}",
    )
