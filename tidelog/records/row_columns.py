"""The table schema of records: one row per record, with fixed field ids."""

from __future__ import annotations

from typing import NamedTuple

import pyarrow as pa

MICROSECONDS_PER_MILLISECOND = 1000
BUFFER_BYTES_LIMIT = 2**31
"""Arrow's offsets have 32 bits, so a buffer of keys, values or records must be smaller."""


def _field(field_id: int, name: str, kind: pa.DataType, *, nullable: bool = True) -> pa.Field:
    """A field with the id that Parquet files keep, so that a rename needs no rewrite."""
    return pa.field(name, kind, nullable=nullable, metadata={"PARQUET:field_id": str(field_id)})


HEADER_TYPE = pa.struct(
    [_field(12, "key", pa.string(), nullable=False), _field(13, "value", pa.binary())]
)
HEADERS_TYPE = pa.list_(_field(11, "element", HEADER_TYPE))
TIMESTAMP_TYPE = pa.timestamp("us", tz="UTC")

ROW_SCHEMA = pa.schema(
    [
        _field(1, "offset", pa.int64(), nullable=False),
        _field(2, "timestamp", TIMESTAMP_TYPE),
        _field(3, "timestamp_type", pa.int32(), nullable=False),
        _field(4, "key", pa.binary()),
        _field(5, "value", pa.binary()),
        _field(6, "headers", HEADERS_TYPE),
        _field(7, "producer_id", pa.int64()),
        _field(8, "producer_epoch", pa.int32()),
        _field(9, "transaction", pa.int64()),
    ]
)
"""A record as a row. Null replaces Kafka's -1 (no timestamp, no producer, outside transactions) and
an empty header list. Empty keys and values stay empty. `timestamp_type` is a `TimestampType`.
"""


class AbortedRange(NamedTuple):
    """An aborted transaction: the producer's transactional batches in it are not data."""

    producer_id: int
    first_offset: int
    last_offset: int
    """The offset of the abort marker."""
