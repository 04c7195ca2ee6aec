"""Divides a read into pieces: ranges of offsets, with their segments and tails. Pure.

A piece has consecutive offsets of one partition, in any number of segments. Small segments share a
piece, up to `PIECE_BYTES`. Only `maxRecordsPerPartition` and `minPartitions` cut a segment; they
count offsets, as in Kafka's connector. A task reads one piece, or several under `maxPartitions`.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from tidelog.bucket.views.partition_view import PartitionView
from tidelog.identifiers import TransactionName
from tidelog.spark_source.ranges import ReadRange
from tidelog.storage.segment.segment import Segment
from tidelog.wal.log.extents import Extent, Extents

PIECE_BYTES = 128 * 1024 * 1024
"""Stored bytes of a piece; Spark's default for `spark.sql.files.maxPartitionBytes`."""
PIECES_MAX = 100_000


@dataclass(frozen=True, slots=True)
class Piece:
    """Consecutive offsets of a partition, which one task reads."""

    range: ReadRange
    segments: tuple[Segment, ...]
    """The segments with rows in the range, by offset."""
    tail: PartitionView | None
    """The partition's tail within the range; None if it has none."""
    excluded: frozenset[TransactionName] | None
    """As in `Snapshot`."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """Consecutive offsets, and the approximate size of their stored bytes."""

    start: int
    end: int
    stored_bytes: int

    @property
    def offsets(self) -> int:
        return self.end - self.start


def plan(
    ranges: Iterable[tuple[ReadRange, PartitionView]],
    *,
    excluded: frozenset[TransactionName] | None = None,
    partitions_min: int | None = None,
    records_max: int | None = None,
) -> list[Piece]:
    """The pieces of some ranges. The views must reach to the ranges' ends."""
    found = []
    for wanted, view in ranges:
        found += [(wanted, view, each) for each in group(stretches(wanted, view), PIECE_BYTES)]
    lengths = [stretch for _, _, stretch in found]
    cut = _shares(lengths, partitions_min, records_max)
    return [
        _piece(ReadRange(wanted.limits, part.start, part.end), view, excluded)
        for (wanted, view, stretch), count in zip(found, cut, strict=True)
        for part in split(stretch, count)
    ]


def shared(pieces: Sequence[Piece], tasks_max: int | None) -> list[tuple[Piece, ...]]:
    """The pieces of each task: one, or neighbours where there are more pieces than tasks."""
    tasks = len(pieces) if tasks_max is None else min(len(pieces), tasks_max)
    bounds = [len(pieces) * number // tasks for number in range(tasks + 1)] if tasks else []
    return [tuple(pieces[start:end]) for start, end in itertools.pairwise(bounds)]


def described(wanted: ReadRange, view: PartitionView) -> str:
    """A range, and how much of its partition it reads: for the log."""
    read = [
        stored.segment
        for stored in view.segments
        if stored.segment.first_row < wanted.end and stored.segment.last_row >= wanted.start
    ]
    tail = max(0, wanted.end - max(wanted.start, view.table_next))
    return (
        f"{wanted.limits}: offsets {wanted.start} to {wanted.end} of {view.log_start} to"
        f" {wanted.limits.end}; {len(read)} of {len(view.segments)} segments,"
        f" {sum(each.size_bytes for each in read)} bytes; {tail} offsets of the tail"
    )


def stretches(wanted: ReadRange, view: PartitionView) -> Iterator[Stretch]:
    """The parts of a range that hold records: one per segment, and one for the tail."""
    for stored in view.segments:
        segment = stored.segment
        start, end = max(wanted.start, segment.first_row), min(wanted.end, segment.last_row + 1)
        if start < end:
            covered = segment.last_row + 1 - segment.first_row
            yield Stretch(start, end, segment.size_bytes * (end - start) // covered)
    start, end = max(wanted.start, view.table_next), wanted.end
    if start < end:
        yield Stretch(start, end, sum(each.length for each in _extents(view, start, end)))


def group(parts: Iterable[Stretch], bytes_max: int) -> Iterator[Stretch]:
    """Neighbouring parts joined, up to a size."""
    current: Stretch | None = None
    for part in parts:
        if current is None:
            current = part
        elif current.stored_bytes + part.stored_bytes > bytes_max:
            yield current
            current = part
        else:
            total = current.stored_bytes + part.stored_bytes
            current = Stretch(current.start, part.end, total)
    if current is not None:
        yield current


def split(stretch: Stretch, count: int) -> Iterator[Stretch]:
    """A stretch in `count` parts of nearly equal numbers of offsets."""
    bounds = [stretch.start + stretch.offsets * number // count for number in range(count + 1)]
    for start, end in itertools.pairwise(bounds):
        yield Stretch(start, end, stretch.stored_bytes // count)


def _shares(parts: list[Stretch], partitions_min: int | None, records_max: int | None) -> list[int]:
    """The number of parts for each stretch."""
    shares = [1 if records_max is None else -(-part.offsets // records_max) for part in parts]
    if partitions_min is not None and sum(shares) < partitions_min:
        total = sum(part.offsets for part in parts)
        for index, part in enumerate(parts):
            wanted = -(-part.offsets * partitions_min // total)
            shares[index] = max(shares[index], min(wanted, part.offsets))
    if sum(shares) > PIECES_MAX:
        # More pieces would overload Spark's driver; the larger pieces still cover all offsets.
        factor = sum(shares) / PIECES_MAX
        shares = [max(1, int(share / factor)) for share in shares]
    return shares


def _piece(
    wanted: ReadRange, view: PartitionView, excluded: frozenset[TransactionName] | None
) -> Piece:
    segments = tuple(
        stored.segment
        for stored in view.segments
        if stored.segment.first_row < wanted.end and stored.segment.last_row >= wanted.start
    )
    return Piece(wanted, segments, tail_of(view, wanted.start, wanted.end), excluded)


def tail_of(view: PartitionView, start: int, end: int) -> PartitionView | None:
    """A view of the tail within some offsets, and little else: Spark sends it to a task."""
    start = max(start, view.table_next)
    if start >= end:
        return None
    image = replace(
        view.image,
        leader_epochs=(),
        producers=(),
        aborted=tuple(each for each in view.image.aborted if each.last_offset >= start),
        extents=Extents(_extents(view, start, end)),
    )
    return replace(view, segments=(), image=image)


def _extents(view: PartitionView, start: int, end: int) -> Iterator[Extent]:
    for extent in view.tail.from_offset(start):
        if extent.base_offset >= end:
            return
        yield extent
