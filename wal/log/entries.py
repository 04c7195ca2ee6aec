"""The entries of a WAL object's index."""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple, Protocol

from tidelog.identifiers import LeaderEpoch, TopicId, TopicPartition

NO_ORDINAL = -1
"""No transaction, or a transaction without a number from a coordinator (rule H1)."""
COMMIT_FLAG = 0x100
"""In an entry's flags: this control batch is a COMMIT marker. A control batch without it aborts."""


class EntryKind(IntEnum):
    """The kind of an entry (rule D3)."""

    BATCH = 1
    """A record batch whose bytes are in this object."""
    ADOPTED = 2
    """A record batch whose bytes are in another object, staged by an exactly-once sink (H8)."""
    OPENING = 3
    """The image that opens a tenure (C2)."""
    LOG_START = 4
    """A higher log start (DeleteRecords)."""
    RELOCATED = 5
    """Batches of earlier entries moved to a merged object; they are otherwise unchanged."""


class BatchFields(Protocol):
    """The batch header fields that the log uses; `BatchHeader` has them."""

    @property
    def attributes(self) -> int: ...
    @property
    def last_offset_delta(self) -> int: ...
    @property
    def base_timestamp(self) -> int: ...
    @property
    def max_timestamp(self) -> int: ...
    @property
    def producer_id(self) -> int: ...
    @property
    def producer_epoch(self) -> int: ...
    @property
    def base_sequence(self) -> int: ...
    @property
    def record_count(self) -> int: ...


class IndexEntry(NamedTuple):
    """One row of the index. Fields that a kind does not use are -1, or 0 for counts.

    OPENING: `base_offset` is the image's next offset; position and length refer to the section of
    images. LOG_START: `base_offset` is the new log start. A marker (control batch): Kafka uses
    neither sequence, so `last_sequence` holds the coordinator's epoch.
    """

    kind: EntryKind
    topic_id: TopicId
    partition: int
    leader_epoch: LeaderEpoch
    base_offset: int
    last_offset: int
    record_count: int
    producer_id: int
    producer_epoch: int
    ordinal: int
    """The transaction's number (H1), or NO_ORDINAL."""
    first_sequence: int
    last_sequence: int
    flags: int
    """The batch's attributes, and COMMIT_FLAG."""
    first_timestamp: int
    """The batch's base timestamp, milliseconds."""
    max_timestamp: int
    key: str
    """The object that holds the bytes: this one, except for ADOPTED and RELOCATED."""
    position: int
    length: int
    crc: int = -1
    """BATCH and ADOPTED: the checksum in the batch's header. RELOCATED: the extent's checksum.
    -1: the first release wrote the entry."""

    @property
    def topic_partition(self) -> TopicPartition:
        return TopicPartition(self.topic_id, self.partition)
