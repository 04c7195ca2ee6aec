"""From the WAL's record batches to a segment of committed records. Pure; runs in a worker.

`SegmentRoll.try_add` proves the bytes of some extents and makes rows of them. Transactional
batches also need the ordinals of their transactions, which the batches do not contain. The caller
reads them in the indexes of the WAL objects and passes them to `SegmentRoll.add`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple
from uuid import UUID

import numpy as np
from numpy.typing import NDArray

from tidelog.errors import CorruptObject
from tidelog.identifiers import TopicPartition
from tidelog.records.batch import (
    CONTROL_FLAG,
    LENGTH_PREFIX_SIZE,
    TRANSACTIONAL_FLAG,
    MalformedBatch,
    headers_of,
)
from tidelog.records.buffers import Buffer
from tidelog.records.compression import CorruptCompression, DecompressedTooLarge
from tidelog.records.parse.row_arrays import integers_of
from tidelog.records.parse.varints import Bytes, Integers
from tidelog.records.row_columns import AbortedRange
from tidelog.records.rows.row_decoding import BatchHeaders, decode_rows
from tidelog.storage.segment.segment_writer import SegmentWriter, WrittenSegment
from tidelog.wal.log.extents import Extent
from tidelog.wal.read.ordinals import OrdinalColumns, Ordinals, extent_ordinals
from tidelog.wal.read.verify import StoredBatches, VerifiedBatches, verify

SLICE_BYTES = 2 * 1024 * 1024
"""The bytes of records that are held as rows at a time."""
SLICE_ROWS = 1 << 14
"""The limit for small records: a row takes more memory than their bytes."""
_DAMAGE = (MalformedBatch, CorruptCompression, DecompressedTooLarge)


class ScannedExtents(NamedTuple):
    """Extents side by side in one buffer. Their batches are proved to match them."""

    extents: Sequence[Extent]
    buffer: Buffer
    positions: Integers
    """The positions of the batches in the buffer."""
    headers: BatchHeaders
    first_batches: Sequence[int]
    """For each extent, the index of its first batch in `positions`."""
    transactional: frozenset[str]
    """The objects whose indexes hold the ordinals of transactional batches among these."""
    next_offset: int
    """The offset after the last extent."""


def scan(pieces: Sequence[StoredBatches]) -> ScannedExtents:
    """Prove consecutive extents and find their batches. CorruptObject names the damaged object."""
    verified = [verify(extent, data) for extent, data in pieces]
    counts = [len(each.positions) for each in verified]
    first_batches = np.cumsum([0, *counts[:-1]])
    starts = np.cumsum([0, *(len(each.data) for each in verified[:-1])])
    found = np.concatenate([np.array(each.positions, np.int64) for each in verified])
    positions = found + np.repeat(starts, counts)
    buffer = verified[0].data if len(verified) == 1 else _concatenated(verified)
    headers = headers_of(buffer, positions)
    is_data = _flags(headers, CONTROL_FLAG, TRANSACTIONAL_FLAG) == TRANSACTIONAL_FLAG
    has_data = np.logical_or.reduceat(is_data, first_batches).tolist()
    return ScannedExtents(
        [extent for extent, _ in pieces],
        buffer,
        positions,
        headers,
        first_batches.tolist(),
        # The extent of an adopted batch names its transaction.
        frozenset(
            each.extent.key
            for each, is_transactional in zip(verified, has_data, strict=True)
            if is_transactional and each.extent.adoption is None
        ),
        pieces[-1].extent.last_offset + 1,
    )


def _concatenated(pieces: Sequence[VerifiedBatches]) -> Buffer:
    """The extents' bytes in one buffer."""
    views = [memoryview(each.data) for each in pieces]
    parts = [np.frombuffer(view, np.uint8) for view in views]
    owner: Any = views[0].obj
    if owner is not None and all(view.obj is owner for view in views):
        # Extents from another process already lie side by side.
        whole: Bytes = np.frombuffer(owner, np.uint8)
        ends = [_address(part) + len(part) for part in parts]
        if [_address(part) for part in parts[1:]] == ends[:-1]:
            start = _address(whole)
            return whole[_address(parts[0]) - start : ends[-1] - start].data.toreadonly()
    # numpy releases the interpreter's lock while it copies; `bytes.join` holds it.
    return np.concatenate(parts).data


def _address(array: Bytes) -> int:
    found: int = array.__array_interface__["data"][0]
    return found


def _flags(headers: BatchHeaders, *flags: int) -> NDArray[np.int16]:
    found: NDArray[np.int16] = headers["attributes"] & sum(flags)
    return found


class Undecided(NamedTuple):
    """The result of `try_add` that needs ordinals: the extents are proved, but not yet rows."""

    transactional: frozenset[str]
    """The objects whose indexes hold the ordinals."""


class RollProgress(NamedTuple):
    """The progress of a roll."""

    next_offset: int
    wal_bytes: int
    """The bytes of all batches taken up so far, with aborted batches and markers."""
    raw_bytes: int
    """The bytes of keys, values and headers so far."""
    file_bytes: int
    """The bytes of the file so far, without the unfinished row group."""
    pieces: Sequence[Buffer] = ()
    """The parts of the file that this call wrote."""


