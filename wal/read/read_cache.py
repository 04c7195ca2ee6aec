"""Caches ranges of WAL objects that were read back from the store.

Caches of other bytes that were read back may share the memory.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from typing import Protocol

from tidelog.storage.object_store import Buffer


class Held(Protocol):
    """Bytes that were read back and are kept in memory. Each is equal to itself alone."""

    is_ahead: bool
    """No reader has asked for it yet."""

    def __len__(self) -> int:
        """The number of bytes."""
        ...


class ReadMemory:
    """Drops the least recently used bytes first, and tells their cache."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self._held: OrderedDict[Held, Callable[[], object]] = OrderedDict()
        self.size_bytes = 0
        self.ahead_bytes = 0
        """The bytes that were read ahead and that no reader has asked for yet."""
        self.wasted_bytes = 0
        """The bytes that were read ahead and dropped before a reader asked for them."""

    def fits(self, size: int) -> bool:
        """Whether this many bytes fit into the whole budget."""
        return size <= self.bytes_max

    def add(self, held: Held, dropped: Callable[[], object]) -> None:
        """Keep `held`, and drop the oldest bytes. Its own drop calls `dropped`."""
        self._held[held] = dropped
        self.size_bytes += len(held)
        if held.is_ahead:
            self.ahead_bytes += len(held)
        while self.size_bytes > self.bytes_max:
            oldest, forget = next(iter(self._held.items()))
            self.remove(oldest)
            forget()

    def use(self, held: Held) -> None:
        """Note that a reader has asked for it."""
        self._held.move_to_end(held)
        if held.is_ahead:
            held.is_ahead = False
            self.ahead_bytes -= len(held)

    def remove(self, held: Held) -> None:
        """Note that its cache has dropped it."""
        del self._held[held]
        self.size_bytes -= len(held)
        if held.is_ahead:
            self.ahead_bytes -= len(held)
            self.wasted_bytes += len(held)


class StoredRange:
    """Bytes of an object from `start` on, as the store returned them.

    They may hold batches of many partitions, and parts of batches at both ends. Readers verify each
    extent: `proven` has the positions of sound extents, `doubted` those of damaged ones, which
    readers read again, alone.
    """

    __slots__ = ("data", "doubted", "end", "is_ahead", "key", "proven", "start")

    def __init__(self, key: str, start: int, data: Buffer, *, is_ahead: bool) -> None:
        """`is_ahead`: no reader has asked for it yet."""
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
        """Bytes [position, position + length) of the object, cut at the end of this range."""
        first = position - self.start
        return self.data[first : first + length]


class ReadCache:
    """Ranges by object and start. Their views stay valid after the cache drops a range.

    No range of an object lies within another one. So the order of the starts is also that of the
    ends.
    """

    def __init__(self, memory: ReadMemory) -> None:
        self.memory = memory
        """The budget, shared with the cache of segments."""
        self._ranges: dict[tuple[str, int], StoredRange] = {}
        self._starts: dict[str, list[int]] = {}

    def put(self, added: StoredRange) -> None:
        """Keep a range, unless it is larger than the whole budget or lies in a kept range."""
        key, start = added.key, added.start
        if not self.memory.fits(len(added)) or self._find(key, start, added.end):
            return
        starts = self._starts.setdefault(key, [])
        for within in starts[bisect_left(starts, start) :]:
            if self._ranges[(key, within)].end > added.end:
                break
            self.memory.remove(self._ranges[(key, within)])
            self._forget(key, within)
        insort(self._starts.setdefault(key, []), start)
        self._ranges[(key, start)] = added
        self.memory.add(added, partial(self._forget, key, start))

    def get(self, key: str, position: int, length: int) -> StoredRange | None:
        """The range that holds these bytes of an object; counts as a use."""
        found = self._find(key, position, position + length)
        if found is not None:
            self.memory.use(found)
        return found

    def covers(self, key: str, position: int, length: int) -> bool:
        """Whether the cache has these bytes; does not count as a use."""
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

    def _forget(self, key: str, start: int) -> None:
        del self._ranges[(key, start)]
        starts = self._starts[key]
        starts.remove(start)
        if not starts:
            del self._starts[key]
