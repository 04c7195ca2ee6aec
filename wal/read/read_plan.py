"""Plans reads of WAL objects for the extents that readers want, in few and narrow ranges.

An object holds batches of many partitions. A reader of all partitions wants the whole object in one
request. A reader of a small partition wants a thousandth of it. The demand so far tells them apart:

- Extents of one object that are wanted together are read together if the gap between them is small.
- A range is widened at most by the bytes of the object that readers have wanted so far, less the
  bytes that were widened and not used. So the first reader of an object gets exactly its extents,
  and each later reader doubles the range.
- If readers wanted half of one of the preceding objects of the same WAL, the whole object is read.
- If more bytes of an object were read and dropped than readers wanted, memory is too small for all
  its readers. They get exactly their extents.

So the unused bytes of an object stay below its wanted bytes. The exception is an object that is
read whole because readers wanted the objects before it.
"""

from __future__ import annotations

import sys
from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, Protocol, TypeVar

from tidelog.storage.object_store import StoredObject
from tidelog.wal.log.extents import Extent

GAP_BYTES_MAX = 64 * 1024
"""Reading a gap of this size costs no more than another request."""
RANGE_BYTES_MAX = 16 * 1024 * 1024
"""The largest range, unless one extent is larger."""
EXTENTS_REMEMBERED_MAX = 100_000
_NEIGHBOURS = 4
_NEIGHBOURS_LOOKED_AT = 64
"""More than `_NEIGHBOURS`, because objects of unknown size do not count."""


class Stored(Protocol):
    """A part of an object."""

    @property
    def length(self) -> int: ...


S = TypeVar("S", bound=Stored)


class PlannedRead(NamedTuple):
    """Bytes [start, end) of an object; the object may end earlier."""

    key: str
    start: int
    end: int


class _ObjectDemand:
    __slots__ = ("positions", "read_bytes", "size_bytes", "wanted_bytes")

    def __init__(self) -> None:
        self.positions: set[int] = set()
        self.wanted_bytes = 0
        self.read_bytes = 0
        self.size_bytes: int | None = None


class Demand:
    """The wanted and the read bytes of the most recently used objects."""

    def __init__(self, extents_max: int = EXTENTS_REMEMBERED_MAX) -> None:
        self._extents_max = extents_max
        self._objects: OrderedDict[str, _ObjectDemand] = OrderedDict()
        self._keys: list[str] = []
        self._extents = 0

    def __len__(self) -> int:
        return len(self._objects)

    def want(self, extent: Extent) -> None:
        """Note that a reader wants this extent."""
        demand = self._of(extent.key)
        if extent.position not in demand.positions:
            demand.positions.add(extent.position)
            demand.wanted_bytes += extent.length
            self._extents += 1
            while self._extents > self._extents_max and len(self._objects) > 1:
                key, forgotten = self._objects.popitem(last=False)
                self._extents -= len(forgotten.positions)
                del self._keys[bisect_left(self._keys, key)]

    def begin(self, key: str, length: int) -> None:
        """Note that a read of `length` bytes has begun."""
        self._of(key).read_bytes += length

    def finish(self, key: str, length: int, stored: StoredObject | None) -> None:
        """Note the end of a read that `begin` announced, of fewer bytes at the object's end.

        None: it failed.
        """
        demand = self._objects.get(key)
        if demand is None:
            return
        demand.read_bytes -= length
        if stored is not None:
            demand.read_bytes += len(stored.data)
            demand.size_bytes = stored.size

    def size_bytes(self, key: str) -> int | None:
        """An object's size; None if unknown."""
        demand = self._objects.get(key)
        return None if demand is None else demand.size_bytes

    def spare_bytes(self, key: str, wanted_now: int) -> int:
        """The bytes that a read may add to the `wanted_now` bytes that were just wanted."""
        demand = self._objects.get(key)
        if demand is None:
            return 0
        unused = max(0, demand.read_bytes - (demand.wanted_bytes - wanted_now))
        return max(0, demand.wanted_bytes - wanted_now - unused)

    def is_wasteful(self, key: str, wanted_now: int, held_bytes: int) -> bool:
        """Whether more bytes of it were read and dropped than readers wanted so far.

        The `wanted_now` bytes do not count; they are not in memory. `held_bytes`: the bytes that
        are in memory or being read.
        """
        demand = self._objects.get(key)
        if demand is None:
            return False
        return demand.read_bytes - held_bytes > demand.wanted_bytes - wanted_now

    def expected_bytes(self, key: str) -> int:
        """The estimated size of an object that readers will want whole, by the preceding objects
        of its WAL; 0 if they were not wanted."""
        index = bisect_left(self._keys, key)
        wal = key[: key.rfind("/") + 1]
        found = largest = 0
        for before in range(index - 1, max(-1, index - 1 - _NEIGHBOURS_LOOKED_AT), -1):
            neighbour = self._keys[before]
            demand = self._objects[neighbour]
            if not neighbour.startswith(wal):
                break
            if demand.size_bytes is None:
                continue
            if 2 * demand.wanted_bytes >= demand.size_bytes:
                largest = max(largest, demand.size_bytes)
            found += 1
            if found == _NEIGHBOURS:
                break
        return largest

    def _of(self, key: str) -> _ObjectDemand:
        demand = self._objects.get(key)
        if demand is None:
            demand = self._objects[key] = _ObjectDemand()
            insort(self._keys, key)
        else:
            self._objects.move_to_end(key)
        return demand


