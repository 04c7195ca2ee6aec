"""WAL objects, merged objects and seals: header, bodies, index, opening images, footer.

    header | bodies, grouped by partition | index | opening images | footer

The footer repeats the header, so whoever has the end of an object knows whose it is and what is in
it: recovery reads footer and index and never the bodies. The footer's checksum covers index, images
and footer, the bodies' own checksum included: it stands for the whole object, and the next slot's
header holds it. A seal is a header alone, with a magic of its own. A merged object is laid out like
a slot, with a magic of its own too; it holds batches that were copied from slots, and no images.

A slot carries stamps (rules C10, C11) and is of format 2. Seals and merged objects carry none and
are of format 1, as are the slots that the first release wrote. Magic, version and checksum have the
same places in all formats, and the checksum covers the version: a reader checks it first. So a
damaged version is a damaged object, and an object of a newer format is not taken for a damaged one.

`docs/formats/wal.md` has every byte. An object that does not hold raises CorruptObject, one of a
newer format UnsupportedFormat.
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
"""Of objects without stamps."""
WAL_FORMAT_VERSION = 2
"""Of objects with stamps; the newest that is read."""
WAL_SUFFIX = ".wal"
MERGED_FOLDER = "merged/"
MERGED_SUFFIX = ".merged"
HEADER_BYTES = 64
"""Of a header without stamps: all of a seal."""
STAMPED_HEADER_BYTES = 96
FOOTER_END_BYTES = 44
"""What follows the header in the footer: the same in all formats."""
TAIL_READ_BYTES = 64 * 1024
"""What to read of an object's end at first; `tail_bytes` says whether that is enough."""
OWN_OBJECT = 0
"""In the index, the number of the object that holds the index; others count from 1."""

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
"""One entry before it is laid out in columns: the fields of INDEX_DTYPE."""
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
"""The index's columns in stored order. `partition` counts into the table of (topic id, partition,
leader epoch); `object` into the strings, from 1."""
assert INDEX_ROW.size == INDEX_DTYPE.itemsize
PLAIN_INDEX_DTYPE = np.dtype(INDEX_DTYPE.descr[:-1])
"""Of objects of format 1, without checksums of batches."""


class ObjectKind(Enum):
    """What an object is; the value is the magic."""

    DATA = b"TIDEWALO"
    SEAL = b"TIDESEAL"
    MERGED = b"TIDEMERG"
    """No slot: batches that were copied together from others (`merged_object`)."""


class SlotStamps(NamedTuple):
    """What the writer knew when it laid a slot out."""

    durable_end: Slot
    """How many slots it had confirmed: all below are in the bucket, or below a checkpoint (C10)."""
    metadata: MetadataStamp
    """The last entry of the metadata log that it had applied (C11)."""


class ObjectHeader(NamedTuple):
    """Whose object it is, and of which slot."""

    kind: ObjectKind
    incarnation: Incarnation
    slot: Slot
    """Of a merged object its number."""
    created_ms: int
    """When the slot was closed, by its writer's clock; nothing's safety rests on it."""
    writer_id: bytes
    """16 bytes, never used twice."""
    previous_crc: int
    """The footer's checksum of the slot before; 0 in slot 0 and in seals."""
    stamps: SlotStamps | None = None
    """None in seals, in merged objects, and in slots that the first release wrote."""

    @property
    def format_version(self) -> int:
        """The object's format."""
        return PLAIN_FORMAT_VERSION if self.stamps is None else WAL_FORMAT_VERSION

    @property
    def size_bytes(self) -> int:
        """Of the header itself: the bodies begin behind it."""
        return _header_bytes(self.format_version)

    @property
    def footer_bytes(self) -> int:
        """Of the footer of an object with this header."""
        return self.size_bytes + FOOTER_END_BYTES


def _header_bytes(version: int) -> int:
    return HEADER_BYTES if version == PLAIN_FORMAT_VERSION else STAMPED_HEADER_BYTES


def wal_prefix(incarnation: Incarnation) -> str:
    """The beginning of the keys of an incarnation's WAL."""
    return f"wal/{incarnation}/"


def wal_key(incarnation: Incarnation, slot: Slot) -> str:
    """The key of one slot."""
    return f"{wal_prefix(incarnation)}{slot:0{NUMBER_DIGITS}d}{WAL_SUFFIX}"


def merged_prefix(incarnation: Incarnation) -> str:
    """The beginning of the keys of an incarnation's merged objects."""
    return f"{MERGED_FOLDER}{incarnation}/"


def merged_key(incarnation: Incarnation, number: int) -> str:
    """The key of one merged object."""
    return f"{merged_prefix(incarnation)}{number:0{NUMBER_DIGITS}d}{MERGED_SUFFIX}"


def wal_position(key: str) -> WalPosition | None:
    """Whose slot a key is; None for a key that no slot has."""
    match = _KEY.fullmatch(key)
    if match is None:
        return None
    broker_id, epoch, slot = map(int, match.groups())
    position = WalPosition(Incarnation(BrokerId(broker_id), Epoch(epoch)), Slot(slot))
    return position if wal_key(*position) == key else None


