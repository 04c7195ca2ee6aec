"""The slot being filled: collects entries and batches, then assembles them into one WAL object.

Adding packs one row per entry. `assemble` does the rest, so it can run in a worker thread. It takes
a few microseconds per batch and reads no record: it combines the batches' own checksums. Every byte
is copied once, into the object. Offsets and leader epochs are stamped there; the input buffers stay
unchanged.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from awscrt.checksums import combine_crc32c, crc32c

from tidelog.identifiers import LeaderEpoch, TenureKey
from tidelog.named_tuples import new_tuple
from tidelog.records.batch import (
    ATTRIBUTES_POSITION,
    CRC_POSITION,
    stamp,
)
from tidelog.storage.object_store import Buffer
from tidelog.wal.format.image_codec import encode_images
from tidelog.wal.format.object_format import (
    INDEX_DTYPE,
    INDEX_ROW,
    OWN_OBJECT,
    Layout,
    ObjectHeader,
    encode_index,
    finish_object,
    wal_key,
)
from tidelog.wal.log.adoption import Adoption
from tidelog.wal.log.entries import EntryKind
from tidelog.wal.log.extents import Extent, SlotEffect, crc_of_batch, grown_crc
from tidelog.wal.log.image import PartitionImage
from tidelog.wal.write.slot_entries import (
    AdoptedEntry,
    BatchEntry,
    LogStartEntry,
    MarkerEntry,
    OpeningEntry,
    RelocatedEntry,
    SlotEntry,
)

_BATCH, _ADOPTED, _OPENING, _LOG_START, _RELOCATED = map(
    int,
    (
        EntryKind.BATCH,
        EntryKind.ADOPTED,
        EntryKind.OPENING,
        EntryKind.LOG_START,
        EntryKind.RELOCATED,
    ),
)
"""Plain integers: an enumeration's members are slow to compare."""
_IMAGE_BYTES = 128
_PRODUCER_BYTES = 192
_EXTENT_BYTES = 48


@dataclass(frozen=True, slots=True)
class AssembledSlot:
    """A WAL object, ready for its PUT."""

    key: str
    data: memoryview
    """The whole object, read-only."""
    crc: int
    """The checksum in the footer; the next slot's header repeats it."""
    advances: tuple[SlotEffect, ...]
    """The effect on each tenure in the slot, to be applied once it is durable."""


