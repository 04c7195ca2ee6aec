"""What was found of a partition's log, and what has to be loaded before there is more."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from tidelog.broker.read.chunk_reads import ChunkSource
from tidelog.records.buffers import Buffer
from tidelog.storage.segment.segment import Segment
from tidelog.wal.log.extents import Extent


class ColdPart(NamedTuple):
    """A part of a table that is not in memory."""

    key: str
    """The segment's, or the beginning of the table log's."""
    length: int
    """About how much memory it takes."""
    source: ChunkSource
    offset: int
    segment: Segment | None
    """Where the offset is; None if the table has to be read first, or is too old."""
    table_next: int
    """Where the table ends at least."""


@dataclass(slots=True)
class LogSlice:
    """Whole batches from one partition, in offset order, up to `next_offset`. `is_cut`: the next
    one does not fit. `missing`: what has to be loaded before the slice can go on."""

    buffers: list[Buffer] = field(default_factory=list)
    size_bytes: int = 0
    next_offset: int = -1
    is_cut: bool = False
    missing: Extent | ColdPart | None = None

    def add(self, rest: LogSlice) -> None:
        """Go on with what follows."""
        self.buffers += rest.buffers
        self.size_bytes += rest.size_bytes
        self.next_offset = rest.next_offset
        self.is_cut = rest.is_cut
        self.missing = rest.missing