def plan_reads(
    key: str,
    extents: Iterable[Extent],
    demand: Demand,
    held: Sequence[tuple[int, int]],
    widened_max: int,
) -> list[PlannedRead]:
    """The ranges to read for these extents of one object. `demand` has noted all of them.

    `held`: the bounds of the ranges that are in memory or being read; widening stops at them.
    `widened_max`: the largest size of a widened range.
    """
    ordered = sorted(extents, key=lambda extent: extent.position)
    limit = min(widened_max, RANGE_BYTES_MAX)
    wanted_now = sum(extent.length for extent in ordered)
    held_bytes = sum(stop - first for first, stop in held)
    is_wasteful = demand.is_wasteful(key, wanted_now, held_bytes)
    expected_bytes = 0 if is_wasteful else demand.expected_bytes(key)
    spare = limit
    if not expected_bytes:
        spare = min(limit, demand.spare_bytes(key, wanted_now))
    runs: list[list[int]] = []
    for extent in ordered:
        start, end = extent.position, extent.position + extent.length
        if runs and end - runs[-1][0] <= RANGE_BYTES_MAX:
            gap = start - runs[-1][1]
            if gap <= GAP_BYTES_MAX or (gap <= spare and end - runs[-1][0] <= limit):
                spare -= max(0, gap - GAP_BYTES_MAX)
                runs[-1][1] = max(end, runs[-1][1])
                continue
        runs.append([start, end])
    end_known = demand.size_bytes(key) or max(expected_bytes, runs[-1][1])
    following = runs[1][0] if len(runs) > 1 else end_known
    _widen(runs[0], min(spare, limit - (runs[0][1] - runs[0][0])), held, following)
    return [PlannedRead(key, start, end) for start, end in runs]


def _widen(run: list[int], spare: int, held: Sequence[tuple[int, int]], highest: int) -> None:
    """Lengthen a run by `spare` bytes: first at its end, then at its start, up to held ranges."""
    if spare <= 0:
        return
    start, end = run
    above = min((first for first, _ in held if first >= end), default=highest)
    below = max((stop for _, stop in held if stop <= start), default=0)
    run[1] = max(end, min(above, highest, end + spare))
    run[0] = max(below, start - (spare - (run[1] - end)))


def windows(found: Iterable[S], bytes_max: int, parts_max: int = sys.maxsize) -> Iterator[list[S]]:
    """Runs of so many bytes and parts at most; a single larger part is a run of its own."""
    window: list[S] = []
    size = 0
    for each in found:
        if window and (len(window) >= parts_max or size + each.length > bytes_max):
            yield window
            window, size = [], 0
        window.append(each)
        size += each.length
    if window:
        yield window
