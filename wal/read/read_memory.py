"""One budget of bytes for what was read back, whatever caches keep it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Protocol


class Held(Protocol):
    """Something that is kept in memory because it was read back. Two are never equal."""

    is_ahead: bool
    """Nobody has asked for it yet."""

    def __len__(self) -> int:
        """Its bytes."""
        ...


class ReadMemory:
    """What was longest unused goes first, and its cache is told so."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self._held: OrderedDict[Held, Callable[[], object]] = OrderedDict()
        self.size_bytes = 0
        self.ahead_bytes = 0
        """Of what was read ahead and nobody has asked for yet."""
        self.wasted_bytes = 0
        """Of what was read ahead and dropped before anybody asked for it."""

    def fits(self, size: int) -> bool:
        """Whether so many bytes may be kept at all."""
        return size <= self.bytes_max

    def add(self, held: Held, dropped: Callable[[], object]) -> None:
        """Keep what fits; `dropped` is called when it has to make room."""
        self._held[held] = dropped
        self.size_bytes += len(held)
        if held.is_ahead:
            self.ahead_bytes += len(held)
        while self.size_bytes > self.bytes_max:
            oldest, forget = next(iter(self._held.items()))
            self.remove(oldest)
            forget()

    def use(self, held: Held) -> None:
        """Somebody has asked for it."""
        self._held.move_to_end(held)
        if held.is_ahead:
            held.is_ahead = False
            self.ahead_bytes -= len(held)

    def remove(self, held: Held) -> None:
        """Its cache has let it go."""
        del self._held[held]
        self.size_bytes -= len(held)
        if held.is_ahead:
            self.ahead_bytes -= len(held)
            self.wasted_bytes += len(held)
