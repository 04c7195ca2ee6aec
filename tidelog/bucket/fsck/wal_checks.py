"""Checks of WAL objects to the last byte: the index agrees with the record batches. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tidelog.errors import CorruptObject, TidelogError
from tidelog.identifiers import Incarnation, TopicPartition
from tidelog.records.batch import HEADER_SIZE, LENGTH_PREFIX_SIZE, checksum, headers_of
from tidelog.storage.object_store import Buffer
from tidelog.wal.format.object_format import ObjectHeader, ObjectKind
from tidelog.wal.format.slot_index import SlotIndex, check_body, decode_tail
from tidelog.wal.format.staged_format import StagedIndex
from tidelog.wal.log.entries import EntryKind
from tidelog.wal.log.extents import Extent

_ATTRIBUTES_MASK = 0xFF


def check_slot(key: str, data: Buffer) -> SlotIndex | ObjectHeader:
    """Check a whole object or a seal: its checksums, and each batch against its index entry.

    Raises CorruptObject and UnsupportedFormat.
    """
    found = decode_tail(key, data, len(data))
    if isinstance(found, ObjectHeader):
        return found
    index = check_body(key, data)
    if index.images is not None:
        for image in index.images:
            fault = image.fault()
            if fault is not None:
                raise CorruptObject(key, f"the opening image of {image.partition}: {fault}")
    _check_batches(key, data, index)
    return index


def check_place(
    key: str,
    incarnation: Incarnation,
    number: int,
    found: SlotIndex | ObjectHeader,
    kinds: tuple[ObjectKind, ...],
) -> None:
    """Raise CorruptObject if an object's header disagrees with its key."""
    header = found.header if isinstance(found, SlotIndex) else found
    if (header.incarnation, header.slot) != (incarnation, number) or header.kind not in kinds:
        is_what = f"{header.kind.name.lower()} {header.slot} of {header.incarnation}"
        raise CorruptObject(key, f"it says that it is {is_what}")


def check_extents(
    key: str, index: SlotIndex, partition: TopicPartition, extents: Sequence[Extent]
) -> None:
    """Check that extents within an object are runs of batches that its index lists.

    CorruptObject names the object.
    """
    columns = index.columns
    tenures = [row for row, (found, _) in enumerate(index.tenures) if found == partition]
    own = (columns["kind"] == EntryKind.BATCH) & np.isin(columns["partition"], tenures)
    rows = np.flatnonzero(own)
    # By place: a repair's object may fill the same offsets twice, and one of both counts.
    rows = rows[np.argsort(columns["position"][rows], kind="stable")]
    bases = columns["base_offset"][rows]
    lasts = columns["last_offset"][rows]
    positions = columns["position"][rows]
    ends = positions + columns["length"][rows]
    for extent in extents:
        first = int(np.searchsorted(positions, extent.position))
        following = int(np.searchsorted(positions, extent.position + extent.length))
        if (
            first == following
            or (bases[first], lasts[following - 1]) != (extent.base_offset, extent.last_offset)
            or (positions[first], ends[following - 1])
            != (extent.position, extent.position + extent.length)
            or (bases[first + 1 : following] != lasts[first : following - 1] + 1).any()
            or (positions[first + 1 : following] != ends[first : following - 1]).any()
        ):
            raise CorruptObject(
                key,
                f"its index has no batches of offsets {extent.base_offset} to"
                f" {extent.last_offset} of {partition} at position {extent.position}",
            )


def check_adopted(
    key: str, index: StagedIndex, partition: TopicPartition, extents: Sequence[Extent]
) -> None:
    """Check that extents of adopted batches match a staged object's batches of the partition.

    CorruptObject names the object.
    """
    staged = {
        (each.position, each.length): (each.last_offset_delta, each.max_timestamp)
        for each in index.partitions.get(partition, ())
    }
    for extent in extents:
        expected = (extent.last_offset - extent.base_offset, extent.max_timestamp)
        if staged.get((extent.position, extent.length)) != expected:
            raise CorruptObject(
                key,
                f"its index has no batch of {partition} at position {extent.position} that could"
                f" be offsets {extent.base_offset} to {extent.last_offset}",
            )


def _check_batches(key: str, data: Buffer, index: SlotIndex) -> None:
    columns = index.columns
    rows = np.flatnonzero(columns["kind"] == EntryKind.BATCH)
    rows = rows[np.argsort(columns["position"][rows], kind="stable")]
    positions = columns["position"][rows].astype(np.int64)
    lengths = columns["length"][rows].astype(np.int64)
    ends = positions + lengths
    bodies_end = index.layout.index_position
    begins = np.concatenate([[index.header.size_bytes], ends])
    if begins[-1] != bodies_end or (positions != begins[:-1]).any():
        raise CorruptObject(key, "its batches do not fill the place between header and index")
    if not len(rows):
        return
    if (lengths < HEADER_SIZE).any():
        raise CorruptObject(key, "its index has a batch that is shorter than a batch's header")
    try:
        headers = headers_of(data, positions)
    except TidelogError as error:
        raise CorruptObject(key, str(error)) from error
    for what, wrong in _differences(index, rows, headers).items():
        if wrong.any():
            at = int(positions[int(wrong.argmax())])
            raise CorruptObject(key, f"the batch at position {at} has another {what} in the index")
    for position, end, crc in zip(
        positions.tolist(), ends.tolist(), headers["crc"].tolist(), strict=True
    ):
        if checksum(data, position, end) != crc:
            raise CorruptObject(key, f"the checksum of the batch at position {position} is wrong")


def _differences(
    index: SlotIndex, rows: NDArray[np.intp], headers: NDArray[np.void]
) -> dict[str, NDArray[Any]]:
    """For each field, the batches whose header and index entry differ."""
    columns = {name: column[rows] for name, column in index.columns.items()}
    leader_epochs = np.array([epoch for _, epoch in index.tenures], np.int64)
    bases = headers["base_offset"].astype(np.int64)
    return {
        "base offset": bases != columns["base_offset"],
        "last offset": bases + headers["last_offset_delta"] != columns["last_offset"],
        "length": headers["batch_length"] + LENGTH_PREFIX_SIZE != columns["length"],
        "leader epoch": headers["leader_epoch"] != leader_epochs[columns["partition"]],
        "producer id": headers["producer_id"] != columns["producer_id"],
        "producer epoch": headers["producer_epoch"] != columns["producer_epoch"],
        "number of records": headers["record_count"] != columns["record_count"],
        "set of attributes": (headers["attributes"] & _ATTRIBUTES_MASK)
        != (columns["flags"] & _ATTRIBUTES_MASK),
        "maximum timestamp": headers["max_timestamp"] != columns["max_timestamp"],
    }
