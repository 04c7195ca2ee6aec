"""A partition's log over its tiers: segments, then WAL objects.

A tier answers from memory (`slice`), and names the part that is missing there (`LogPiece`). `load`
reads missing parts from the store, and the caller slices again. `load` leaves out an object that
was superseded meanwhile (rule F4): the next `slice` finds the records' new place.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Protocol, TypeAlias, TypeVar

from tidelog.records.buffers import Buffer
from tidelog.records.compression import Compression
from tidelog.wal.log.partition_log import PartitionLog

T = TypeVar("T")


class LogRange(NamedTuple):
    """Records that a reader wants of a partition's log: [offset, upper), within `bytes_max`."""

    log: PartitionLog
    codec: Compression
    """For batches that come from segments, which know no producer's codec."""
    offset: int
    upper: int
    bytes_max: int


class LogPiece(NamedTuple):
    """A part of a log that is not in memory, and the tier that can load it."""

    tier: LogTier
    log: PartitionLog
    key: str
    """The key of the object with the part."""
    length: int
    """The approximate memory that it takes."""
    part: Any
    """The tier's own name of the part; hashable."""


@dataclass(slots=True)
class LogSlice:
    """Whole batches of one partition, in offset order, up to `next_offset`.

    `is_cut`: the next batch does not fit. `missing`: the part to load before the slice can
    continue. `unmarked_below`: below this offset the slice comes from segments, which hold
    neither aborted records nor markers.
    """

    buffers: list[Buffer] = field(default_factory=list)
    size_bytes: int = 0
    next_offset: int = -1
    is_cut: bool = False
    missing: LogPiece | None = None
    unmarked_below: int = -1

    def add(self, rest: LogSlice) -> None:
        """Append a slice that continues this one."""
        self.buffers += rest.buffers
        self.size_bytes += rest.size_bytes
        self.next_offset = rest.next_offset
        self.is_cut = rest.is_cut
        self.missing = rest.missing


class ReadAhead(NamedTuple):
    """A sequential reader's next position, and the bytes that it has taken so far."""

    wanted: LogRange
    answered_bytes: int
    """The bytes in its newest answer."""
    taken_bytes: int
    """The bytes in all its answers."""


TierLoaded: TypeAlias = Mapping[Any, Any]
"""The parts that a tier read from the store, or errors; keys and values are that tier's own."""


class LogTier(Protocol):
    """One of the places where a log's records lie. Hashed by identity."""

    def end(self, wanted: LogRange) -> int:
        """The offset behind the last one of the range for which the tier answers."""
        ...

    def slice(
        self, wanted: LogRange, *, at_least_one: bool, loaded: TierLoaded, goes_on: bool
    ) -> LogSlice:
        """The batches from the one that holds the range's offset on, up to the tier's end.

        The first batch is returned even above `bytes_max` if `at_least_one`. The slice ends at a
        part that is neither in memory nor in `loaded`, and names it in `missing`. An error in
        `loaded` is raised if nothing was found before it, here or, if the slice `goes_on`, in the
        tier before.
        """
        ...

    async def load(self, pieces: Sequence[LogPiece]) -> TierLoaded:
        """Read pieces from the store: each one or its error; superseded ones are left out."""
        ...

    def lacking(self, wanted: LogRange) -> Iterator[LogPiece]:
        """The range's pieces that are worth a load together with others, the next one first."""
        ...

    def read_ahead(self, readers: Sequence[ReadAhead]) -> None:
        """Begin to read what readers will want. No reader waits for it or meets its errors."""
        ...


def interleaved(rows: Iterable[Iterator[T]]) -> Iterator[T]:
    """The first item of each row, then the second of each, and so on."""
    rows = list(rows)
    while rows:
        left = []
        for row in rows:
            for found in row:
                left.append(row)
                yield found
                break
        rows = left


Loaded: TypeAlias = Mapping[LogTier, TierLoaded]
"""The loaded parts of one fetch, held until its answer is complete."""

NOTHING: Final[TierLoaded] = {}


class TieredLog:
    """One broker's logs. Readers see durable records only."""

    def __init__(self, *tiers: LogTier) -> None:
        """`tiers`: in the order of the offsets that they hold."""
        self._tiers = tiers

    def slice(self, wanted: LogRange, *, at_least_one: bool, loaded: Loaded) -> LogSlice:
        """The batches from the one that holds the range's offset on (`LogTier.slice`)."""
        found: LogSlice | None = None
        for tier in self._tiers:
            end = tier.end(wanted)
            mine = loaded.get(tier, NOTHING)
            if found is None:
                if wanted.offset >= end:
                    continue
                found = tier.slice(wanted, at_least_one=at_least_one, loaded=mine, goes_on=False)
            elif found.next_offset < end:
                goes_on = bool(found.buffers)
                rest = wanted._replace(
                    offset=found.next_offset, bytes_max=wanted.bytes_max - found.size_bytes
                )
                is_first = at_least_one and not goes_on
                found.add(tier.slice(rest, at_least_one=is_first, loaded=mine, goes_on=goes_on))
            if found.is_cut or found.next_offset < end:
                break
        return LogSlice(next_offset=wanted.offset) if found is None else found

    async def load(self, pieces: Iterable[LogPiece], before: Loaded) -> Loaded:
        """Read pieces from the store, and keep those of `before`."""
        by_tier: dict[LogTier, list[LogPiece]] = {}
        for piece in pieces:
            by_tier.setdefault(piece.tier, []).append(piece)
        found = await asyncio.gather(*(tier.load(mine) for tier, mine in by_tier.items()))
        return {
            **before,
            **{
                tier: {**before.get(tier, NOTHING), **loaded}
                for tier, loaded in zip(by_tier, found, strict=True)
            },
        }

    def lacking(self, wanted: LogRange) -> Iterator[LogPiece]:
        """Pieces that are worth a load together with others (`LogTier.lacking`)."""
        return self._tier_of(wanted).lacking(wanted)

    def read_ahead(self, readers: Sequence[ReadAhead]) -> None:
        """Begin to read what readers will want (`LogTier.read_ahead`)."""
        for tier in self._tiers:
            mine = [each for each in readers if self._tier_of(each.wanted) is tier]
            if mine:
                tier.read_ahead(mine)

    def _tier_of(self, wanted: LogRange) -> LogTier:
        """The tier that has the range's first record."""
        return next(
            (tier for tier in self._tiers if wanted.offset < tier.end(wanted)), self._tiers[-1]
        )
