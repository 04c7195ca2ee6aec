"""The slot being filled: entries and batches until they are laid out as one WAL object.

Adding costs one packed row an entry; `assemble` does the rest with whole columns, so that it can
run in a worker thread and thousands of tiny batches cost little more than their bytes. Every byte
is copied once, into the object; offsets and leader epochs are stamped there, never into the
buffers that were given.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tidelog.identifiers import LeaderEpoch, TopicPartition
from tidelog.records.batch import CONTROL_FLAG, NO_PRODUCER_ID, NO_SEQUENCE, advance_sequence
from tidelog.storage.object_store import Buffer
from tidelog.wal.entries import COMMIT_FLAG, NO_ORDINAL, BatchFields, EntryKind
from tidelog.wal.extents import Advance, Extent
from tidelog.wal.image import PartitionImage
from tidelog.wal.image_codec import encode_images
from tidelog.wal.object_format import (
    FOOTER_BYTES,
    HEADER_BYTES,
    INDEX_DTYPE,
    INDEX_ROW,
    OWN_OBJECT,
    Layout,
    ObjectHeader,
    encode_index,
    finish_object,
    wal_key,
)

_IMAGE_BYTES = 128
_PRODUCER_BYTES = 192
_EXTENT_BYTES = 48


@dataclass(frozen=True, slots=True)
class AssembledSlot:
    """A WAL object, ready to be put."""

    key: str
    data: memoryview
    """The whole object, read-only."""
    crc: int
    """The footer's checksum, for the next slot's header."""
    advances: tuple[Advance, ...]
    """What it means for each tenure in it, once it is durable."""


class SlotBuffer:
    """What goes into one slot. Buffers that are given must not change until the slot is durable."""

    def __init__(self) -> None:
        self._rows = bytearray()
        self._bodies: list[Buffer] = []
        self._partitions: dict[tuple[TopicPartition, LeaderEpoch], int] = {}
        self._objects: dict[str, int] = {}
        self._images: list[PartitionImage] = []
        self.size_bytes = 0
        """About what the object will have."""
        self.batches = 0

    @property
    def is_empty(self) -> bool:
        return not self._rows

    def add_batch(
        self,
        partition: TopicPartition,
        leader_epoch: LeaderEpoch,
        data: Buffer,
        batch: BatchFields,
        base_offset: int,
        ordinal: int = NO_ORDINAL,
    ) -> None:
        """A batch that the partition log has appended at `base_offset`; `data` is all of it."""
        first, last = batch.base_sequence, NO_SEQUENCE
        if batch.producer_id != NO_PRODUCER_ID and first != NO_SEQUENCE:
            last = advance_sequence(first, batch.last_offset_delta)
        self._add_body(
            partition, leader_epoch, data, batch, base_offset, ordinal, first, last, flags=0
        )

    def add_marker(
        self,
        partition: TopicPartition,
        leader_epoch: LeaderEpoch,
        data: Buffer,
        batch: BatchFields,
        base_offset: int,
        *,
        ordinal: int,
        commit: bool,
        coordinator_epoch: int,
    ) -> None:
        """A control batch that ends a transaction."""
        assert batch.attributes & CONTROL_FLAG
        self._add_body(
            partition,
            leader_epoch,
            data,
            batch,
            base_offset,
            ordinal,
            NO_SEQUENCE,
            coordinator_epoch,
            COMMIT_FLAG if commit else 0,
        )

    def add_adopted(
        self,
        partition: TopicPartition,
        leader_epoch: LeaderEpoch,
        batch: BatchFields,
        base_offset: int,
        ordinal: int,
        place: tuple[str, int, int],
    ) -> None:
        """A batch whose bytes stay where they were staged (H8): (key, position, length)."""
        key, position, length = place
        number = self._objects.setdefault(key, len(self._objects) + 1)
        self._add_row(
            EntryKind.ADOPTED,
            self._reference(partition, leader_epoch),
            base_offset,
            base_offset + batch.last_offset_delta,
            batch.record_count,
            batch.producer_id,
            batch.producer_epoch,
            ordinal,
            NO_SEQUENCE,
            NO_SEQUENCE,
            batch.attributes,
            batch.base_timestamp,
            batch.max_timestamp,
            number,
            position,
            length,
        )

    def add_opening(self, image: PartitionImage) -> None:
        """The image with which a tenure begins; before any other entry of the tenure."""
        self._images.append(image)
        self.size_bytes += (
            _IMAGE_BYTES
            + _PRODUCER_BYTES * len(image.producers)
            + _EXTENT_BYTES * len(image.extents)
        )
        self._add_row(
            EntryKind.OPENING,
            self._reference(image.partition, image.leader_epoch),
            image.next_offset,
            *_UNUSED,
            OWN_OBJECT,
            len(self._images) - 1,
            0,
        )

    def add_log_start(
        self, partition: TopicPartition, leader_epoch: LeaderEpoch, log_start: int
    ) -> None:
        """The log begins later from now on."""
        self._add_row(
            EntryKind.LOG_START,
            self._reference(partition, leader_epoch),
            log_start,
            *_UNUSED,
            OWN_OBJECT,
            -1,
            0,
        )

    def _add_body(
        self,
        partition: TopicPartition,
        leader_epoch: LeaderEpoch,
        data: Buffer,
        batch: BatchFields,
        base_offset: int,
        ordinal: int,
        first_sequence: int,
        last_sequence: int,
        flags: int,
    ) -> None:
        length = len(data)
        self._bodies.append(data)
        self.batches += 1
        self.size_bytes += length
        self._add_row(
            EntryKind.BATCH,
            self._reference(partition, leader_epoch),
            base_offset,
            base_offset + batch.last_offset_delta,
            batch.record_count,
            batch.producer_id,
            batch.producer_epoch,
            ordinal,
            first_sequence,
            last_sequence,
            batch.attributes | flags,
            batch.base_timestamp,
            batch.max_timestamp,
            OWN_OBJECT,
            0,
            length,
        )

    def _add_row(self, *fields: int) -> None:
        self._rows += INDEX_ROW.pack(*fields)
        self.size_bytes += INDEX_ROW.size

    def _reference(self, partition: TopicPartition, leader_epoch: LeaderEpoch) -> int:
        return self._partitions.setdefault((partition, leader_epoch), len(self._partitions))

    def assemble(self, header: ObjectHeader) -> AssembledSlot:
        """The object. Pure: leaves the buffer as it is, and must not run beside an `add`."""
        rows = np.frombuffer(self._rows, INDEX_DTYPE).copy()
        body_rows = np.flatnonzero(rows["kind"] == EntryKind.BATCH)
        order = np.argsort(rows["partition"][body_rows], kind="stable")
        placed = body_rows[order]
        lengths = rows["length"][placed].astype(np.int64)
        rows["position"][placed] = HEADER_BYTES + np.cumsum(lengths) - lengths
        tenures = list(self._partitions)
        index = encode_index(tenures, rows, list(self._objects))
        images = encode_images(self._images) if self._images else b""
        index_position = HEADER_BYTES + int(lengths.sum())
        images_position = index_position + len(index)
        layout = Layout(
            index_position, images_position, images_position + len(images) + FOOTER_BYTES
        )
        # The one copy of the batches' bytes, with room for what is written last.
        data = bytearray().join(
            (
                bytes(HEADER_BYTES),
                *map(self._bodies.__getitem__, order.tolist()),
                index,
                images,
                bytes(FOOTER_BYTES),
            )
        )
        _stamp(data, rows[placed], np.array([epoch for _, epoch in tenures], ">i4"))
        crc = finish_object(data, header, layout)
        key = wal_key(header.incarnation, header.slot)
        return AssembledSlot(
            key, memoryview(data).toreadonly(), crc, tuple(self._advances(key, rows))
        )

    def _advances(self, key: str, rows: NDArray[np.void]) -> Iterator[Advance]:
        extents: dict[int, list[Extent]] = {}
        names = [key, *self._objects]
        for reference, base, last, timestamp, number, position, length in _runs(rows):
            extents.setdefault(reference, []).append(
                Extent(base, last, timestamp, names[number], position, length)
            )
        moved = rows[rows["kind"] == EntryKind.LOG_START]
        # The last of several wins: a log start only grows.
        log_starts = dict(
            zip(moved["partition"].tolist(), moved["base_offset"].tolist(), strict=True)
        )
        for reference, (partition, leader_epoch) in enumerate(self._partitions):
            found, log_start = extents.get(reference, ()), log_starts.get(reference)
            if found or log_start is not None:
                yield Advance(partition, leader_epoch, tuple(found), log_start)


_UNUSED = (-1, 0, NO_PRODUCER_ID, -1, NO_ORDINAL, NO_SEQUENCE, NO_SEQUENCE, 0, -1, -1)
"""From last_offset to max_timestamp, in entries that stand for no batch."""


def _stamp(data: bytearray, rows: NDArray[np.void], leader_epochs: NDArray[np.int32]) -> None:
    """Write base offsets and leader epochs into the batches; both lie outside their checksums."""
    # One unaligned element per byte position, so that a scatter writes all of them at once.
    offsets = np.ndarray((len(data) - 7,), ">i8", data, strides=(1,))
    offsets[rows["position"]] = rows["base_offset"]
    epochs = np.ndarray((len(data) - 3,), ">i4", data, strides=(1,))
    epochs[rows["position"] + 12] = leader_epochs[rows["partition"]]


def _runs(rows: NDArray[np.void]) -> Iterator[tuple[int, int, int, int, int, int, int]]:
    """The extents: (partition, base offset, last offset, maximum timestamp, object, position,
    length) of batches that follow each other in offset and place; an adopted batch stands alone."""
    adopted = rows["kind"] == EntryKind.ADOPTED
    placed = np.flatnonzero(adopted | (rows["kind"] == EntryKind.BATCH))
    if not len(placed):
        return
    placed = placed[np.argsort(rows["partition"][placed], kind="stable")]
    found, alone = rows[placed], adopted[placed]
    begins = np.ones(len(found), np.bool_)
    begins[1:] = (
        (found["partition"][1:] != found["partition"][:-1])
        | (found["base_offset"][1:] != found["last_offset"][:-1] + 1)
        | alone[1:]
        | alone[:-1]
    )
    starts = np.flatnonzero(begins)
    ends = np.append(starts[1:], len(found)) - 1
    columns = (
        found["partition"][starts],
        found["base_offset"][starts],
        found["last_offset"][ends],
        np.maximum.reduceat(found["max_timestamp"], starts),
        found["object"][starts],
        found["position"][starts],
        np.add.reduceat(found["length"].astype(np.int64), starts),
    )
    yield from zip(*(column.tolist() for column in columns), strict=True)
