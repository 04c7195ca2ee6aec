"""The newest WAL objects in memory, within a byte budget."""

from __future__ import annotations

from collections import OrderedDict

from tidelog.storage.object_store import Buffer


class TailCache:
    """Whole durable objects; drops the least recently used one first.

    Views stay valid after the cache drops their object.
    """

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._objects: OrderedDict[str, memoryview] = OrderedDict()
        self.size_bytes = 0
        self.hits = 0
        self.misses = 0

    def put(self, key: str, data: Buffer) -> None:
        """Keep an object, unless it is larger than the whole budget."""
        view = memoryview(data).toreadonly()
        if len(view) > self._bytes_max:
            return
        self.drop(key)
        self._objects[key] = view
        self.size_bytes += len(view)
        while self.size_bytes > self._bytes_max:
            _, dropped = self._objects.popitem(last=False)
            self.size_bytes -= len(dropped)

    def get(self, key: str, position: int, length: int) -> memoryview | None:
        """These bytes of an object; None if the cache lacks the object."""
        held = self._objects.get(key)
        if held is None or position + length > len(held):
            self.misses += 1
            return None
        self._objects.move_to_end(key)
        self.hits += 1
        return held[position : position + length]

    def peek(self, key: str, position: int, length: int) -> memoryview | None:
        """The bytes that `get` returns, for readers of an object once; not counted as a use."""
        held = self._objects.get(key)
        if held is None or position + length > len(held):
            return None
        return held[position : position + length]

    def whole(self, key: str) -> memoryview | None:
        """A whole object, or None; not counted as a use."""
        return self._objects.get(key)

    def __contains__(self, key: str) -> bool:
        return key in self._objects

    def drop(self, key: str) -> None:
        """Forget an object."""
        self.size_bytes -= len(self._objects.pop(key, b""))