def encode_header(header: ObjectHeader) -> bytes:
    """The bytes with which an object begins; a seal has no more."""
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
    """The header at the beginning of the data. Raises CorruptObject and UnsupportedFormat."""
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
    """Where an object's sections begin, and its size."""

    index_position: int
    images_position: int
    size: int


Tenures: TypeAlias = "list[tuple[TopicPartition, LeaderEpoch]]"


def encode_index(
    tenures: Tenures,
    columns: Sequence[Sequence[int]],
    objects: list[str],
    previous_slots: Sequence[int] | None = None,
) -> bytes:
    """The index's section: the columns of INDEX_DTYPE, in the order in which they were appended.

    `previous_slots`: of a stamped object, for each tenure (see `SlotIndex.previous_slots`). An
    object without stamps has the columns of PLAIN_INDEX_DTYPE.
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
    """Write header and footer into an object whose sections are in place; the footer's checksum.

    `body_crc`: the CRC-32C of all bodies, in the order in which they lie.
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
    """The footer's checksum. It does not cover the version in format 1."""
    crc: int = crc32c(view[index : end + _FOOTER_CRC_POSITION])
    if version == PLAIN_FORMAT_VERSION:
        return crc
    following = end + _FOOTER_CRC_POSITION + _CRC.size
    return int(crc32c(view[following : following + _VERSION_BYTES], crc))


class SlotIndex:
    """What is in a slot: its header, the index's columns and the opening images."""

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
        """The footer's checksum, which stands for the whole object."""
        self.layout = layout
        self.tenures = tenures
        """The partitions and leader epochs that have an entry in the slot, or had one in the slot
        before."""
        self.previous_slots = previous_slots
        """For each of `tenures` an earlier slot (or -1): no slot in between has an entry of it.
        None in an object without stamps."""
        self.columns = columns
        """By the names of INDEX_DTYPE, or PLAIN_INDEX_DTYPE in an object without stamps."""
        self.images = images
        """The opening images, or None if no tenure opens here."""
        self._objects = objects

    def previous_slot(self, tenure: tuple[TopicPartition, LeaderEpoch]) -> int | None:
        """What the slot says of a tenure (`previous_slots`); None if it says nothing of it."""
        return self._previous.get(tenure)

    @cached_property
    def _previous(self) -> Mapping[tuple[TopicPartition, LeaderEpoch], int]:
        if self.previous_slots is None:
            return {}
        return dict(zip(self.tenures, self.previous_slots, strict=True))

    @property
    def other_objects(self) -> Sequence[str]:
        """The other objects in which its entries say that batches lie."""
        return self._objects

    def __len__(self) -> int:
        return len(self.columns["kind"])

    def entries(
        self, wanted: Container[tuple[TopicPartition, LeaderEpoch]] | None = None
    ) -> Iterator[IndexEntry]:
        """The entries in the order in which they were appended, those of some tenures if given."""
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
    """How many bytes of the end of an object of `size` bytes `decode_tail` needs.

    `tail`: the last bytes, at least FOOTER_BYTES of them or the whole object. If the answer is more
    than was read, read so many. Raises CorruptObject and UnsupportedFormat.
    """
    if size == HEADER_BYTES:
        return HEADER_BYTES
    return size - _layout(key, memoryview(tail), size).index_position


def decode_tail(key: str, tail: Buffer, size: int) -> SlotIndex | ObjectHeader:
    """What an object of `size` bytes holds, from its last bytes; a seal's header for a seal. Of a
    merged object too: who reads a WAL checks the header's kind.

    `tail`: at least `tail_bytes` bytes. The bodies are not looked at: `check_body` does that.
    Raises CorruptObject and UnsupportedFormat.
    """
    view = memoryview(tail)
    if size == HEADER_BYTES:
        header = decode_header(key, view)
        if header.kind is not ObjectKind.SEAL:
            raise CorruptObject(key, "it ends behind its header")
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
    """A whole object, checked to the last byte: header and bodies too. For fsck and repair.

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
    """Not checked yet, but within the object's bounds."""
    if size < HEADER_BYTES + HEADER_BYTES + FOOTER_END_BYTES or len(tail) < FOOTER_END_BYTES:
        raise CorruptObject(key, f"it has only {size} bytes")
    *fields, magic = _FOOTER_END.unpack_from(tail, len(tail) - FOOTER_END_BYTES)
    if magic != FOOTER_MAGIC:
        raise CorruptObject(key, f"it ends with {magic!r}, not {FOOTER_MAGIC!r}")
    layout = Layout._make(fields[:3])
    ordered = HEADER_BYTES <= layout.index_position <= layout.images_position
    end = size - FOOTER_END_BYTES - HEADER_BYTES
    if layout.size != size or not ordered or layout.images_position > end:
        raise CorruptObject(key, f"its footer says {layout}, it has {size} bytes")
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
    """What the checksum cannot know: that a writer's mistake is not read beyond its bounds."""
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
