"""Reads the indexes of WAL objects and merged objects, and checks them.

The end of an object suffices: its footer repeats the header. A damaged object raises CorruptObject.
An object of a newer format raises UnsupportedFormat.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from functools import cached_property, lru_cache, reduce
from operator import or_
from typing import Any
from uuid import UUID

import numpy as np
from awscrt.checksums import crc32c
from numpy.typing import NDArray

from tidelog.errors import CorruptObject
from tidelog.identifiers import (
    LeaderEpoch,
    TenureKey,
    TopicPartition,
)
from tidelog.storage.object_store import Buffer
from tidelog.wal.format.columns import ColumnReader
from tidelog.wal.format.image_codec import Images
from tidelog.wal.format.object_format import (
    FOOTER_END,
    FOOTER_END_BYTES,
    FOOTER_MAGIC,
    HEADER_BYTES,
    INDEX_COUNTS,
    OWN_OBJECT,
    PREVIOUS_SLOT_DTYPE,
    TENURES_DTYPE,
    Layout,
    ObjectHeader,
    ObjectKind,
    Tenures,
    check_version,
    decode_header,
    footer_crc,
    header_bytes,
    index_dtype,
)
from tidelog.wal.log.entries import EntryKind, IndexEntry
from tidelog.wal.log.extents import NO_CRC

_KINDS = {int(kind): kind for kind in EntryKind}
_BATCH, _OPENING = int(EntryKind.BATCH), int(EntryKind.OPENING)
_RELOCATED, _ADOPTED = int(EntryKind.RELOCATED), int(EntryKind.ADOPTED)
_IS_KIND = np.array([number in _KINDS for number in range(256)])
_MIDDLE = (
    "base_offset",
    "last_offset",
    "record_count",
    "producer_id",
    "producer_epoch",
    "ordinal",
    "first_sequence",
    "last_sequence",
    "flags",
    "first_timestamp",
    "max_timestamp",
)


class SlotIndex:
    """A decoded slot: its header, the index's columns and the opening images."""

    def __init__(
        self,
        key: str,
        header: ObjectHeader,
        crc: int,
        layout: Layout,
        tenures: Tenures,
        columns: dict[str, NDArray[Any]],
        objects: list[str],
        images: Images | None,
        previous_slots: list[int] | None = None,
    ) -> None:
        self.key = key
        self.header = header
        self.crc = crc
        """The checksum in the footer, which identifies the whole object."""
        self.layout = layout
        self.tenures = tenures
        """The partitions and leader epochs with an entry in the slot or in the slot before."""
        self.previous_slots = previous_slots
        """For each of `tenures` an earlier slot (or -1); no slot in between has an entry of it.
        None in an object without stamps."""
        self.columns = columns
        """The columns by name: INDEX_DTYPE, or PLAIN_INDEX_DTYPE in an object without stamps."""
        self.images = images
        """The opening images, or None if no tenure opens here."""
        self._objects = objects

    def previous_slot(self, tenure: TenureKey) -> int | None:
        """The previous slot that this slot records for a tenure; None if it records none."""
        return self._previous.get(tenure)

    @cached_property
    def _previous(self) -> Mapping[TenureKey, int]:
        if self.previous_slots is None:
            return {}
        return dict(zip(self.tenures, self.previous_slots, strict=True))

    @property
    def other_objects(self) -> Sequence[str]:
        """The other objects to which the entries refer."""
        return self._objects

    def __len__(self) -> int:
        return len(self.columns["kind"])

    def entries(self, wanted: Container[TenureKey] | None = None) -> Iterator[IndexEntry]:
        """The entries in the order of their appends; `wanted` selects tenures, None all."""
        columns = self.columns
        if wanted is not None:
            chosen = [number for number, tenure in enumerate(self.tenures) if tenure in wanted]
            if len(chosen) < len(self.tenures):
                rows = np.flatnonzero(np.isin(columns["partition"], chosen))
                columns = {name: column[rows] for name, column in columns.items()}
        kinds = [_KINDS[kind] for kind in columns["kind"].tolist()]
        tenures = [self.tenures[number] for number in columns["partition"].tolist()]
        names = [self.key, *self._objects]
        keys = [names[number] for number in columns["object"].tolist()]
        middle = zip(*(columns[name].tolist() for name in _MIDDLE), strict=True)
        count = len(kinds)
        crcs = columns["crc"].tolist() if "crc" in columns else [NO_CRC] * count
        places = zip(columns["position"].tolist(), columns["length"].tolist(), crcs, strict=True)
        for kind, (partition, leader_epoch), fields, key, place in zip(
            kinds, tenures, middle, keys, places, strict=True
        ):
            yield IndexEntry._make((kind, *partition, leader_epoch, *fields, key, *place))


