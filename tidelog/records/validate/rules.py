"""What the validation of produced batches is told, and what it tells."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

from tidelog.records.batch import TimestampType
from tidelog.records.compression import Compression

TIMESTAMP_MS_MAX = (2**63 - 1) // 1000
"""Table rows hold microseconds in 64 bits; the bound holds for negative timestamps too."""
RECORD_ERRORS_MAX = 100
"""How many records of one batch are named in its refusal."""
DECOMPRESSED_BYTES_MAX = 64 * 1024 * 1024
SMALL_BYTES = 1024 * 1024
SMALL_RATIO = 16
"""A compressed batch is large if its records take more than so many bytes, and so many times those
that were sent: then to decompress them takes out of proportion to what the client did."""
_BUFFER_BYTES_LIMIT = 2**31
_NO_BOUND_MS = 2**63 - 1


class BatchErrorCode(IntEnum):
    """The Kafka error codes that a batch can be refused with."""

    CORRUPT_MESSAGE = 2
    MESSAGE_TOO_LARGE = 10
    INVALID_TIMESTAMP = 32
    UNSUPPORTED_COMPRESSION_TYPE = 76
    INVALID_RECORD = 87


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchLimits:
    """What a topic accepts, and in which form it stores it. Make one a topic, not one a request."""

    batch_bytes_max: int = 1_048_588
    """`max.message.bytes`."""
    decompressed_bytes_max: int = DECOMPRESSED_BYTES_MAX
    """The records of one batch, decompressed; below 2 GiB."""
    batches_max: int = 1
    """Batches in one partition of a request: one since Produce v3."""
    zstd_allowed: bool = True
    """Produce before v7 must not carry zstd (KIP-110)."""
    keys_required: bool = False
    """`cleanup.policy` has compact."""
    timestamp_type: TimestampType = TimestampType.CREATE_TIME
    """`message.timestamp.type`."""
    timestamp_before_max_ms: int = _NO_BOUND_MS
    """`message.timestamp.before.max.ms`; heeded with CREATE_TIME only, like the next."""
    timestamp_after_max_ms: int = 3_600_000
    """`message.timestamp.after.max.ms`."""
    compression: Compression | None = None
    """`compression.type`; None keeps the producer's."""
    compression_level: int | None = None
    """The codec's `compression.*.level`, None for our default."""

    def __post_init__(self) -> None:
        if not 0 < self.decompressed_bytes_max < _BUFFER_BYTES_LIMIT:
            raise ValueError("decompressed_bytes_max must lie between 1 and 2 GiB - 1")

    def timestamp_bounds(self, now_ms: int) -> tuple[int, int]:
        """The least and the greatest timestamp that is accepted; -1 is in any case."""
        return (
            max(-TIMESTAMP_MS_MAX, now_ms - self.timestamp_before_max_ms),
            min(TIMESTAMP_MS_MAX, now_ms + self.timestamp_after_max_ms),
        )


class BatchInfo(NamedTuple):
    """A valid batch: what the log and its index need to know of it.

    Timestamps are as they are to be stored: with LOG_APPEND_TIME, the time given to `validate`.
    """

    position: int
    """Where it starts in the request's records."""
    length: int
    """All of its bytes, header included."""
    record_count: int
    last_offset_delta: int
    codec: Compression
    timestamp_type: TimestampType
    first_timestamp: int
    """The first record's, -1 for none."""
    max_timestamp: int
    """The true maximum over its records."""
    max_timestamp_delta: int
    """Offset delta of the first record that has the maximum."""
    producer_id: int
    """-1 without one; then epoch and sequences are -1 too, whatever the header says."""
    producer_epoch: int
    base_sequence: int
    last_sequence: int
    is_transactional: bool
    needs_rewrite: bool
    """The bytes are not what is to be stored (timestamps, codec): store what `rewrite` makes."""


class RecordError(NamedTuple):
    """Why one record made its batch invalid."""

    batch_index: int
    """The record's index in the batch, from 0."""
    message: str


@dataclass(frozen=True, slots=True)
class InvalidBatch:
    """A refusal; nothing of the request's records for that partition is to be stored."""

    error_code: BatchErrorCode
    message: str
    record_errors: tuple[RecordError, ...] = ()
    """The first RECORD_ERRORS_MAX of them, where single records were refused."""


class LargeBatch(InvalidBatch):
    """No refusal yet: the batch is large, and only small ones were to be examined."""
