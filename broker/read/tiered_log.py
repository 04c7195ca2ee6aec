"""Reads logs over all their tiers, as if each log lay in one place."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, TypeAlias

from tidelog.broker.read.tiers import LogPiece, LogRange, LogSlice, LogTier, ReadAhead, TierLoaded

Loaded: TypeAlias = Mapping[LogTier, TierLoaded]
"""What was loaded for one fetch, held until its answer is put together."""

NOTHING: Final[TierLoaded] = {}


class TieredLog:
    """One broker's logs. Only what is durable is ever read."""

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
        """Read pieces from the store, and keep what was loaded before."""
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
        """What is worth a load together with others (`LogTier.lacking`)."""
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
