"""Staged objects: a task's finished batches, grouped by partition, before their adoption. Pure.

`docs/formats/staged.md` describes the bytes. An object is written once, under a unique id. The
partitions' leaders adopt it (H8), or the collector deletes it (H9).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from struct import Struct
from typing import Final, NamedTuple
from uuid import UUID

import numpy as np
from awscrt.checksums import crc32c

from tidelog.errors import CorruptObject, UnsupportedFormat
from tidelog.identifiers import TopicPartition
from tidelog.records.batch import BatchHeader
from tidelog.records.rows.row_encoding import EncodedBatch
from tidelog.storage.object_store import Buffer
from tidelog.wal.format.columns import ColumnReader, strings_bytes, table_bytes
from tidelog.wal.log.adoption import staged_key

MAGIC: Final = b"TIDESTAG"
FOOTER_MAGIC: Final = b"TIDESTGE"
STAGED_FORMAT_VERSION: Final = 1
TAIL_READ_BYTES: Final = 64 * 1024
"""The size of the first read of an object's end. It contains the index of most objects."""

_HEADER: Final = Struct("<8sI16sqqI")
_FOOTER: Final = Struct("<QQIII8s")
HEADER_BYTES: Final = _HEADER.size
FOOTER_BYTES: Final = _FOOTER.size
_COUNTS: Final = Struct("<III")
_STRINGS: Final = 2

_PARTITIONS = np.dtype([("topic_id", "V16"), ("partition", "<i4"), ("batches", "<u4")])
_BATCHES = np.dtype(
    [
        ("last_offset_delta", "<i4"),
        ("record_count", "<i4"),
        ("attributes", "<u2"),
        ("base_timestamp", "<i8"),
        ("max_timestamp", "<i8"),
        ("position", "<i8"),
        ("length", "<u4"),
    ]
)


class StagedFor(NamedTuple):
    """The query and its batch that an object was staged for."""

    transactional_id: str
    query_id: str
    batch_id: int


class StagedBatch(NamedTuple):
    """One batch of a staged object, from its index."""

    last_offset_delta: int
    record_count: int
    attributes: int
    base_timestamp: int
    max_timestamp: int
    position: int
    length: int


class StagedIndex(NamedTuple):
    """The decoded end of a staged object."""

    key: str
    staged_id: UUID
    staged_ms: int
    """The time by the task's clock. Safety does not depend on it."""
    purpose: StagedFor
    partitions: Mapping[TopicPartition, Sequence[StagedBatch]]
    """The batches of each partition, in the order of their records and adjacent in the object."""
    size_bytes: int

    @property
    def record_count(self) -> int:
        """The number of records in all partitions."""
        return sum(each.record_count for batches in self.partitions.values() for each in batches)


def encode_staged(
    staged_id: UUID,
    staged_ms: int,
    purpose: StagedFor,
    partitions: Mapping[TopicPartition, Sequence[EncodedBatch]],
) -> list[Buffer]:
    """The object as pieces, in order. It needs a partition, and each partition needs a batch."""
    header = _HEADER.pack(
        MAGIC, STAGED_FORMAT_VERSION, staged_id.bytes, staged_ms, purpose.batch_id, 0
    )
    header = header[:-4] + crc32c(header[:-4]).to_bytes(4, "little")
    pieces: list[Buffer] = [header]
    groups: list[tuple[bytes, int, int]] = []
    rows: list[StagedBatch] = []
    position, body_crc = HEADER_BYTES, 0
    for partition, batches in partitions.items():
        if not batches:
            raise ValueError(f"{partition} has no batch to be staged")
        groups.append((partition.topic_id.bytes, partition.partition, len(batches)))
        for batch in batches:
            header_fields = BatchHeader.parse(batch.header)
            rows.append(
                StagedBatch(
                    header_fields.last_offset_delta,
                    header_fields.record_count,
                    header_fields.attributes,
                    header_fields.base_timestamp,
                    header_fields.max_timestamp,
                    position,
                    batch.size_bytes,
                )
            )
            for piece in (batch.header, batch.records):
                body_crc = crc32c(piece, body_crc)
                pieces.append(piece)
            position += batch.size_bytes
    index = b"".join(
        (
            _COUNTS.pack(len(groups), len(rows), _STRINGS),
            *table_bytes(_PARTITIONS, groups),
            *table_bytes(_BATCHES, rows),
            *strings_bytes([purpose.transactional_id, purpose.query_id]),
        )
    )
    size = position + len(index) + FOOTER_BYTES
    footer = _FOOTER.pack(position, size, body_crc, 0, STAGED_FORMAT_VERSION, FOOTER_MAGIC)
    tail_crc = crc32c(footer[:20], crc32c(index, crc32c(header)))
    footer = _FOOTER.pack(position, size, body_crc, tail_crc, STAGED_FORMAT_VERSION, FOOTER_MAGIC)
    return [*pieces, index, footer]


