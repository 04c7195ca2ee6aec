"""The newest WAL bytes in memory, within a byte budget."""

from __future__ import annotations

from collections import OrderedDict

from tidelog.storage.object_store import Buffer


class TailCache:
    """Pieces of objects, whole ones as a rule; the object that was longest unused goes first.

    Only what is durable belongs in it. Views that were handed out stay valid when it goes.
    """

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._objects: OrderedDict[str, dict[int, memoryview]] = OrderedDict()
        self.size_bytes = 0
        self.hits = 0
        self.misses = 0

    def put(self, key: str, data: Buffer, position: int = 0) -> memoryview:
        """Keep the bytes of an object from `position` on; a read-only view of them.

        What is larger than the whole budget is not kept.
        """
        view = memoryview(data).toreadonly()
        if len(view) > self._bytes_max:
            return view
        pieces = self._objects.setdefault(key, {})
        self._objects.move_to_end(key)
        self.size_bytes += len(view) - len(pieces.get(position, b""))
        pieces[position] = view
        while self.size_bytes > self._bytes_max:
            self._drop_oldest()
        return view

    def get(self, key: str, position: int, length: int) -> memoryview | None:
        """These bytes of an object, or None if neither the whole object is here nor a piece that
        begins at this position."""
        pieces = self._objects.get(key, {})
        for start in (position, 0):
            held = pieces.get(start)
            if held is not None and position - start + length <= len(held):
                self._objects.move_to_end(key)
                self.hits += 1
                return held[position - start : position - start + length]
        self.misses += 1
        return None

    def drop(self, key: str) -> None:
        """Forget an object."""
        pieces = self._objects.pop(key, {})
        self.size_bytes -= sum(map(len, pieces.values()))

    def _drop_oldest(self) -> None:
        _, pieces = self._objects.popitem(last=False)
        self.size_bytes -= sum(map(len, pieces.values()))
