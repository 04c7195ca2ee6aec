"""WAL objects, merged objects and seals: header, bodies, index, opening images, footer.

    header | bodies, grouped by partition | index | opening images | footer

The footer repeats the header, so the end of an object identifies it and describes its content.
Recovery reads footer and index, never the bodies. The footer's checksum covers index, images and
footer. The footer contains the bodies' checksum, so its own checksum identifies the whole object.
The next slot's header repeats it.

A seal is only a header, with its own magic. A merged object has the layout of a slot, with its own
magic. It holds batches that were copied from slots, and no images.

A slot carries stamps (rules C10, C11) and has format 2. Seals and merged objects carry no stamps
and have format 1, as do slots of the first release. Magic, version and checksum have the same
positions in all formats, and the checksum covers the version. A reader checks it first, so it tells
a damaged version from a newer format.

`docs/formats/wal.md` describes every byte. A damaged object raises CorruptObject. An object of a
newer format raises UnsupportedFormat.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterator, Mapping, Sequence
from enum import Enum
from functools import cached_property
from struct import Struct
from typing import Any, NamedTuple, TypeAlias
from uuid import UUID

import numpy as np
from awscrt.checksums import crc32c
from numpy.typing import NDArray

from tidelog.errors import CorruptObject, UnsupportedFormat
from tidelog.identifiers import (
    BrokerId,
    Epoch,
    Incarnation,
    LeaderEpoch,
    MetadataStamp,
    Slot,
    TenureKey,
    TopicPartition,
    WalPosition,
)
from tidelog.storage.object_store import Buffer
from tidelog.storage.sequence import NUMBER_DIGITS
from tidelog.wal.format.columns import ColumnReader, columns_bytes, strings_bytes, table_bytes
from tidelog.wal.format.image_codec import Images
from tidelog.wal.log.entries import EntryKind, IndexEntry
from tidelog.wal.log.extents import NO_CRC

PLAIN_FORMAT_VERSION = 1
"""The format of objects without stamps."""
WAL_FORMAT_VERSION = 2
"""The format of objects with stamps, and the newest that this version reads."""
WAL_SUFFIX = ".wal"
MERGED_FOLDER = "merged/"
MERGED_SUFFIX = ".merged"
HEADER_BYTES = 64
"""The size of a header without stamps, and of a seal."""
STAMPED_HEADER_BYTES = 96
FOOTER_END_BYTES = 44
"""The size of the footer after its header, equal in all formats."""
TAIL_READ_BYTES = 64 * 1024
"""The size of the first read of an object's end; `tail_bytes` tells if more is needed."""
OWN_OBJECT = 0
"""The number of the object itself in its index; other objects count from 1."""

FOOTER_MAGIC = b"TIDEFOOT"

_KEY = re.compile(rf"wal/(\d{{1,10}})-(\d{{1,19}})/(\d{{{NUMBER_DIGITS}}}){re.escape(WAL_SUFFIX)}")
_HEADER = Struct("<8sIiqqq16sII")
_CRC = Struct("<I")
_HEADER_CRC_POSITION = HEADER_BYTES - _CRC.size
_STAMPS = Struct("<qqI8xI")
_FOOTER_END = Struct("<QQQIII8s")
_FOOTER_CRC_POSITION = 28
_VERSION_BYTES = 4
_INDEX_COUNTS = Struct("<III")
_PARTITIONS = np.dtype([("topic_id", "V16"), ("partition", "<i4"), ("leader_epoch", "<i4")])
_PREVIOUS_SLOT = np.dtype([("previous_slot", "<i8")])

