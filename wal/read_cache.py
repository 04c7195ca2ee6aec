"""Ranges of WAL objects that were read back from the store, within a byte budget."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import OrderedDict

from tidelog.storage.object_store import Buffer


class StoredRange:
    """Bytes of an object from `start` on, as the store gave them.

    They may hold the batches of many partitions and cut some of them. Nobody has checked them yet:
    `proven` has the positions of those extents that were found right, `doubted` of those that were
    not, which have to be read by themselves.
    """

    __slots__ = ("data", "doubted", "end", "is_ahead", "key", "proven", "start")

    def __init__(self, key: str, start: int, data: Buffer, *, is_ahead: bool) -> None:
        """`is_ahead`: nobody has asked for it yet."""
        self.key = key
        self.start = start
        self.data = memoryview(data).toreadonly()
        self.end = start + len(self.data)
        self.is_ahead = is_ahead
        self.proven: set[int] = set()
        self.doubted: set[int] = set()

    def __len__(self) -> int:
        return len(self.data)

    def view(self, position: int, length: int) -> memoryview:
        """Bytes [position, position + length) of the object, or as many of them as are here."""
        first = position - self.start
        return self.data[first : first + length]


class ReadCache:
    """The range that was longest unused goes first. Views that were handed out stay valid.

    No range of an object lies within another one, so ranges in order of their starts are also in
    order of their ends.
    """

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self._ranges: OrderedDict[tuple[str, int], StoredRange] = OrderedDict()
        self._starts: dict[str, list[int]] = {}
        self.size_bytes = 0
        self.ahead_bytes = 0
        """Of ranges that were read ahead and that nobody has asked for yet."""
        self.wasted_bytes = 0
        """Of ranges that were read ahead and dropped before anybody asked for them."""

    def put(self, added: StoredRange) -> None:
        """Keep a range. One that is larger than the whole budget, or held already, is not kept."""
        if len(added) > self.bytes_max or self._find(added.key, added.start, added.end):
            return
        starts = self._starts.setdefault(added.key, [])
        for start in starts[bisect_left(starts, added.start) :]:
            if self._ranges[(added.key, start)].end > added.end:
                break
            self._drop(added.key, start)
        insort(self._starts.setdefault(added.key, []), added.start)
        self._ranges[(added.key, added.start)] = added
        self.size_bytes += len(added)
        if added.is_ahead:
            self.ahead_bytes += len(added)
        while self.size_bytes > self.bytes_max:
            self._drop(*next(iter(self._ranges)))

    def get(self, key: str, position: int, length: int) -> StoredRange | None:
        """The range that holds these bytes of an object; from now on somebody has used it."""
        found = self._find(key, position, position + length)
        if found is not None:
            self._ranges.move_to_end((key, found.start))
            if found.is_ahead:
                found.is_ahead = False
                self.ahead_bytes -= len(found)
        return found

    def covers(self, key: str, position: int, length: int) -> bool:
        """Whether these bytes are here; asking changes nothing."""
        return self._find(key, position, position + length) is not None

    def bounds(self, key: str) -> list[tuple[int, int]]:
        """The start and end of each range of an object, ascending."""
        return [(start, self._ranges[(key, start)].end) for start in self._starts.get(key, ())]

    def _find(self, key: str, start: int, end: int) -> StoredRange | None:
        starts = self._starts.get(key)
        if not starts:
            return None
        index = bisect_right(starts, start) - 1
        if index < 0:
            return None
        found = self._ranges[(key, starts[index])]
        return found if found.end >= end else None

    def _drop(self, key: str, start: int) -> None:
        dropped = self._ranges.pop((key, start))
        self.size_bytes -= len(dropped)
        if dropped.is_ahead:
            self.ahead_bytes -= len(dropped)
            self.wasted_bytes += len(dropped)
        starts = self._starts[key]
        starts.remove(start)
        if not starts:
            del self._starts[key]