def tail_bytes(key: str, tail: Buffer, size: int) -> int:
    """The number of last bytes of an object of `size` bytes that `decode_tail` needs.

    `tail`: at least the last FOOTER_END_BYTES of the object. If the result exceeds `tail`, the
    caller reads that many bytes. Raises CorruptObject and UnsupportedFormat.
    """
    if size == HEADER_BYTES:
        return HEADER_BYTES
    return size - _layout(key, memoryview(tail), size).index_position


def decode_tail(key: str, tail: Buffer, size: int) -> SlotIndex | ObjectHeader:
    """The index of an object of `size` bytes, from its last bytes; the header of a seal.

    It accepts merged objects too, so a reader of a WAL must check the header's kind. `tail`: at
    least `tail_bytes` bytes. It does not check the bodies: `check_body` does. Raises CorruptObject
    and UnsupportedFormat.
    """
    view = memoryview(tail)
    if size == HEADER_BYTES:
        header = decode_header(key, view)
        if header.kind is not ObjectKind.SEAL:
            raise CorruptObject(key, "it ends after its header")
        return header
    layout = _layout(key, view, size)
    begin = size - len(view)
    if layout.index_position < begin:
        raise ValueError(f"{key}: the tail begins at {begin}, the index at {layout.index_position}")
    index, images = layout.index_position - begin, layout.images_position - begin
    end = len(view) - FOOTER_END_BYTES
    crc, version = FOOTER_END.unpack_from(view, end)[4:6]
    if footer_crc(view, index, end, version) != crc:
        raise CorruptObject(key, "the checksum of index and footer does not match")
    check_version(key, version)
    footer = end - header_bytes(version)
    if footer < images:
        raise CorruptObject(key, f"its images begin at {layout.images_position}, in its footer")
    header = decode_header(key, view[footer:end])
    if header.kind is ObjectKind.SEAL:
        raise CorruptObject(key, "a seal's header in the footer of an object with records")
    if header.format_version != version:
        raise CorruptObject(key, f"format {version} in the footer, {header.format_version} in it")
    opening = Images(key, view[images:footer]) if images < footer else None
    return _decode_index(key, view, index, images, header, crc, layout, opening)


def check_body(key: str, data: Buffer) -> SlotIndex:
    """Check every byte of a whole object, for fsck and repair; its index.

    Raises CorruptObject and UnsupportedFormat.
    """
    view = memoryview(data)
    found = decode_tail(key, view, len(view))
    if not isinstance(found, SlotIndex):
        raise CorruptObject(key, "it is a seal")
    if decode_header(key, view) != found.header:
        raise CorruptObject(key, "header and footer are of different objects")
    body_crc = FOOTER_END.unpack_from(view, len(view) - FOOTER_END_BYTES)[3]
    if crc32c(view[found.header.size_bytes : found.layout.index_position]) != body_crc:
        raise CorruptObject(key, "the checksum of its record batches does not match")
    return found


