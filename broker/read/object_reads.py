"""Reads ranges of WAL objects: each once for all its readers, and ahead of them.

A flight (`flights`) brings one range. The read cache keeps it for the readers of other
partitions of the same object.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from functools import partial

from tidelog.broker.read.flights import AtOnce, Flight, Flights
from tidelog.storage.object_store import ByteRange, ObjectStore, StoredObject, StoreError
from tidelog.wal.log.extents import Extent, Place
from tidelog.wal.read.read_cache import ReadCache, StoredRange
from tidelog.wal.read.read_plan import Demand, PlannedRead, plan_reads

READS_AT_ONCE = AtOnce(16, 64 * 1024 * 1024)
AHEAD_AT_ONCE = AtOnce(8, 32 * 1024 * 1024)
AHEAD_WAITING_MAX = 256
"""Reads ahead that are under way or wait for their turn."""


class _RangeFlight(Flight):
    __slots__ = ("is_ahead", "planned", "stored")

    task: asyncio.Task[StoredRange | StoreError]

    def __init__(self, planned: PlannedRead, *, is_ahead: bool) -> None:
        super().__init__(planned.end - planned.start, is_ahead=is_ahead)
        self.planned = planned
        self.is_ahead = is_ahead
        """True until a reader asks for it."""
        self.stored: StoredObject | None = None

    def covers(self, extent: Extent) -> bool:
        """Whether it brings this extent."""
        _, start, end = self.planned
        return start <= extent.position and extent.position + extent.length <= end

    def join(self) -> None:
        super().join()
        self.is_ahead = False


class ObjectReads(Flights):
    """One broker's reads of WAL objects. Must be closed."""

    def __init__(self, store: ObjectStore, cache: ReadCache) -> None:
        super().__init__(READS_AT_ONCE, AHEAD_AT_ONCE, cache.memory)
        self._store = store
        self._cache = cache
        self._demand = Demand()
        self._flights: dict[str, list[_RangeFlight]] = {}
        """Flights that may be joined, by object."""

    async def read(
        self, extents: Sequence[Extent], *, alone: bool = False
    ) -> Mapping[Place, StoredRange | StoreError]:
        """The ranges with these extents, which are not cached, or the errors of the reads.

        If an object ends too early, its range is shorter. `alone`: each extent in a read of its own
        that is neither shared nor kept.
        """
        joined: dict[Place, _RangeFlight] = {}
        try:
            for extent in extents:
                self._demand.want(extent)
                flight = None if alone else self._flight_covering(extent)
                if flight is not None:
                    self.joined += 1
                    flight.join()
                    joined[extent.place] = flight
            missing = [e for e in extents if e.place not in joined]
            for key, group in _by_object(missing).items():
                begun = [
                    self._begin(planned, is_ahead=False, kept=not alone)
                    for planned in (_each(group) if alone else self._plan(key, group))
                ]
                for extent in group:
                    flight = next(each for each in begun if each.covers(extent))
                    flight.join()
                    joined[extent.place] = flight
            # Shielded: a reader that gives up must not end the others' wait.
            return {place: await asyncio.shield(each.task) for place, each in joined.items()}
        finally:
            for flight in joined.values():
                flight.leave()

    def used(self, extent: Extent) -> None:
        """Note that a reader found this extent in the cache."""
        self._demand.want(extent)

    def read_ahead(self, extents: Iterable[Extent]) -> None:
        """Begin to read extents that are not cached, for a later reader.

        Reads ahead without readers take at most half of the read cache. Errors show in `read`.
        """
        if self.is_closed or not self._cache.memory.bytes_max:
            return
        wanted = [extent for extent in extents if self._flight_covering(extent) is None]
        for extent in wanted:
            self._demand.want(extent)
        for key, group in _by_object(wanted).items():
            for planned in self._plan(key, group):
                if not self.has_room_ahead(planned.end - planned.start):
                    return
                if self.ahead >= AHEAD_WAITING_MAX:
                    return
                self._begin(planned, is_ahead=True, kept=True)

    def _plan(self, key: str, extents: Sequence[Extent]) -> list[PlannedRead]:
        held = self._cache.bounds(key)
        held += [(each.planned.start, each.planned.end) for each in self._flights.get(key, ())]
        return plan_reads(key, extents, self._demand, held, self._cache.memory.bytes_max // 4)

    def _flight_covering(self, extent: Extent) -> _RangeFlight | None:
        for flight in self._flights.get(extent.key, ()):
            if flight.covers(extent) and flight.may_be_joined:
                return flight
        return None

    def _begin(self, planned: PlannedRead, *, is_ahead: bool, kept: bool) -> _RangeFlight:
        flight = _RangeFlight(planned, is_ahead=is_ahead)
        self._demand.begin(planned.key, flight.size_bytes)
        if kept:
            self._flights.setdefault(planned.key, []).append(flight)
        bring = partial(self._read_range, flight, kept=kept)
        self.begin(flight, bring, partial(self._landed, flight), "object read")
        return flight

    async def _read_range(self, flight: _RangeFlight, *, kept: bool) -> StoredRange | StoreError:
        key, start, end = flight.planned
        try:
            stored = await self._store.get(key, ByteRange(start, end - start))
        except StoreError as error:
            return error
        flight.stored = stored
        found = StoredRange(key, start, stored.data, is_ahead=flight.is_ahead)
        if kept:
            self._cache.put(found)
        return found

    def _landed(self, flight: _RangeFlight) -> None:
        key = flight.planned.key
        self._demand.finish(key, flight.size_bytes, flight.stored)
        flights = self._flights.get(key, [])
        if flight in flights:
            flights.remove(flight)
            if not flights:
                del self._flights[key]


def _by_object(extents: Iterable[Extent]) -> dict[str, list[Extent]]:
    groups: dict[str, list[Extent]] = {}
    for extent in extents:
        groups.setdefault(extent.key, []).append(extent)
    return groups


def _each(extents: Iterable[Extent]) -> list[PlannedRead]:
    return [PlannedRead(e.key, e.position, e.position + e.length) for e in extents]
