"""Reads ranges of WAL objects: each once for all its readers, and ahead of them.

A read under way is a flight. A reader of bytes that a flight brings joins the flight. A flight
without readers is cancelled, unless it reads ahead. The bytes stay in the read cache, for readers
of other partitions of the same object.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence

from tidelog.broker.read.read_gate import ReadGate
from tidelog.storage.object_store import ByteRange, ObjectStore, StoredObject, StoreError
from tidelog.wal.log.extents import Extent, Place
from tidelog.wal.read.read_cache import ReadCache, StoredRange
from tidelog.wal.read.read_plan import Demand, PlannedRead, plan_reads

READS_AT_ONCE_MAX = 16
READ_BYTES_AT_ONCE_MAX = 64 * 1024 * 1024
AHEAD_AT_ONCE_MAX = 8
AHEAD_BYTES_AT_ONCE_MAX = 32 * 1024 * 1024
AHEAD_WAITING_MAX = 256
"""Reads ahead that are under way or wait for their turn."""


class _Flight:
    __slots__ = ("is_ahead", "planned", "stored", "task", "waiting")

    def __init__(self, planned: PlannedRead, *, is_ahead: bool) -> None:
        self.planned = planned
        self.is_ahead = is_ahead
        """Read ahead, and no reader has asked for it yet."""
        self.waiting = 0
        self.stored: StoredObject | None = None
        self.task: asyncio.Task[StoredRange | StoreError]

    def __len__(self) -> int:
        return self.planned.end - self.planned.start

    def covers(self, extent: Extent) -> bool:
        """Whether it brings this extent."""
        _, start, end = self.planned
        return start <= extent.position and extent.position + extent.length <= end

    def join(self) -> None:
        """Wait for it; must be followed by `leave`."""
        self.waiting += 1
        self.is_ahead = False

    def leave(self) -> None:
        """Stop waiting. The last reader cancels a flight that is still under way."""
        self.waiting -= 1
        if self.waiting == 0:
            self.task.cancel()


class ObjectReads:
    """One broker's reads of WAL objects. Must be closed."""

    def __init__(self, store: ObjectStore, cache: ReadCache) -> None:
        self._store = store
        self._cache = cache
        self._demand = Demand()
        self._gate = ReadGate(READS_AT_ONCE_MAX, READ_BYTES_AT_ONCE_MAX)
        self._ahead_gate = ReadGate(AHEAD_AT_ONCE_MAX, AHEAD_BYTES_AT_ONCE_MAX)
        self._tasks: dict[asyncio.Task[StoredRange | StoreError], None] = {}
        self._flights: dict[str, list[_Flight]] = {}
        """Flights that may be joined, by object."""
        self._ahead = 0
        self._ahead_bytes = 0
        self._is_closed = False
        self.joined = 0
        """Extents that came with another reader's flight."""
        self.ahead_bytes_total = 0
        """Bytes read before any reader asked for them."""

    async def close(self) -> None:
        """Cancel the reads under way, and with them their readers."""
        self._is_closed = True
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def read(
        self, extents: Sequence[Extent], *, alone: bool = False
    ) -> Mapping[Place, StoredRange | StoreError]:
        """The ranges with these extents, which are not cached, or the errors of the reads.

        If an object ends too early, its range is shorter. `alone`: each extent in a read of its own
        that is neither shared nor kept.
        """
        joined: dict[Place, _Flight] = {}
        try:
            for extent in extents:
                self._demand.want(extent)
                flight = None if alone else self._flight_with(extent)
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
        if self._is_closed or not self._cache.memory.bytes_max:
            return
        memory = self._cache.memory
        wanted = [extent for extent in extents if self._flight_with(extent) is None]
        for extent in wanted:
            self._demand.want(extent)
        for key, group in _by_object(wanted).items():
            for planned in self._plan(key, group):
                size = planned.end - planned.start
                unused_bytes = memory.ahead_bytes + self._ahead_bytes
                if unused_bytes + size > memory.bytes_max // 2:
                    return
                if self._ahead >= AHEAD_WAITING_MAX:
                    return
                self.ahead_bytes_total += size
                self._begin(planned, is_ahead=True, kept=True)

    def _plan(self, key: str, extents: Sequence[Extent]) -> list[PlannedRead]:
        held = self._cache.bounds(key)
        held += [(each.planned.start, each.planned.end) for each in self._flights.get(key, ())]
        return plan_reads(key, extents, self._demand, held, self._cache.memory.bytes_max // 4)

    def _flight_with(self, extent: Extent) -> _Flight | None:
        for flight in self._flights.get(extent.key, ()):
            if flight.covers(extent) and not flight.task.cancelling():
                return flight
        return None

    def _begin(self, planned: PlannedRead, *, is_ahead: bool, kept: bool) -> _Flight:
        flight = _Flight(planned, is_ahead=is_ahead)
        self._demand.begin(planned.key, len(flight))
        if is_ahead:
            self._ahead += 1
            self._ahead_bytes += len(flight)
        if kept:
            self._flights.setdefault(planned.key, []).append(flight)
        gate = self._ahead_gate if is_ahead else self._gate
        flight.task = asyncio.create_task(self._fly(flight, gate, kept=kept), name="object read")
        self._tasks[flight.task] = None
        # Not in `_fly`: a task that is cancelled before its first step runs no code of it.
        flight.task.add_done_callback(lambda _: self._landed(flight, is_ahead=is_ahead))
        return flight

    async def _fly(
        self, flight: _Flight, gate: ReadGate, *, kept: bool
    ) -> StoredRange | StoreError:
        key, start, end = flight.planned
        await gate.enter(end - start)
        try:
            stored = await self._store.get(key, ByteRange(start, end - start))
        except StoreError as error:
            return error
        finally:
            gate.leave(end - start)
        flight.stored = stored
        found = StoredRange(key, start, stored.data, is_ahead=flight.is_ahead)
        if kept:
            self._cache.put(found)
        return found

    def _landed(self, flight: _Flight, *, is_ahead: bool) -> None:
        key = flight.planned.key
        self._demand.finish(key, len(flight), flight.stored)
        del self._tasks[flight.task]
        if is_ahead:
            self._ahead -= 1
            self._ahead_bytes -= len(flight)
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
