"""Deadlines by key. Moving one later is cheap, as heartbeats do it constantly. Pure."""

from __future__ import annotations

import heapq
from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)

_STALE_ENTRIES_MAX = 64


class Timers(Generic[K]):
    """At most one deadline a key, in milliseconds of a monotonic clock."""

    def __init__(self) -> None:
        self._deadlines: dict[K, int] = {}
        self._queued: dict[K, int] = {}
        """The time of each key's valid entry in the queue: never later than its deadline."""
        self._queue: list[tuple[int, int, K]] = []
        self._sequence = 0

    def __contains__(self, key: object) -> bool:
        return key in self._deadlines

    def __len__(self) -> int:
        return len(self._deadlines)

    def set(self, key: K, deadline_ms: int) -> None:
        """Replace the key's deadline."""
        self._deadlines[key] = deadline_ms
        queued = self._queued.get(key)
        # An entry that is too early moves when it comes up: a heartbeat costs no queueing.
        if queued is None or deadline_ms < queued:
            self._enqueue(key, deadline_ms)

    def cancel(self, key: K) -> None:
        """Remove the key's deadline."""
        self._deadlines.pop(key, None)

    def next_deadline(self) -> int | None:
        """The earliest deadline; None if there is none."""
        while self._queue:
            queued_at, _, key = self._queue[0]
            deadline = self._deadlines.get(key)
            if self._queued.get(key) != queued_at:
                heapq.heappop(self._queue)
            elif deadline is None:
                heapq.heappop(self._queue)
                del self._queued[key]
            elif deadline > queued_at:
                heapq.heappop(self._queue)
                self._enqueue(key, deadline)
            else:
                return deadline
        return None

    def pop_due(self, now_ms: int) -> K | None:
        """Remove and return the key with the earliest deadline, if that has passed."""
        deadline = self.next_deadline()
        if deadline is None or deadline > now_ms:
            return None
        _, _, key = heapq.heappop(self._queue)
        del self._queued[key]
        del self._deadlines[key]
        return key

    def _enqueue(self, key: K, deadline_ms: int) -> None:
        self._queued[key] = deadline_ms
        self._sequence += 1
        heapq.heappush(self._queue, (deadline_ms, self._sequence, key))
        if len(self._queue) > 2 * len(self._deadlines) + _STALE_ENTRIES_MAX:
            self._drop_stale()

    def _drop_stale(self) -> None:
        """Remove cancelled entries, which would otherwise pile up until their time."""
        self._queued = dict(self._deadlines)
        order = {key: sequence for _, sequence, key in self._queue}
        self._queue = [(at, order[key], key) for key, at in self._deadlines.items()]
        heapq.heapify(self._queue)