INDEX_ROW = Struct("<BIqqiqhqiiHqqIqII")
"""One entry as a row: the fields of INDEX_DTYPE."""
INDEX_DTYPE = np.dtype(
    [
        ("kind", "u1"),
        ("partition", "<u4"),
        ("base_offset", "<i8"),
        ("last_offset", "<i8"),
        ("record_count", "<i4"),
        ("producer_id", "<i8"),
        ("producer_epoch", "<i2"),
        ("ordinal", "<i8"),
        ("first_sequence", "<i4"),
        ("last_sequence", "<i4"),
        ("flags", "<u2"),
        ("first_timestamp", "<i8"),
        ("max_timestamp", "<i8"),
        ("object", "<u4"),
        ("position", "<i8"),
        ("length", "<u4"),
        ("crc", "<u4"),
    ]
)
"""The index's columns in stored order. `partition` is a row of the table of (topic id, partition,
leader epoch). `object` is a string's number, from 1."""
assert INDEX_ROW.size == INDEX_DTYPE.itemsize
PLAIN_INDEX_DTYPE = np.dtype(INDEX_DTYPE.descr[:-1])
"""The index's columns in format 1, without the batches' checksums."""


class ObjectKind(Enum):
    """The kind of an object; the value is its magic."""

    DATA = b"TIDEWALO"
    SEAL = b"TIDESEAL"
    MERGED = b"TIDEMERG"
    """Not a slot: batches that were copied from slots (`merged_object`)."""


class SlotStamps(NamedTuple):
    """The writer's knowledge when it assembled a slot."""

    durable_end: Slot
    """The end of its confirmed slots: each is in the bucket, or below a checkpoint (C10)."""
    metadata: MetadataStamp
    """The last metadata log entry that it had applied (C11)."""


class ObjectHeader(NamedTuple):
    """The identity of an object: kind, incarnation and slot."""

    kind: ObjectKind
    incarnation: Incarnation
    slot: Slot
    """For a merged object, its number."""
    created_ms: int
    """When the slot was closed, by its writer's clock. Safety does not depend on it."""
    writer_id: bytes
    """16 bytes, unique for each object."""
    previous_crc: int
    """The checksum in the footer of the slot before; 0 in slot 0 and in seals."""
    stamps: SlotStamps | None = None
    """None in seals, in merged objects, and in slots of the first release."""

    @property
    def format_version(self) -> int:
        """The format version of the object."""
        return PLAIN_FORMAT_VERSION if self.stamps is None else WAL_FORMAT_VERSION

    @property
    def size_bytes(self) -> int:
        """The size of the header. The bodies follow it."""
        return _header_bytes(self.format_version)

    @property
    def footer_bytes(self) -> int:
        """The size of the footer of an object with this header."""
        return self.size_bytes + FOOTER_END_BYTES


def _header_bytes(version: int) -> int:
    return HEADER_BYTES if version == PLAIN_FORMAT_VERSION else STAMPED_HEADER_BYTES


def wal_prefix(incarnation: Incarnation) -> str:
    """The key prefix of an incarnation's WAL."""
    return f"wal/{incarnation}/"


def wal_key(incarnation: Incarnation, slot: Slot) -> str:
    return f"{wal_prefix(incarnation)}{slot:0{NUMBER_DIGITS}d}{WAL_SUFFIX}"


def merged_prefix(incarnation: Incarnation) -> str:
    """The key prefix of an incarnation's merged objects."""
    return f"{MERGED_FOLDER}{incarnation}/"


def merged_key(incarnation: Incarnation, number: int) -> str:
    return f"{merged_prefix(incarnation)}{number:0{NUMBER_DIGITS}d}{MERGED_SUFFIX}"


def wal_position(key: str) -> WalPosition | None:
    """The incarnation and slot of a key; None if it is not the key of a slot."""
    match = _KEY.fullmatch(key)
    if match is None:
        return None
    broker_id, epoch, slot = map(int, match.groups())
    position = WalPosition(Incarnation(BrokerId(broker_id), Epoch(epoch)), Slot(slot))
    return position if wal_key(*position) == key else None


