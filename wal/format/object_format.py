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

`docs/formats/wal.md` describes every byte. This module writes objects and reads headers;
`slot_index` reads the rest. A damaged object raises CorruptObject. An object of a newer format
raises UnsupportedFormat.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import Enum
from struct import Struct
from typing import NamedTuple, TypeAlias

import numpy as np
from awscrt.checksums import crc32c

from tidelog.errors import CorruptObject, UnsupportedFormat
from tidelog.identifiers import (
    BrokerId,
    Epoch,
    Incarnation,
    MetadataStamp,
    Slot,
    TenureKey,
    WalPosition,
)
from tidelog.storage.object_store import Buffer
from tidelog.storage.sequence import NUMBER_DIGITS
from tidelog.wal.format.columns import columns_bytes, strings_bytes, table_bytes

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
FOOTER_END = Struct("<QQQIII8s")
_FOOTER_CRC_POSITION = 28
_VERSION_BYTES = 4
INDEX_COUNTS = Struct("<III")
TENURES_DTYPE = np.dtype([("topic_id", "V16"), ("partition", "<i4"), ("leader_epoch", "<i4")])
PREVIOUS_SLOT_DTYPE = np.dtype([("previous_slot", "<i8")])

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
        return header_bytes(self.format_version)

    @property
    def footer_bytes(self) -> int:
        """The size of the footer of an object with this header."""
        return self.size_bytes + FOOTER_END_BYTES


def header_bytes(version: int) -> int:
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
    check_version(key, version)
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


def check_version(key: str, version: int) -> None:
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
    previous = (
        () if previous_slots is None else columns_bytes(PREVIOUS_SLOT_DTYPE, [previous_slots])
    )
    dtype = index_dtype(previous_slots is not None)
    return b"".join(
        (
            INDEX_COUNTS.pack(len(columns[0]), len(tenures), len(objects)),
            *table_bytes(TENURES_DTYPE, table),
            *previous,
            *columns_bytes(dtype, columns[: len(dtype.names or ())]),
            *strings_bytes(objects),
        )
    )


def index_dtype(is_stamped: bool) -> np.dtype[np.void]:
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
    FOOTER_END.pack_into(data, end, *layout, body_crc, 0, version, FOOTER_MAGIC)
    crc = footer_crc(view, layout.index_position, end, version)
    FOOTER_END.pack_into(data, end, *layout, body_crc, crc, version, FOOTER_MAGIC)
    return crc


def footer_crc(view: memoryview, index: int, end: int, version: int) -> int:
    """The checksum in the footer. In format 1 it does not cover the version."""
    crc: int = crc32c(view[index : end + _FOOTER_CRC_POSITION])
    if version == PLAIN_FORMAT_VERSION:
        return crc
    following = end + _FOOTER_CRC_POSITION + _CRC.size
    return int(crc32c(view[following : following + _VERSION_BYTES], crc))
