"""Names and properties of segments. `docs/formats/segment.md` describes the files."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any, Final, NamedTuple
from uuid import UUID

from tidelog.errors import CorruptObject, UnsupportedFormat
from tidelog.identifiers import TopicId, TopicPartition
from tidelog.storage.sequence import NUMBER_DIGITS

FORMAT_VERSION: Final = 1
METADATA_KEY: Final = b"tidelog.segment"
"""Key of the file's description (JSON) in the Parquet key-value metadata."""
TOPICS_PREFIX: Final = "topics/"

_PATH = re.compile(
    rf"partition=(\d+)/(\d{{{NUMBER_DIGITS}}})-(\d{{{NUMBER_DIGITS}}})-([0-9a-f]{{32}})\.parquet"
)


def table_prefix(topic_id: TopicId) -> str:
    """The key prefix of all objects of a topic's table."""
    return f"{TOPICS_PREFIX}{topic_id}/"


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentName:
    """The partition and offsets that a segment covers, and an id that makes the name unique."""

    partition: int
    base_offset: int
    """The first covered offset. Aborted records may precede the first row."""
    last_offset: int
    """The last covered offset, inclusive."""
    id: UUID

    def __post_init__(self) -> None:
        if self.partition < 0 or not 0 <= self.base_offset <= self.last_offset < 2**63:
            raise ValueError(
                f"partition {self.partition} at offsets {self.base_offset} to {self.last_offset}"
                f" is no segment"
            )

    @property
    def path(self) -> str:
        """The path relative to the table's folder."""
        base, last = self.base_offset, self.last_offset
        return (
            f"partition={self.partition}/{base:0{NUMBER_DIGITS}d}-{last:0{NUMBER_DIGITS}d}"
            f"-{self.id.hex}.parquet"
        )

    @classmethod
    def parse(cls, path: str) -> SegmentName | None:
        """The name in a path relative to the table's folder; None if it is no segment's."""
        match = _PATH.fullmatch(path)
        if match is None:
            return None
        partition, base, last, name = match.groups()
        try:
            found = cls(
                partition=int(partition),
                base_offset=int(base),
                last_offset=int(last),
                id=UUID(hex=name),
            )
        except ValueError:
            return None
        return found if found.path == path else None


class CleanedRange(NamedTuple):
    """A range of offsets that log compaction has cleaned.

    It begins at the end of the previous range, or at the segment's base.
    """

    next_offset: int
    """The first offset after the range."""
    cleaned_ms: int
    """The time when all of its tombstones had been compacted for the first time. They are dropped
    `delete.retention.ms` later.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """The properties of a segment that a reader needs."""

    name: SegmentName
    size_bytes: int
    """Size of the object."""
    row_count: int
    first_row: int
    """Offset of the first row; the segment may cover earlier offsets."""
    last_row: int
    """Offset of the last row."""
    undated_rows: int
    """Rows without a timestamp."""
    raw_bytes: int
    """Bytes of keys, values and headers, before encoding and compression."""
    timestamp_min: int | None
    """Milliseconds; None if no row has a timestamp."""
    timestamp_max: int | None
    crc32c: int
    """Checksum of the whole object."""
    tail_bytes: int
    """Length of seal and footer at the object's end (`parquet_seal`)."""
    tombstones: int | None = None
    """Rows without a value; None if they were not counted."""
    cleaned: tuple[CleanedRange, ...] = ()
    """The ranges that log compaction has cleaned, ascending from the segment's base. Offsets after
    the last range are dirty.
    """

    @property
    def cleaned_to(self) -> int:
        """The first offset that log compaction has not cleaned."""
        return self.cleaned[-1].next_offset if self.cleaned else self.name.base_offset

    @property
    def path(self) -> str:
        """The path relative to the table's folder."""
        return self.name.path

    def key(self, topic_id: TopicId) -> str:
        return table_prefix(topic_id) + self.path


def describe(topic_partition: TopicPartition, base_offset: int, last_offset: int) -> bytes:
    """The description in a segment's file, as JSON."""
    return json.dumps(
        {
            "format": FORMAT_VERSION,
            "topicId": str(topic_partition.topic_id),
            "partition": topic_partition.partition,
            "baseOffset": base_offset,
            "lastOffset": last_offset,
        }
    ).encode()


@dataclass(frozen=True, slots=True)
class SegmentIdentity:
    """The partition and offsets that a file's description claims."""

    topic_partition: TopicPartition
    base_offset: int
    last_offset: int


def read_identity(key: str, description: bytes | None) -> SegmentIdentity:
    """The identity in a file's description. CorruptObject, UnsupportedFormat."""
    if description is None:
        raise CorruptObject(key, "it is a Parquet file, but not a segment of Tidelog's")
    try:
        fields: dict[str, Any] = json.loads(description)
        if fields["format"] > FORMAT_VERSION:
            raise UnsupportedFormat(
                f"segment {key} has format {fields['format']}, this version reads up to"
                f" {FORMAT_VERSION}: use a newer Tidelog"
            )
        topic_partition = TopicPartition(UUID(fields["topicId"]), int(fields["partition"]))
        return SegmentIdentity(
            topic_partition, int(fields["baseOffset"]), int(fields["lastOffset"])
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CorruptObject(key, f"its description does not decode: {error!r}") from None