def _layout(key: str, tail: memoryview, size: int) -> Layout:
    """The layout, checked only against the object's bounds."""
    if size < HEADER_BYTES + HEADER_BYTES + FOOTER_END_BYTES or len(tail) < FOOTER_END_BYTES:
        raise CorruptObject(key, f"it has only {size} bytes")
    *fields, magic = FOOTER_END.unpack_from(tail, len(tail) - FOOTER_END_BYTES)
    if magic != FOOTER_MAGIC:
        raise CorruptObject(key, f"it ends with {magic!r}, not {FOOTER_MAGIC!r}")
    layout = Layout._make(fields[:3])
    ordered = HEADER_BYTES <= layout.index_position <= layout.images_position
    end = size - FOOTER_END_BYTES - HEADER_BYTES
    if layout.size != size or not ordered or layout.images_position > end:
        raise CorruptObject(key, f"its footer has {layout}, but the object has {size} bytes")
    return layout


def _decode_index(
    key: str,
    view: memoryview,
    position: int,
    end: int,
    header: ObjectHeader,
    crc: int,
    layout: Layout,
    images: Images | None,
) -> SlotIndex:
    if end - position < INDEX_COUNTS.size:
        raise CorruptObject(key, f"its index has only {end - position} bytes")
    entries, partitions, strings = INDEX_COUNTS.unpack_from(view, position)
    reader = ColumnReader(key, view, position + INDEX_COUNTS.size, end)
    table = reader.table(TENURES_DTYPE, partitions)
    previous = None
    if header.stamps is not None:
        previous = reader.table(PREVIOUS_SLOT_DTYPE, partitions)["previous_slot"].tolist()
    columns = reader.table(index_dtype(header.stamps is not None), entries)
    objects = reader.strings(strings)
    reader.finish()
    bodies = range(header.size_bytes, layout.index_position + 1)
    _check_entries(key, columns, partitions, strings, bodies, len(images or ()))
    topics = table["topic_id"].tobytes()
    numbers = zip(table["partition"].tolist(), table["leader_epoch"].tolist(), strict=True)
    tenures = [
        (
            TopicPartition(_topic_id(topics[16 * row : 16 * row + 16]), partition),
            LeaderEpoch(epoch),
        )
        for row, (partition, epoch) in enumerate(numbers)
    ]
    return SlotIndex(key, header, crc, layout, tenures, columns, objects, images, previous)


@lru_cache(1024)
def _topic_id(data: bytes) -> UUID:
    """Indexes repeat few topics, and a UUID takes long to make."""
    return UUID(bytes=data)


def _check_entries(
    key: str,
    columns: dict[str, NDArray[Any]],
    partitions: int,
    strings: int,
    bodies: range,
    images: int,
) -> None:
    """Raise CorruptObject for an entry out of bounds, which a writer's bug could produce."""
    kind, position = columns["kind"], columns["position"]
    own, opens, relocated = kind == _BATCH, kind == _OPENING, kind == _RELOCATED
    placed = own | relocated | (kind == _ADOPTED)
    ends = position + columns["length"]
    faults = {
        "an entry of unknown kind": ~_IS_KIND[kind],
        "an entry of no partition": columns["partition"] >= partitions,
        "an entry of no object": columns["object"] > strings,
        "a batch that lies elsewhere": own & (columns["object"] != OWN_OBJECT),
        "batches relocated to itself": relocated & (columns["object"] == OWN_OBJECT),
        "a batch outside the bodies": own & ((position < bodies.start) | (ends >= bodies.stop)),
        "a batch without bytes": placed & (columns["length"] == 0),
        "a batch without offsets": placed & (columns["last_offset"] < columns["base_offset"]),
        "an opening without image": opens & ((position < 0) | (position >= images)),
    }
    if not reduce(or_, faults.values()).any():
        return
    for what, rows in faults.items():
        if rows.any():
            raise CorruptObject(key, f"its index has {what} (entry {int(rows.argmax())})")
