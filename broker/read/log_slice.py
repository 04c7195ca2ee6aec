"""The found part of a partition's log, and the parts to load before there is more."""

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
    """The key of the segment, or the prefix of the table's log."""
    length: int
    """The approximate memory that it takes."""
    source: ChunkSource
    offset: int
    segment: Segment | None
    """The segment with the offset; None if the table must be read first, or is outdated."""
    table_next: int
    """The table ends here or later."""


@dataclass(slots=True)
class LogSlice:
    """Whole batches of one partition, in offset order, up to `next_offset`.

    `is_cut`: the next batch does not fit. `missing`: the part to load before the slice can
    continue.
    """

    buffers: list[Buffer] = field(default_factory=list)
    size_bytes: int = 0
    next_offset: int = -1
    is_cut: bool = False
    missing: Extent | ColdPart | None = None

    def add(self, rest: LogSlice) -> None:
        """Append a slice that continues this one."""
        self.buffers += rest.buffers
        self.size_bytes += rest.size_bytes
        self.next_offset = rest.next_offset
        self.is_cut = rest.is_cut
        self.missing = rest.missing
