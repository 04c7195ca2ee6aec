"""Segments: Parquet files of one partition's committed records. What they are called, what is known
of each. `docs/formats/segment.md` describes them."""

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
"""In the file's key-value metadata: what the file says of itself, as JSON."""
TOPICS_PREFIX: Final = "topics/"

_PATH = re.compile(
    rf"partition=(\d+)/(\d{{{NUMBER_DIGITS}}})-(\d{{{NUMBER_DIGITS}}})-([0-9a-f]{{32}})\.parquet"
)


def table_prefix(topic_id: TopicId) -> str:
    """The beginning of the key of everything in a topic's table."""
    return f"{TOPICS_PREFIX}{topic_id}/"


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentName:
    """Whose records, at which offsets, and which of the files that may hold them."""

    partition: int
    base_offset: int
    """The first offset that the segment covers; where aborted records were, the first row's is
    later."""
    last_offset: int
    """The last offset that it covers, inclusive."""
    id: UUID

    def __post_init__(self) -> None:
        if self.partition < 0 or not 0 <= self.base_offset <= self.last_offset < 2**63:
            raise ValueError(
                f"partition {self.partition} at offsets {self.base_offset} to {self.last_offset}"
                f" is no segment"
            )

    @property
    def path(self) -> str:
        """Relative to the table's folder."""
        base, last = self.base_offset, self.last_offset
        return (
            f"partition={self.partition}/{base:0{NUMBER_DIGITS}d}-{last:0{NUMBER_DIGITS}d}"
            f"-{self.id.hex}.parquet"
        )

    @classmethod
    def parse(cls, path: str) -> SegmentName | None:
        """The name from a path relative to the table's folder; None if it is no segment's."""
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
    """A range of offsets that log compaction has gone through: it begins where the one before ends,
    or where the segment begins."""

    next_offset: int
    """The first offset behind it."""
    cleaned_ms: int
    """When its tombstones had been compacted for the first time, all of them: they go
    `delete.retention.ms` after that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """A segment that is stored, or is about to be, and what one must know to read it."""

    name: SegmentName
    size_bytes: int
    """Of the object."""
    row_count: int
    first_row: int
    """Offset of the first row; the segment may cover earlier offsets."""
    last_row: int
    """Offset of the last row."""
    undated_rows: int
    """Rows without a timestamp."""
    raw_bytes: int
    """Keys, values and headers, before encoding and compression."""
    timestamp_min: int | None
    """Milliseconds; None where no row has a timestamp."""
    timestamp_max: int | None
    crc32c: int
    """Of the whole object."""
    tail_bytes: int
    """Of the object's end, which says where everything is: seal and footer (`parquet_seal`)."""
    tombstones: int | None = None
    """Rows without a value; None where that was not counted."""
    cleaned: tuple[CleanedRange, ...] = ()
    """What log compaction has gone through, ascending from the segment's base on; what lies behind
    the last range is dirty."""

    @property
    def cleaned_to(self) -> int:
        """The first offset that log compaction has not gone through."""
        return self.cleaned[-1].next_offset if self.cleaned else self.name.base_offset

    @property
    def path(self) -> str:
        """Relative to the table's folder."""
        return self.name.path

    def key(self, topic_id: TopicId) -> str:
        """The object's key."""
        return table_prefix(topic_id) + self.path


def describe(topic_partition: TopicPartition, base_offset: int, last_offset: int) -> bytes:
    """What a segment's file says of itself."""
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
    """Whose records a file says it holds."""

    topic_partition: TopicPartition
    base_offset: int
    last_offset: int


def read_identity(key: str, description: bytes | None) -> SegmentIdentity:
    """What a file says of itself. CorruptObject, UnsupportedFormat."""
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