def encode_header(header: ObjectHeader) -> bytes:
    """The bytes of a header. A seal consists only of them."""
    packed: bytes = _HEADER.pack(
        header.kind.value,
        header.format_version,
        header.incarnation.broker_id,
        header.incarnation.epoch,
        header.slot,
        header.created_ms,
        header.writer_id,
        header.previous_crc,
        0,
    )
    packed = _sealed(packed[:_HEADER_CRC_POSITION])
    if header.stamps is None:
        return packed
    durable_end, stamp = header.stamps
    stamps: bytes = _STAMPS.pack(durable_end, stamp.sequence, stamp.checksum, 0)
    return _sealed(packed + stamps[: -_CRC.size])


def _sealed(covered: bytes) -> bytes:
    return covered + _CRC.pack(crc32c(covered))


def decode_header(key: str, data: Buffer) -> ObjectHeader:
    """The header at the start of `data`. Raises CorruptObject and UnsupportedFormat."""
    view = memoryview(data)
    if len(view) < HEADER_BYTES:
        raise CorruptObject(key, f"it has only {len(view)} bytes")
    fields = _HEADER.unpack_from(view)
    magic, version, broker_id, epoch, slot, created_ms, writer_id, previous_crc, crc = fields
    try:
        kind = ObjectKind(magic)
    except ValueError:
        raise CorruptObject(key, f"it begins with {magic!r}: no WAL object, no seal") from None
    if crc32c(view[:_HEADER_CRC_POSITION]) != crc:
        raise CorruptObject(key, "the header's checksum does not match")
    _check_version(key, version)
    stamps = None if version == PLAIN_FORMAT_VERSION else _decode_stamps(key, view)
    incarnation = Incarnation(BrokerId(broker_id), Epoch(epoch))
    return ObjectHeader(kind, incarnation, Slot(slot), created_ms, writer_id, previous_crc, stamps)


def _decode_stamps(key: str, view: memoryview) -> SlotStamps:
    if len(view) < STAMPED_HEADER_BYTES:
        raise CorruptObject(key, f"it has only {len(view)} bytes")
    durable_end, sequence, checksum, crc = _STAMPS.unpack_from(view, HEADER_BYTES)
    if crc32c(view[: STAMPED_HEADER_BYTES - _CRC.size]) != crc:
        raise CorruptObject(key, "the checksum of the header's stamps does not match")
    return SlotStamps(Slot(durable_end), MetadataStamp(sequence, checksum))


def identify(data: Buffer, key: str = "a WAL slot") -> bytes:
    """The writer id of an object or a seal. Raises CorruptObject and UnsupportedFormat."""
    return decode_header(key, data).writer_id


def _check_version(key: str, version: int) -> None:
    if version < 1:
        raise CorruptObject(key, f"format version {version}")
    if version > WAL_FORMAT_VERSION:
        raise UnsupportedFormat(
            f"object {key} is of WAL format {version}; this version of Tidelog reads formats up to"
            f" {WAL_FORMAT_VERSION}: use a newer one; nothing was changed"
        )


class Layout(NamedTuple):
    """The positions of an object's sections, and its size."""

    index_position: int
    images_position: int
    size: int


Tenures: TypeAlias = list[TenureKey]


def encode_index(
    tenures: Tenures,
    columns: Sequence[Sequence[int]],
    objects: list[str],
    previous_slots: Sequence[int] | None = None,
) -> bytes:
    """The index section: the columns of INDEX_DTYPE, in the order of the appends.

    `previous_slots` belongs to a stamped object, with one slot per tenure (see
    `SlotIndex.previous_slots`). An object without stamps has the columns of PLAIN_INDEX_DTYPE.
    """
    table = [(tp.topic_id.bytes, tp.partition, leader_epoch) for tp, leader_epoch in tenures]
    previous = () if previous_slots is None else columns_bytes(_PREVIOUS_SLOT, [previous_slots])
    dtype = _index_dtype(previous_slots is not None)
    return b"".join(
        (
            _INDEX_COUNTS.pack(len(columns[0]), len(tenures), len(objects)),
            *table_bytes(_PARTITIONS, table),
            *previous,
            *columns_bytes(dtype, columns[: len(dtype.names or ())]),
            *strings_bytes(objects),
        )
    )


