"""The inputs and results of the validation of produced batches."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

from tidelog.records.batch import BatchHeader, TimestampType
from tidelog.records.compression import Compression

TIMESTAMP_MS_MAX = (2**63 - 1) // 1000
"""Table rows hold microseconds in 64 bits; the bound also holds for negative timestamps."""
RECORD_ERRORS_MAX = 100
"""Records of one batch that its refusal names."""
DECOMPRESSED_BYTES_MAX = 64 * 1024 * 1024
ACCEPTED_BYTES_MAX = 2**31 - 1
"""Kafka's limit. Accepted batches stay readable, whatever `decompressed.bytes.max` is now."""
SMALL_BYTES = 1024 * 1024
SMALL_RATIO = 16
"""A compressed batch is large if its records exceed SMALL_BYTES plus SMALL_RATIO times the sent
bytes. Decompression then costs far more than the client's request.
"""
_BUFFER_BYTES_LIMIT = 2**31
_NO_BOUND_MS = 2**63 - 1


class BatchErrorCode(IntEnum):
    """The Kafka error codes with which a batch can be refused."""

    CORRUPT_MESSAGE = 2
    MESSAGE_TOO_LARGE = 10
    INVALID_TIMESTAMP = 32
    UNSUPPORTED_COMPRESSION_TYPE = 76
    INVALID_RECORD = 87


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchLimits:
    """A topic's limits and storage form. Create one per topic, not per request."""

    batch_bytes_max: int = 1_048_588
    """`max.message.bytes`."""
    decompressed_bytes_max: int = DECOMPRESSED_BYTES_MAX
    """Bytes of one batch's records, decompressed; below 2 GiB."""
    batches_max: int = 1
    """Batches per partition of a request: one since Produce v3."""
    zstd_allowed: bool = True
    """Produce before v7 must not carry zstd (KIP-110)."""
    keys_required: bool = False
    """True if `cleanup.policy` has compact."""
    timestamp_type: TimestampType = TimestampType.CREATE_TIME
    """`message.timestamp.type`."""
    timestamp_before_max_ms: int = _NO_BOUND_MS
    """`message.timestamp.before.max.ms`; like the next, it applies to CREATE_TIME only."""
    timestamp_after_max_ms: int = 3_600_000
    """`message.timestamp.after.max.ms`."""
    compression: Compression | None = None
    """`compression.type`; None keeps the producer's."""
    compression_level: int | None = None
    """The codec's `compression.*.level`; None for the default."""

    def __post_init__(self) -> None:
        if not 0 < self.decompressed_bytes_max < _BUFFER_BYTES_LIMIT:
            raise ValueError("decompressed_bytes_max must lie between 1 and 2 GiB - 1")

    def timestamp_bounds(self, now_ms: int) -> tuple[int, int]:
        """The least and the greatest accepted timestamp; -1 is always accepted."""
        return (
            max(-TIMESTAMP_MS_MAX, now_ms - self.timestamp_before_max_ms),
            min(TIMESTAMP_MS_MAX, now_ms + self.timestamp_after_max_ms),
        )


class BatchInfo(NamedTuple):
    """A valid batch, as the log and its index need it.

    Timestamps are those to be stored: with LOG_APPEND_TIME, the time passed to `validate`.
    """

    position: int
    """The batch's start in the request's records."""
    length: int
    """Size of the batch, with its header."""
    header: BatchHeader
    codec: Compression
    timestamp_type: TimestampType
    first_timestamp: int
    """The first record's timestamp, -1 for none."""
    max_timestamp: int
    """The true maximum of its records' timestamps."""
    max_timestamp_delta: int
    """Offset delta of the first record with the maximum."""
    needs_rewrite: bool
    """True if the stored form differs (timestamps, codec): store the result of `rewrite`."""


class RecordError(NamedTuple):
    """The reason why a record makes its batch invalid."""

    batch_index: int
    """The record's index in the batch, from 0."""
    message: str


@dataclass(frozen=True, slots=True)
class InvalidBatch:
    """A refusal: none of the request's records for the partition may be stored."""

    error_code: BatchErrorCode
    message: str
    record_errors: tuple[RecordError, ...] = ()
    """The first RECORD_ERRORS_MAX errors, if single records were refused."""


class LargeBatch(InvalidBatch):
    """Not a refusal yet: the batch is large, and the caller asked for small ones only."""
