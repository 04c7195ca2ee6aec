"""The history of a simulation: a running digest, and the lines for debugging."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable

TAIL_LINES_MAX = 200
_FLUSH_LINES = 256


class Trace:
    """Collects one line an event. Two runs of one seed must have the same digest.

    The digest covers every line ever recorded; of the lines themselves only the last ones are
    kept, unless a `sink` takes them all.
    """

    def __init__(self, sink: Callable[[str], object] | None = None) -> None:
        self._digest = hashlib.blake2b(digest_size=16)
        self._pending: list[str] = []
        self._tail: deque[str] = deque(maxlen=TAIL_LINES_MAX)
        self._sink = sink
        self.events = 0

    def record(self, now: float, line: str) -> None:
        """Append one event. `line` must be the same in every run of the seed: no id(), no
        hash()."""
        self.events += 1
        text = f"{now:.6f} {line}\n"
        self._pending.append(text)
        if self._sink is not None:
            self._sink(text)
        if len(self._pending) >= _FLUSH_LINES:
            self._flush()

    def digest(self) -> str:
        """Hexadecimal digest of every line so far."""
        self._flush()
        return self._digest.hexdigest()

    def tail(self) -> list[str]:
        """The last lines, without their line ends."""
        self._flush()
        return [line.rstrip("\n") for line in self._tail]

    def _flush(self) -> None:
        self._digest.update("".join(self._pending).encode())
        self._tail.extend(self._pending)
        self._pending.clear()
