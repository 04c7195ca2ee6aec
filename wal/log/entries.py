"""What a WAL object says of the partitions in it: the entries of its index."""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple, Protocol

from tidelog.identifiers import LeaderEpoch, TopicId, TopicPartition

NO_ORDINAL = -1
"""Outside a transaction, or in one that no coordinator has numbered (rule H1)."""
COMMIT_FLAG = 0x100
"""In an entry's flags: this control batch is a COMMIT marker. A control batch without it aborts."""


class EntryKind(IntEnum):
    """What an entry stands for (rule D3)."""

    BATCH = 1
    """A record batch whose bytes are in this object."""
    ADOPTED = 2
    """A record batch whose bytes are in another object, staged by an exactly-once sink (H8)."""
    OPENING = 3
    """The image with which a tenure begins (C2)."""
    LOG_START = 4
    """The log begins later than before (DeleteRecords)."""
    RELOCATED = 5
    """Batches of earlier entries lie in a merged object from now on; nothing else changes."""


class BatchFields(Protocol):
    """What the log needs to know of a batch; `BatchHeader` has it."""

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
    """One entry: a row of the index. Fields that a kind does not use are -1, or 0 for counts.

    OPENING: `base_offset` is the image's next offset; position and length lie in the section of
    images. LOG_START: `base_offset` is where the log begins now. A marker (control batch): both
    sequences are unused in Kafka, so `last_sequence` holds the coordinator's epoch.
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
    """BATCH and ADOPTED: the checksum in the batch's header, as it is stored. RELOCATED: that of
    the extent. -1: the first release wrote the entry."""

    @property
    def topic_partition(self) -> TopicPartition:
        return TopicPartition(self.topic_id, self.partition)