class SlotBuffer:
    """The content of one slot. Input buffers must not change until the slot is durable."""

    def __init__(self) -> None:
        self._rows = bytearray()
        self._bodies: list[Buffer] = []
        self._partitions: dict[TenureKey, int] = {}
        self._objects: dict[str, int] = {}
        self._images: list[PartitionImage] = []
        self.size_bytes = 0
        """The approximate size of the object."""
        self.batches = 0

    @property
    def is_empty(self) -> bool:
        return not self._rows

    @property
    def tenures(self) -> Collection[TenureKey]:
        """The tenures that have an entry in the slot."""
        return self._partitions.keys()

    def add(self, entry: SlotEntry) -> None:
        """Put an entry behind the others."""
        tenure = entry.partition, entry.leader_epoch
        reference = self._partitions.setdefault(tenure, len(self._partitions))
        number, position, length, crc = OWN_OBJECT, 0, 0, 0
        match entry:
            case BatchEntry() | MarkerEntry():
                kind, length = _BATCH, len(entry.data)
                self._bodies.append(entry.data)
                self.batches += 1
                self.size_bytes += length
            case AdoptedEntry(batch=stored) | RelocatedEntry(moved=stored):
                kind = _ADOPTED if isinstance(entry, AdoptedEntry) else _RELOCATED
                number = self._objects.setdefault(stored.key, len(self._objects) + 1)
                position, length, crc = stored.position, stored.length, stored.crc
            case LogStartEntry():
                kind, position = _LOG_START, -1
            case OpeningEntry():
                kind, position = _OPENING, len(self._images)
                self._images.append(entry.image)
                self.size_bytes += (
                    _IMAGE_BYTES
                    + _PRODUCER_BYTES * len(entry.image.producers)
                    + _EXTENT_BYTES * len(entry.image.extents)
                )
        self._rows += INDEX_ROW.pack(
            kind, reference, *entry.columns(), number, position, length, crc
        )
        self.size_bytes += INDEX_ROW.size

    def assemble(
        self,
        header: ObjectHeader,
        previous_slots: Mapping[TenureKey, int] | None = None,
    ) -> AssembledSlot:
        """The slot's object. Pure: it does not change the buffer, and must not run during an `add`.

        `previous_slots` belongs to a stamped object. It covers the tenures of this slot, which come
        first, and of the slot before (see `SlotIndex.previous_slots`).
        """
        columns = _IndexColumns._make(
            map(list, zip(*INDEX_ROW.iter_unpack(self._rows), strict=True))
        )
        header_bytes = header.size_bytes
        own, bodies = self._place(columns, header_bytes)
        tenures = list(self._partitions if previous_slots is None else previous_slots)
        previous = None if previous_slots is None else list(previous_slots.values())
        index = encode_index(tenures, columns, list(self._objects), previous)
        images = encode_images(self._images) if self._images else b""
        head, foot = bytes(header_bytes), bytes(header.footer_bytes)
        index_position = len(head) + sum(map(len, bodies))
        images_position = index_position + len(index)
        layout = Layout(index_position, images_position, images_position + len(images) + len(foot))
        # The only copy of the batches' bytes, with room for the header and the footer.
        data = bytearray().join((head, *bodies, index, images, foot))
        body_crc = _stamp(data, columns, own, [leader_epoch for _, leader_epoch in tenures])
        crc = finish_object(data, header, layout, body_crc)
        key = wal_key(header.incarnation, header.slot)
        return AssembledSlot(
            key, memoryview(data).toreadonly(), crc, tuple(self._advances(key, columns))
        )

    def _place(self, columns: _IndexColumns, position: int) -> tuple[list[int], list[Buffer]]:
        """The rows of the bodies, and the bodies, in the order of the object.

        Each row gets its body's position, the first one `position`, and the checksum in the batch's
        header.
        """
        rows = [row for row, kind in enumerate(columns.kind) if kind == _BATCH]
        bodies = self._bodies
        references = list(map(columns.partition.__getitem__, rows))
        # The sort is stable: batches of a partition keep the order of their appends.
        order = sorted(range(len(rows)), key=references.__getitem__)
        own = list(map(rows.__getitem__, order))
        placed = list(map(bodies.__getitem__, order))
        for row, body in zip(own, placed, strict=True):
            columns.position[row] = position
            columns.crc[row] = int.from_bytes(body[CRC_POSITION:ATTRIBUTES_POSITION], "big")
            position += columns.length[row]
        return own, placed

    def _advances(self, key: str, columns: _IndexColumns) -> Iterator[SlotEffect]:
        names = [key, *self._objects]
        extents: dict[int, list[Extent]] = {}
        # The last of several wins: a log start only grows.
        log_starts: dict[int, int] = {}
        tenures = list(self._partitions)
        for (
            kind,
            reference,
            base,
            last,
            producer_id,
            producer_epoch,
            ordinal,
            timestamp,
            number,
            position,
            length,
            crc,
        ) in zip(
            columns.kind,
            columns.partition,
            columns.base_offset,
            columns.last_offset,
            columns.producer_id,
            columns.producer_epoch,
            columns.ordinal,
            columns.max_timestamp,
            columns.object,
            columns.position,
            columns.length,
            columns.crc,
            strict=True,
        ):
            if kind == _LOG_START:
                log_starts[reference] = base
            elif kind not in (_OPENING, _RELOCATED):
                found = extents.setdefault(reference, [])
                if kind == _BATCH and found and _is_next(found[-1], key, position, base):
                    found[-1] = _grown(found[-1], last, timestamp, length, crc)
                    continue
                adoption = None
                if kind == _ADOPTED:
                    # An adopted batch gets an extent of its own.
                    leader_epoch = tenures[reference][1]
                    adoption = Adoption(producer_id, producer_epoch, ordinal, leader_epoch)
                begun = crc_of_batch(crc)
                name = names[number]
                found.append(
                    new_tuple(
                        Extent,
                        (base, last, timestamp, name, position, length, begun, adoption),
                    )
                )
        for reference, (partition, leader_epoch) in enumerate(self._partitions):
            of_tenure, log_start = tuple(extents.get(reference, ())), log_starts.get(reference)
            if of_tenure or log_start is not None:
                yield new_tuple(SlotEffect, (partition, leader_epoch, of_tenure, log_start))


class _IndexColumns(NamedTuple):
    """The entries as columns, one per field of INDEX_DTYPE."""

    kind: list[int]
    partition: list[int]
    base_offset: list[int]
    last_offset: list[int]
    record_count: list[int]
    producer_id: list[int]
    producer_epoch: list[int]
    ordinal: list[int]
    first_sequence: list[int]
    last_sequence: list[int]
    flags: list[int]
    first_timestamp: list[int]
    max_timestamp: list[int]
    object: list[int]
    position: list[int]
    length: list[int]
    crc: list[int]


assert _IndexColumns._fields == INDEX_DTYPE.names


def _stamp(
    data: bytearray, columns: _IndexColumns, own: list[int], leader_epochs: list[LeaderEpoch]
) -> int:
    """Write base offsets and leader epochs into the batches; the checksum of all batches.

    Both fields lie outside a batch's own checksum, so that checksum stays correct. It is combined
    with the checksum of the bytes before it, and the records are not read again.
    """
    crc = 0
    view = memoryview(data)
    for row in own:
        position = columns.position[row]
        stamp(data, position, columns.base_offset[row], leader_epochs[columns.partition[row]])
        covered = position + ATTRIBUTES_POSITION
        crc = crc32c(view[position:covered], crc)
        crc = combine_crc32c(crc, columns.crc[row], columns.length[row] - ATTRIBUTES_POSITION)
    return crc


def _is_next(extent: Extent, key: str, position: int, base_offset: int) -> bool:
    """Whether a batch in the object `key` follows the extent in position and offset."""
    return (
        extent.position + extent.length == position
        and extent.last_offset + 1 == base_offset
        and extent.key == key
    )


def _grown(extent: Extent, last_offset: int, timestamp: int, length: int, crc: int) -> Extent:
    """The extent with the batch behind it, which has the checksum `crc`."""
    return Extent(
        extent.base_offset,
        last_offset,
        max(extent.max_timestamp, timestamp),
        extent.key,
        extent.position,
        extent.length + length,
        grown_crc(extent.crc, crc),
    )
