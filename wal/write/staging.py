"""Writes and reads staged objects.

What happens if the process dies: before the put, nothing is there; in it or behind it, an object is
there, or not, that nobody knows of, and the collector takes it (H9). A put whose answer is lost is
made again with the same bytes. Whoever repeats a task stages anew, under another id.
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
"""Of one object: it is made in memory. Whoever has more stages several."""
_NO_OFFSET = bytes(8)
_COLUMNS = ("timestamp", "timestamp_type", "key", "value", "headers")


@dataclass(frozen=True, slots=True)
class Staged:
    """A staged object, and how many records of which partitions it holds."""

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
    """Put a task's rows into the bucket, for a commit to have them adopted; None without rows.

    `rows`: of each partition, in order; ROW_SCHEMA's columns `timestamp`, `timestamp_type`, `key`,
    `value` and `headers`, by name; others are not looked at. They are encoded in the event loop,
    which is a task's own.

    Raises StoreError; InvalidConfiguration where that is more than an object may hold.
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
    # Under an id of its own, so that a repeated put is the same put.
    await store.put(staged_key(staged_id), pieces)
    return Staged(
        staged_id,
        {place: sum(b.record_count for b in batches) for place, batches in encoded.items()},
        sum(map(len, pieces)),
    )


def _encode(
    given: Sequence[pa.RecordBatch], compression: Compression, batch_bytes: int
) -> list[EncodedBatch]:
    """The rows as batches."""
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
        # Like a producer's, each batch counts from 0; that lies outside its checksum.
        found += [
            batch._replace(header=_NO_OFFSET + batch.header[len(_NO_OFFSET) :]) for batch in encoded
        ]
        offset = following
    return found


async def read_staged_index(store: ObjectStore, key: str) -> StagedIndex:
    """What a staged object says of itself. ObjectNotFound, StoreError, CorruptObject."""
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
