"""Finds the transactions of the batches in an extent (rules G4, H1). Pure.

A batch does not contain the ordinal of its transaction. The index of its object does, or the extent
of an adopted batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tidelog.errors import CorruptObject
from tidelog.identifiers import TopicPartition
from tidelog.records.batch import CONTROL_FLAG, TRANSACTIONAL_FLAG
from tidelog.records.parse.varints import Booleans, Integers
from tidelog.wal.format.slot_index import SlotIndex
from tidelog.wal.log.entries import NO_ORDINAL, EntryKind
from tidelog.wal.log.extents import Extent, Extents


class Ordinals(NamedTuple):
    """The ordinals of the transactions of a WAL object's batches, by ascending position."""

    positions: Integers
    ordinals: Integers

    @classmethod
    def of(cls, index: SlotIndex) -> Ordinals:
        """Read the ordinals of an object's index."""
        columns = index.columns
        rows = np.flatnonzero(columns["kind"] == EntryKind.BATCH)
        positions = columns["position"][rows].astype(np.int64)
        order = np.argsort(positions)
        ordinals = columns["ordinal"][rows].astype(np.int64)
        return cls(positions[order], ordinals[order])

    def at(self, key: str, positions: Integers) -> Integers:
        """The ordinals of the batches at these positions.

        Raises CorruptObject if no batch begins at one of them.
        """
        found = np.searchsorted(self.positions, positions)
        if not len(self.positions) or (found == len(self.positions)).any():
            raise CorruptObject(key, "its index does not list all of its batches")
        if (self.positions[found] != positions).any():
            raise CorruptObject(key, "its index does not list all of its batches")
        result: Integers = self.ordinals[found]
        return result


class OrdinalColumns(NamedTuple):
    """The ordinals of several objects in few arrays, which pass to another process cheaply."""

    keys: Sequence[str]
    ends: Integers
    """The end of each object's part of `together`."""
    together: Ordinals

    @classmethod
    def of(cls, found: Mapping[str, Ordinals]) -> OrdinalColumns:
        """Join the ordinals by object; `found` has at least one."""
        ends = np.cumsum([len(each.positions) for each in found.values()])
        together = map(np.concatenate, zip(*found.values(), strict=True))
        return cls(list(found), ends, Ordinals(*together))

    def apart(self) -> dict[str, Ordinals]:
        """The ordinals by object again."""
        columns = [np.split(column, self.ends[:-1]) for column in self.together]
        found = zip(self.keys, *columns, strict=True)
        return {key: Ordinals(positions, ordinals) for key, positions, ordinals in found}


def extent_ordinals(
    extent: Extent, positions: Integers, attributes: NDArray[Any], known: Ordinals | None
) -> Integers:
    """For each batch of an extent the ordinal of its transaction, or NO_ORDINAL.

    `positions`: where the batches begin in the extent's bytes. `known`: the ordinals of the
    extent's object; None if no batch needs them. Raises CorruptObject if the index lacks a batch.
    """
    if extent.adoption is not None:
        return np.full(len(positions), extent.adoption.ordinal, np.int64)
    if known is None:
        return np.full(len(positions), NO_ORDINAL, np.int64)
    ordinals = known.at(extent.key, positions + extent.position)
    # A batch outside transactions has no ordinal, whatever the index says.
    return np.where(attributes & TRANSACTIONAL_FLAG, ordinals, NO_ORDINAL)


class IndexedBatches(NamedTuple):
    """One partition's batches in the index of one WAL object, by offset."""

    base_offsets: Integers
    last_offsets: Integers
    producer_ids: Integers
    ordinals: Integers
    is_transactional: Booleans
    is_marker: Booleans


def index_batches(index: SlotIndex, partition: TopicPartition) -> IndexedBatches:
    """Select a partition's batches from the index of a WAL object."""
    columns = index.columns
    tenures = [row for row, (found, _) in enumerate(index.tenures) if found == partition]
    placed = np.isin(columns["kind"], [EntryKind.BATCH, EntryKind.ADOPTED])
    rows = np.flatnonzero(placed & np.isin(columns["partition"], tenures))
    rows = rows[np.argsort(columns["base_offset"][rows], kind="stable")]
    flags = columns["flags"][rows]
    return IndexedBatches(
        columns["base_offset"][rows].astype(np.int64),
        columns["last_offset"][rows].astype(np.int64),
        columns["producer_id"][rows].astype(np.int64),
        columns["ordinal"][rows].astype(np.int64),
        (flags & TRANSACTIONAL_FLAG) != 0,
        (flags & CONTROL_FLAG) != 0,
    )


def adopted_batches(extents: Extents) -> IndexedBatches:
    """The adopted batches among a partition's extents, which contain their transactions."""
    found = [
        (
            *(extent.base_offset, extent.last_offset),
            *(extent.adoption.producer_id, extent.adoption.ordinal),
        )
        for extent in extents.adopted()
        if extent.adoption is not None
    ]
    columns = np.array(found, np.int64).reshape(-1, 4)
    data = np.ones(len(found), np.bool_)
    bases, lasts, producer_ids, ordinals = columns.T
    return IndexedBatches(bases, lasts, producer_ids, ordinals, data, ~data)
