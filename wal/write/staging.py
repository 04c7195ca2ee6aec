"""Writes and reads staged objects.

If the process dies before the PUT, the bucket is unchanged. If it dies during or after the PUT, the
bucket may hold an object without a reference, and the collector deletes it (H9). A PUT whose
response is lost is retried with the same bytes. A retried task stages a new object with a new id.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

import numpy as np
import pyarrow as pa

from tidelog.clock import Clock
from tidelog.entropy import Entropy
from tidelog.errors import InvalidConfiguration
from tidelog.identifiers import TopicPartition
from tidelog.records.compression import Compression
from tidelog.records.rows.row_encoding import BATCH_BYTES, EncodedBatch, encode_rows
from tidelog.storage.object_store import ByteRange, ObjectStore, Suffix
from tidelog.wal.format.staged_format import (
    HEADER_BYTES,
    TAIL_READ_BYTES,
    StagedFor,
    StagedIndex,
    decode_tail,
    encode_staged,
    tail_bytes,
)
from tidelog.wal.log.adoption import staged_key

STAGED_BYTES_MAX = 256 * 1024 * 1024
"""The largest staged object, which is built in memory. More data needs several objects."""
_NO_OFFSET = bytes(8)
_COLUMNS = ("timestamp", "timestamp_type", "key", "value", "headers")


@dataclass(frozen=True, slots=True)
class Staged:
    """A staged object, and the number of its records in each partition."""

    staged_id: UUID
    records: Mapping[TopicPartition, int]
    size_bytes: int


async def stage(
    store: ObjectStore,
    clock: Clock,
    entropy: Entropy,
    purpose: StagedFor,
    rows: Mapping[TopicPartition, Sequence[pa.RecordBatch]],
    *,
    compression: Compression = Compression.NONE,
    batch_bytes: int = BATCH_BYTES // 2,
) -> Staged | None:
    """Put a task's rows into the bucket, so that a commit can adopt them; None without rows.

    `rows`: the rows of each partition, in order, with ROW_SCHEMA's columns `timestamp`,
    `timestamp_type`, `key`, `value` and `headers`; other columns are ignored. The rows are encoded
    in the event loop, so the caller needs a loop of its own.

    Raises StoreError, and InvalidConfiguration if the rows exceed the limit of one object.
    """
    encoded = {
        partition: batches
        for partition, given in rows.items()
        if (batches := _encode(given, compression, batch_bytes))
    }
    if not encoded:
        return None
    size = sum(batch.size_bytes for batches in encoded.values() for batch in batches)
    if size > STAGED_BYTES_MAX:
        raise InvalidConfiguration(
            f"{size} bytes to be staged in one object; the limit is {STAGED_BYTES_MAX}: stage"
            " several objects"
        )
    staged_id = entropy.uuid()
    pieces = encode_staged(staged_id, clock.time_ms(), purpose, encoded)
    # The id is unique, so a retried PUT stores the same object.
    await store.put(staged_key(staged_id), pieces)
    return Staged(
        staged_id,
        {place: sum(b.record_count for b in batches) for place, batches in encoded.items()},
        sum(map(len, pieces)),
    )


def _encode(
    given: Sequence[pa.RecordBatch], compression: Compression, batch_bytes: int
) -> list[EncodedBatch]:
    found: list[EncodedBatch] = []
    offset = 0
    for rows in given:
        if not rows.num_rows:
            continue
        following = offset + rows.num_rows
        numbered = pa.RecordBatch.from_arrays(
            [pa.array(np.arange(offset, following)), *(rows.column(name) for name in _COLUMNS)],
            names=["offset", *_COLUMNS],
        )
        encoded = encode_rows(
            numbered, offset, following, compression=compression, batch_bytes=batch_bytes
        )
        # Each batch counts from offset 0, as a producer's. Its checksum does not cover the offset.
        found += [
            batch._replace(header=_NO_OFFSET + batch.header[len(_NO_OFFSET) :]) for batch in encoded
        ]
        offset = following
    return found


async def read_staged_index(store: ObjectStore, key: str) -> StagedIndex:
    """The index of a staged object. Raises ObjectNotFound, StoreError and CorruptObject."""
    stored = await store.get(key, Suffix(TAIL_READ_BYTES))
    tail, size = stored.data, stored.size
    needed = tail_bytes(key, tail, size)
    if needed > len(tail):
        rest = await store.get(key, ByteRange(size - needed, needed - len(tail)))
        tail = b"".join((rest.data, tail))
    if len(tail) == size:
        head = memoryview(tail)[:HEADER_BYTES]
    else:
        head = memoryview((await store.get(key, ByteRange(0, HEADER_BYTES))).data)
    return decode_tail(key, head, tail, size)