def tail_bytes(key: str, tail: Buffer, size: int) -> int:
    """The size of the index and footer at the object's end. Raises CorruptObject."""
    position = _footer(key, tail, size)[0]
    return size - position


def decode_tail(key: str, head: Buffer, tail: Buffer, size: int) -> StagedIndex:
    """The index of an object. Raises CorruptObject and UnsupportedFormat.

    `head`: the object's first HEADER_BYTES. `tail`: its end, at least index and footer.
    """
    position, _, tail_crc = _footer(key, tail, size)
    view = memoryview(tail)
    start = len(view) - (size - position)
    if start < 0 or len(head) != HEADER_BYTES:
        raise CorruptObject(key, f"{len(head)} and {len(view)} bytes of it are not enough")
    covered = crc32c(view[start : len(view) - FOOTER_BYTES], crc32c(bytes(head)))
    footer = bytes(view[len(view) - FOOTER_BYTES :])
    if crc32c(footer[:20], covered) != tail_crc:
        raise CorruptObject(key, "the checksum of its index does not match")
    magic, version, staged_id, staged_ms, batch_id, head_crc = _HEADER.unpack(bytes(head))
    if magic != MAGIC or crc32c(bytes(head[:-4])) != head_crc:
        raise CorruptObject(key, "its header is damaged")
    # The footer's checksum does not cover the version after it; the header's does.
    if version != _FOOTER.unpack(footer)[4]:
        raise CorruptObject(key, f"format {version} in its header and another in its footer")
    _check_version(key, version)
    if key != staged_key(UUID(bytes=staged_id)):
        raise CorruptObject(key, f"it is the staged object {UUID(bytes=staged_id)}")
    groups, count, strings = _COUNTS.unpack_from(view, start)
    if strings != _STRINGS:
        raise CorruptObject(key, f"its index has {strings} strings")
    reader = ColumnReader(key, view, start + _COUNTS.size, len(view) - FOOTER_BYTES)
    table = reader.table(_PARTITIONS, groups)
    columns = reader.table(_BATCHES, count)
    transactional_id, query_id = reader.strings(strings)
    reader.finish()
    values = (column.tolist() for column in columns.values())
    rows = [StagedBatch._make(row) for row in zip(*values, strict=True)]
    _check_places(key, rows, position)
    topics = table["topic_id"].tobytes()
    partitions: dict[TopicPartition, Sequence[StagedBatch]] = {}
    begin = 0
    for row, (number, batches) in enumerate(
        zip(table["partition"].tolist(), table["batches"].tolist(), strict=True)
    ):
        place = TopicPartition(UUID(bytes=topics[16 * row : 16 * row + 16]), number)
        partitions[place] = rows[begin : begin + batches]
        begin += batches
    if begin != count or len(partitions) != groups or not all(partitions.values()):
        raise CorruptObject(key, "its partitions are not those of its batches")
    purpose = StagedFor(transactional_id, query_id, batch_id)
    return StagedIndex(key, UUID(bytes=staged_id), staged_ms, purpose, partitions, size)


def check_bodies(key: str, data: Buffer) -> StagedIndex:
    """Check every byte of a whole object; its index. Raises CorruptObject."""
    view = memoryview(data)
    found = decode_tail(key, view[:HEADER_BYTES], view, len(view))
    position, body_crc, _ = _footer(key, view, len(view))
    if crc32c(view[HEADER_BYTES:position]) != body_crc:
        raise CorruptObject(key, "the checksum of its batches does not match")
    return found


def _footer(key: str, tail: Buffer, size: int) -> tuple[int, int, int]:
    """The index's position, and the checksums of bodies and tail."""
    if size < HEADER_BYTES + _COUNTS.size + FOOTER_BYTES or len(tail) < FOOTER_BYTES:
        raise CorruptObject(key, f"it has only {size} bytes")
    position, says, body_crc, tail_crc, _, magic = _FOOTER.unpack(
        bytes(memoryview(tail)[len(tail) - FOOTER_BYTES :])
    )
    if magic != FOOTER_MAGIC:
        raise CorruptObject(key, f"it ends with {magic!r}, not {FOOTER_MAGIC!r}")
    if says != size or not HEADER_BYTES <= position <= size - FOOTER_BYTES - _COUNTS.size:
        raise CorruptObject(key, f"its footer has {says} bytes and an index at {position}")
    return position, body_crc, tail_crc


def _check_version(key: str, version: int) -> None:
    if version > STAGED_FORMAT_VERSION:
        raise UnsupportedFormat(
            f"{key} has format version {version}, this Tidelog reads {STAGED_FORMAT_VERSION}:"
            " use a newer one"
        )


def _check_places(key: str, rows: Sequence[StagedBatch], end: int) -> None:
    following = HEADER_BYTES
    for row in rows:
        if row.position != following or not row.length or row.record_count < 1:
            raise CorruptObject(key, f"its index has no batch at position {following}")
        following += row.length
    if following != end:
        raise CorruptObject(key, "its batches do not fill the place between header and index")
