"""A row group of a segment as record batches for consumers.

Pure: takes bytes of the segment, returns batches.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import Final

import numpy as np

from tidelog.records.buffers import Buffer
from tidelog.records.compression import Compression
from tidelog.records.parse.row_arrays import integers_of
from tidelog.records.rows.row_encoding import EncodedBatch, encode_rows
from tidelog.storage.segment.segment_index import SegmentIndex
from tidelog.wal.log.leader_epochs import EpochStart

BATCH_BYTES = 256 * 1024
"""Bytes of records in a batch: few enough that a client's limits cut little off, enough for codecs.
"""
SERVED_LEVELS: Final = {Compression.GZIP: 1, Compression.LZ4: 0, Compression.ZSTD: 1}
"""The codec's fastest level, since each read of a segment compresses again."""
NO_LEADER_EPOCH = -1


class Chunk:
    """Consecutive batches that cover all offsets in [first_offset, next_offset)."""

    __slots__ = ("_bases", "_batches", "_ends", "first_offset", "is_ahead", "next_offset")

    def __init__(self, batches: Sequence[EncodedBatch], *, is_ahead: bool) -> None:
        """`is_ahead`: read ahead, and no reader has asked for it yet."""
        self._batches = batches
        self._bases = [batch.base_offset for batch in batches]
        self._ends = list(accumulate((batch.size_bytes for batch in batches), initial=0))
        self.first_offset = self._bases[0]
        self.next_offset = batches[-1].last_offset + 1
        self.is_ahead = is_ahead

    def __len__(self) -> int:
        """The bytes of all batches."""
        return self._ends[-1]

    def take(self, offset: int, bytes_max: int, *, at_least_one: bool) -> tuple[list[Buffer], int]:
        """The batches from the one with an offset on, within `bytes_max`, and the next offset.

        The first batch is returned even above `bytes_max` if `at_least_one`.
        """
        first = bisect_right(self._bases, offset) - 1
        end = bisect_right(self._ends, self._ends[first] + bytes_max) - 1
        if at_least_one:
            end = max(end, first + 1)
        if end <= first:
            return [], offset
        return buffers_of(self._batches[first:end]), self._batches[end - 1].last_offset + 1


def buffers_of(batches: Sequence[EncodedBatch]) -> list[Buffer]:
    """The bytes of the batches, as they are sent."""
    return [piece for batch in batches for piece in (batch.header, batch.records) if len(piece)]


def encode_group(
    index: SegmentIndex,
    group: int,
    start: int,
    data: Buffer,
    epochs: Sequence[EpochStart],
    codec: Compression,
) -> list[EncodedBatch]:
    """A row group as batches, from bytes of its segment that begin at `start`.

    They cover all offsets of the segment from the start of the group to the start of the next one,
    so a reader passes missing offsets. `epochs`: the leader epochs of the offsets. Offsets below
    all of them are below the log's start, and count to the first. CorruptObject.
    """
    (rows,) = index.decode(group, group, start, data)
    first, following = group_range(index, group)
    offsets = integers_of(rows.column("offset"))
    encoded: list[EncodedBatch] = []
    for base, end, leader_epoch in epochs_in(epochs, first, following):
        low, high = np.searchsorted(offsets, (base, end)).tolist()
        encoded += encode_rows(
            rows.slice(low, high - low),
            base,
            end,
            leader_epoch=leader_epoch,
            compression=codec,
            level=SERVED_LEVELS.get(codec),
            batch_bytes=BATCH_BYTES,
        )
    return encoded


def group_range(index: SegmentIndex, group: int) -> tuple[int, int]:
    """The offsets that a row group covers, the second exclusive."""
    identity = index.identity
    first = identity.base_offset if group == 0 else index.offsets_of(group)[0]
    if group + 1 < index.groups:
        return first, index.offsets_of(group + 1)[0]
    return first, identity.last_offset + 1


def epochs_in(
    epochs: Sequence[EpochStart], first: int, following: int
) -> list[tuple[int, int, int]]:
    """The parts of [first, following), each with its leader epoch."""
    starts = [epoch.start_offset for epoch in epochs]
    index = max(0, bisect_right(starts, first) - 1)
    parts = []
    while first < following:
        end = starts[index + 1] if index + 1 < len(starts) else following
        end = min(end, following)
        leader_epoch = epochs[index].leader_epoch if epochs else NO_LEADER_EPOCH
        parts.append((first, end, leader_epoch))
        first, index = end, index + 1
    return parts
