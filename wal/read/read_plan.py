"""Which ranges of WAL objects to read for the extents that readers want: few, and not too wide.

An object holds batches of many partitions. A reader of all of them wants the whole object in one
request; a reader of a small one wants a thousandth of it. Which of them is there shows in what was
wanted so far:

- Extents of one object that are wanted at a time are read together where little lies between them.
- A range is widened by what is not wanted yet, at most by as much as others have already wanted of
  the object and no more than was widened in vain before. So the first reader of an object gets
  exactly what it wants, and who comes for the next partitions doubles what is read.
- Where half of an object nearby, a few before it in the same WAL, was wanted, the whole is read.
- Where an object was read wider before and that was dropped before anybody wanted it, there is not
  memory enough for all who go through it: they get exactly what they want.

So what is read and never wanted stays, for each object, below what was wanted of it, or one object
after each few that were wanted.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, Protocol, TypeVar

from tidelog.storage.object_store import StoredObject
from tidelog.wal.log.extents import Extent

GAP_BYTES_MAX = 64 * 1024
"""Bytes between two extents that cost no more to read along than another request would."""
RANGE_BYTES_MAX = 16 * 1024 * 1024
"""What is read at a time at most, unless an extent alone is larger."""
EXTENTS_REMEMBERED_MAX = 100_000
_NEIGHBOURS = 4
_NEIGHBOURS_LOOKED_AT = 64
"""Those whose size is not known yet, as they are being read, count for nothing."""


class Stored(Protocol):
    """Something that takes up bytes of an object."""

    @property
    def length(self) -> int: ...


S = TypeVar("S", bound=Stored)


class PlannedRead(NamedTuple):
    """Bytes [start, end) of an object; the object may end before."""

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
    """What was wanted and read of the objects that readers came to last."""

    def __init__(self, extents_max: int = EXTENTS_REMEMBERED_MAX) -> None:
        self._extents_max = extents_max
        self._objects: OrderedDict[str, _ObjectDemand] = OrderedDict()
        self._keys: list[str] = []
        self._extents = 0

    def __len__(self) -> int:
        return len(self._objects)

    def want(self, extent: Extent) -> None:
        """Somebody reads this extent."""
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
        """So much of it is being read."""
        self._of(key).read_bytes += length

    def finish(self, key: str, length: int, stored: StoredObject | None) -> None:
        """What `begin` announced has come, less of it where the object ends; None: it failed."""
        demand = self._objects.get(key)
        if demand is None:
            return
        demand.read_bytes -= length
        if stored is not None:
            demand.read_bytes += len(stored.data)
            demand.size_bytes = stored.size

    def size_bytes(self, key: str) -> int | None:
        """An object's size, where it is known."""
        demand = self._objects.get(key)
        return None if demand is None else demand.size_bytes

    def spare_bytes(self, key: str, wanted_now: int) -> int:
        """How much may be read of it beyond the `wanted_now` bytes that were just wanted."""
        demand = self._objects.get(key)
        if demand is None:
            return 0
        unused = max(0, demand.read_bytes - (demand.wanted_bytes - wanted_now))
        return max(0, demand.wanted_bytes - wanted_now - unused)

    def was_in_vain(self, key: str, wanted_now: int, held_bytes: int) -> bool:
        """Whether more of it was read and dropped than anybody wanted so far, beside the
        `wanted_now` bytes, which are not here. `held_bytes`: what is here or on its way."""
        demand = self._objects.get(key)
        if demand is None:
            return False
        return demand.read_bytes - held_bytes > demand.wanted_bytes - wanted_now

    def expected_bytes(self, key: str) -> int:
        """About how large an object is of which all will be wanted, judged by those before it in
        its WAL; 0 if that is not to be expected."""
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
    """The ranges to read for these extents of one object, all of which `demand` has heard of.

    `held`: the bounds of what is here or on its way; widening stops there. `widened_max`: a range
    that was widened is at most so long.
    """
    ordered = sorted(extents, key=lambda extent: extent.position)
    limit = min(widened_max, RANGE_BYTES_MAX)
    wanted_now = sum(extent.length for extent in ordered)
    held_bytes = sum(stop - first for first, stop in held)
    was_in_vain = demand.was_in_vain(key, wanted_now, held_bytes)
    expected_bytes = 0 if was_in_vain else demand.expected_bytes(key)
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
    """Lengthen a run by `spare` bytes in all: at its end, then at its start, up to what is held."""
    if spare <= 0:
        return
    start, end = run
    above = min((first for first, _ in held if first >= end), default=highest)
    below = max((stop for _, stop in held if stop <= start), default=0)
    run[1] = max(end, min(above, highest, end + spare))
    run[0] = max(below, start - (spare - (run[1] - end)))


def windows(found: Iterable[S], bytes_max: int) -> Iterator[list[S]]:
    """Runs of a bounded size, as much as may be in memory at a time; one alone may be larger."""
    window: list[S] = []
    size = 0
    for each in found:
        if window and size + each.length > bytes_max:
            yield window
            window, size = [], 0
        window.append(each)
        size += each.length
    if window:
        yield window