class SegmentRoll:
    """One segment as it grows. The caller keeps its file.

    It holds a row group, the bytes of one call of `try_add`, and a decompressed slice of them.
    """

    def __init__(self, topic_partition: TopicPartition, base_offset: int, log_start: int) -> None:
        """`log_start`: the segment leaves out the deleted records below this offset."""
        self._writer = SegmentWriter(topic_partition, base_offset)
        self._next_offset = base_offset
        self._log_start = log_start
        self._wal_bytes = 0
        self._scanned: ScannedExtents | None = None
        """Proved extents that wait for `add`."""
        self._damage: CorruptObject | None = None
        """The error that ended this roll. The segment may have rows of the damaged batches."""

    def try_add(
        self, pieces: Sequence[StoredBatches], upper: int, aborted: Sequence[AbortedRange]
    ) -> RollProgress | Undecided:
        """Take up the next consecutive extents of the log, up to `upper`, and return the progress.

        `upper` is at most the last stable offset. `aborted`: all ranges that touch the extents.
        Undecided: the extents wait for `add`. CorruptObject names the damaged object. The caller
        may read it again and retry, unless the batches themselves are damaged.
        """
        if self._damage is not None:
            raise self._damage
        self._scanned = scan(pieces)
        if self._scanned.transactional:
            return Undecided(self._scanned.transactional)
        return self._add(upper, aborted, {})

    def add(
        self, upper: int, aborted: Sequence[AbortedRange], ordinals: OrdinalColumns
    ) -> RollProgress:
        """Take up the extents for which `try_add` returned Undecided.

        `ordinals`: for the objects in `Undecided.transactional`. CorruptObject names the object
        whose batches are damaged; this roll cannot continue then.
        """
        return self._add(upper, aborted, ordinals.apart())

    def _add(
        self, upper: int, aborted: Sequence[AbortedRange], ordinals: Mapping[str, Ordinals]
    ) -> RollProgress:
        scanned, self._scanned = self._scanned, None
        assert scanned is not None, "nothing is proved"
        bases = scanned.headers["base_offset"]
        # A merge may have joined extents since: then the first begins below `_next_offset`.
        first = int(np.searchsorted(bases, self._next_offset, "right")) - 1
        chosen = slice(max(0, first), int(np.searchsorted(bases, upper)))
        try:
            self._write(scanned, chosen, aborted, ordinals)
        except _DAMAGE as error:
            self._damage = self._first_damage(scanned, chosen, error)
            raise self._damage from error
        self._wal_bytes += int(
            (scanned.headers["batch_length"][chosen].astype(np.int64) + LENGTH_PREFIX_SIZE).sum()
        )
        self._next_offset = min(upper, scanned.next_offset)
        writer = self._writer
        return RollProgress(
            self._next_offset,
            self._wal_bytes,
            writer.raw_bytes,
            writer.size_bytes,
            _views(writer.take()),
        )

    def finish(self, next_offset: int, segment_id: UUID) -> WrittenSegment | None:
        """The segment with the rest of its file; None if it has no row.

        It covers all offsets below `next_offset`.
        """
        if not self._writer.row_count:
            return None
        written = self._writer.finish(next_offset, segment_id)
        return written._replace(pieces=_views(written.pieces))

    def _write(
        self,
        scanned: ScannedExtents,
        chosen: slice,
        aborted: Sequence[AbortedRange],
        ordinals: Mapping[str, Ordinals],
    ) -> None:
        positions = scanned.positions[chosen]
        if not len(positions):
            return
        numbers = _ordinals_of(scanned, ordinals)
        if numbers is not None:
            numbers = numbers[chosen]
        for rows in decode_rows(
            scanned.buffer,
            positions,
            ordinals=numbers,
            aborted=aborted,
            check_crc=False,
            slice_bytes=SLICE_BYTES,
            slice_rows=SLICE_ROWS,
        ):
            floor = max(self._log_start, self._next_offset)
            offsets = integers_of(rows.column("offset"))
            if len(offsets) and offsets[0] < floor:
                rows = rows.slice(int(np.searchsorted(offsets, floor)))
            self._writer.write(rows)

    def _first_damage(
        self, scanned: ScannedExtents, chosen: slice, error: Exception
    ) -> CorruptObject:
        """The error of the first extent that does not decode alone."""
        ends = [*scanned.first_batches[1:], len(scanned.positions)]
        for extent, first, end in zip(scanned.extents, scanned.first_batches, ends, strict=True):
            own = scanned.positions[max(first, chosen.start) : min(end, chosen.stop)]
            try:
                for _ in decode_rows(scanned.buffer, own):
                    pass
            except _DAMAGE as damage:
                return CorruptObject(extent.key, f"at position {extent.position}: {damage}")
        return CorruptObject(scanned.extents[0].key, str(error))


def _views(pieces: Sequence[Buffer]) -> tuple[memoryview, ...]:
    """The pieces as views, which pass to another process without a pickled copy."""
    return tuple(memoryview(piece) for piece in pieces)


def _ordinals_of(scanned: ScannedExtents, known: Mapping[str, Ordinals]) -> Integers | None:
    """The ordinal of each batch's transaction; None if no batch is transactional."""
    if not known and all(extent.adoption is None for extent in scanned.extents):
        return None
    batches, attributes = scanned.positions, scanned.headers["attributes"]
    ends = [*scanned.first_batches[1:], len(batches)]
    return np.concatenate(
        [
            extent_ordinals(
                extent,
                batches[first:end] - batches[first],
                attributes[first:end],
                known.get(extent.key),
            )
            for extent, first, end in zip(scanned.extents, scanned.first_batches, ends, strict=True)
        ]
    )