def _index_dtype(is_stamped: bool) -> np.dtype[np.void]:
    return INDEX_DTYPE if is_stamped else PLAIN_INDEX_DTYPE


def finish_object(data: bytearray, header: ObjectHeader, layout: Layout, body_crc: int) -> int:
    """Write header and footer around an object's sections; the checksum in the footer.

    `body_crc`: the CRC-32C of all bodies, in their order in the object.
    """
    view = memoryview(data)
    packed = encode_header(header)
    size = len(packed)
    view[:size] = packed
    end = layout.size - FOOTER_END_BYTES
    view[end - size : end] = packed
    version = header.format_version
    _FOOTER_END.pack_into(data, end, *layout, body_crc, 0, version, FOOTER_MAGIC)
    crc = _footer_crc(view, layout.index_position, end, version)
    _FOOTER_END.pack_into(data, end, *layout, body_crc, crc, version, FOOTER_MAGIC)
    return crc


def _footer_crc(view: memoryview, index: int, end: int, version: int) -> int:
    """The checksum in the footer. In format 1 it does not cover the version."""
    crc: int = crc32c(view[index : end + _FOOTER_CRC_POSITION])
    if version == PLAIN_FORMAT_VERSION:
        return crc
    following = end + _FOOTER_CRC_POSITION + _CRC.size
    return int(crc32c(view[following : following + _VERSION_BYTES], crc))


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


_KINDS = {int(kind): kind for kind in EntryKind}
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
    crc, version = _FOOTER_END.unpack_from(view, end)[4:6]
    if _footer_crc(view, index, end, version) != crc:
        raise CorruptObject(key, "the checksum of index and footer does not match")
    _check_version(key, version)
    footer = end - _header_bytes(version)
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
    body_crc = _FOOTER_END.unpack_from(view, len(view) - FOOTER_END_BYTES)[3]
    if crc32c(view[found.header.size_bytes : found.layout.index_position]) != body_crc:
        raise CorruptObject(key, "the checksum of its record batches does not match")
    return found


def _layout(key: str, tail: memoryview, size: int) -> Layout:
    """The layout, checked only against the object's bounds."""
    if size < HEADER_BYTES + HEADER_BYTES + FOOTER_END_BYTES or len(tail) < FOOTER_END_BYTES:
        raise CorruptObject(key, f"it has only {size} bytes")
    *fields, magic = _FOOTER_END.unpack_from(tail, len(tail) - FOOTER_END_BYTES)
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
    if end - position < _INDEX_COUNTS.size:
        raise CorruptObject(key, f"its index has only {end - position} bytes")
    entries, partitions, strings = _INDEX_COUNTS.unpack_from(view, position)
    reader = ColumnReader(key, view, position + _INDEX_COUNTS.size, end)
    table = reader.table(_PARTITIONS, partitions)
    previous = None
    if header.stamps is not None:
        previous = reader.table(_PREVIOUS_SLOT, partitions)["previous_slot"].tolist()
    columns = reader.table(_index_dtype(header.stamps is not None), entries)
    objects = reader.strings(strings)
    reader.finish()
    bodies = range(header.size_bytes, layout.index_position + 1)
    _check_entries(key, columns, partitions, strings, bodies, len(images or ()))
    topics = table["topic_id"].tobytes()
    numbers = zip(table["partition"].tolist(), table["leader_epoch"].tolist(), strict=True)
    tenures = [
        (
            TopicPartition(UUID(bytes=topics[16 * row : 16 * row + 16]), partition),
            LeaderEpoch(epoch),
        )
        for row, (partition, epoch) in enumerate(numbers)
    ]
    return SlotIndex(key, header, crc, layout, tenures, columns, objects, images, previous)


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
    own, opens = kind == EntryKind.BATCH, kind == EntryKind.OPENING
    relocated = kind == EntryKind.RELOCATED
    placed = own | relocated | (kind == EntryKind.ADOPTED)
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
    for what, rows in faults.items():
        if rows.any():
            raise CorruptObject(key, f"its index has {what} (entry {int(rows.argmax())})")
