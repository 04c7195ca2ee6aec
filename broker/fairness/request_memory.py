"""How much of the broker's memory clients' requests may take up, over all connections. Pure.

A request counts from its first byte until it is answered, by the bytes that were received of it.
When its size is known and more of it has to come, it is admitted, and counts as a whole from then
on. A connection whose request is not admitted waits; so does one that has begun none, while the
limit is reached. What is admitted may always go on: so a client that does not go on is at fault.

Large requests share a part of the memory, and very large ones a part of that. So small requests
never wait for large ones.

At least one request is admitted, whatever is held. So what is held stays below the limit, plus one
request, plus what one read of each connection delivers.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final, Generic, NamedTuple, TypeVar

from tidelog.protocol.frames import SCRATCH_BYTES

C = TypeVar("C", bound=Hashable)

LARGE_BYTES: Final = SCRATCH_BYTES
"""Requests above this take up half of the memory at most. Smaller ones may come in one read."""
VERY_LARGE_BYTES: Final = 8 * 1024 * 1024
"""Requests above this take up a quarter of it at most, or there is one of them."""
EXHAUSTED_READ_BYTES: Final = 4096
"""What a read may deliver while the limit is reached."""
_NO_LIMIT: Final = 2**63


class RequestMemory(Generic[C]):
    """`C` stands for a connection."""

    def __init__(self, bytes_max: int) -> None:
        """-1 is no limit."""
        bytes_max = bytes_max if bytes_max >= 0 else _NO_LIMIT
        self._all = _Class(0, bytes_max)
        self._large = _Class(LARGE_BYTES, bytes_max // 2)
        self._very_large = _Class(VERY_LARGE_BYTES, bytes_max // 4)
        self._classes = (self._all, self._large, self._very_large)
        # What is begun goes on before anything is begun: only that gives memory back.
        self._begun: tuple[_Queue[C], ...] = tuple(_Queue(each) for each in self._classes)
        self._idle: _Queue[C] = _Queue(self._all)
        self._queues = (*self._begun, self._idle)
        self._admitted = 0
        """Requests that are admitted and not complete."""
        self._turns = 0
        self.requests = 0
        """Complete requests that are not answered."""

    @property
    def bytes_held(self) -> int:
        """Bytes that were received and not answered, and those that have been admitted."""
        return self._all.bytes_held

    @property
    def waiting(self) -> int:
        """Connections that wait."""
        return sum(len(queue.waiting) for queue in self._queues)

    @property
    def read_bytes_max(self) -> int:
        """What the next read may deliver that does not continue an admitted request."""
        return EXHAUSTED_READ_BYTES if self._all.is_full else SCRATCH_BYTES

    def received(self, size: int, requests: int) -> None:
        """`size` bytes came that were not admitted before; so many requests are complete by now."""
        self._all.bytes_held += size
        self.requests += requests

    def completed(self) -> None:
        """An admitted request has come as a whole."""
        self._admitted -= 1
        self.requests += 1

    def answered(self, size: int) -> None:
        """A request of `size` bytes is answered, or will never be."""
        self.requests -= 1
        assert self.requests >= 0
        self._give_back(size)

    def abandoned(self, size: int, *, admitted: bool) -> None:
        """A request will never be complete: one that was admitted, of `size` bytes in all, or one
        of which so many bytes had come."""
        self._admitted -= admitted
        assert self._admitted >= 0
        self._give_back(size)

    def withdraw(self, connection: C) -> None:
        """The connection does not wait any more."""
        for queue in self._queues:
            queue.waiting.pop(connection, None)

    def admit(self, connection: C, size: int, received: int) -> bool:
        """Whether the connection may read on: a request of `size` bytes of which some have come,
        which is admitted then; with 0, whatever comes. If not, it waits."""
        queue = self._queue_of(size)
        if not self._fits(queue.own, size):
            if connection not in queue.waiting:
                self._turns += 1
                queue.waiting[connection] = _Wait(size, self._turns)
            return False
        queue.waiting.pop(connection, None)
        if size:
            self._admitted += 1
            self._all.bytes_held += size - received
            for each in self._classes[1:]:
                if size > each.above:
                    each.bytes_held += size
        return True

    def next_reader(self) -> C | None:
        """The next connection that waited and now would be admitted; None if none would be. It does
        not wait any more: it has to ask again."""
        for queue in self._queues:
            for connection, wait in queue.waiting.items():
                if not self._fits(queue.own, wait.size):
                    break
                del queue.waiting[connection]
                return connection
        return None

    def waited_seconds(self, now: float) -> float:
        """How long a connection has been the first of those that wait for the same. It is seen from
        the first call on that finds it there."""
        return max(queue.waited_seconds(now) for queue in self._queues)

    def _queue_of(self, size: int) -> _Queue[C]:
        if not size:
            return self._idle
        return self._begun[(size > LARGE_BYTES) + (size > VERY_LARGE_BYTES)]

    def _fits(self, own: _Class, size: int) -> bool:
        if size and not self._admitted:
            return True
        for each in self._classes:
            if each.is_full:
                return False
            if each is own:
                break
        return not own.above or not own.bytes_held or own.bytes_held + size <= own.bytes_max

    def _give_back(self, size: int) -> None:
        for each in self._classes:
            if size > each.above or not each.above:
                each.bytes_held -= size
                assert each.bytes_held >= 0


class _Class:
    """The requests above a size, which take up so much memory together."""

    __slots__ = ("above", "bytes_held", "bytes_max")

    def __init__(self, above: int, bytes_max: int) -> None:
        self.above = above
        self.bytes_max = bytes_max
        self.bytes_held = 0

    @property
    def is_full(self) -> bool:
        return self.bytes_held >= self.bytes_max


class _Wait(NamedTuple):
    size: int
    """Of the request that wants to go on; 0 if none has begun."""
    turn: int


class _Queue(Generic[C]):
    """Who waits for the same, in the order in which they began to."""

    __slots__ = ("_first_since", "_first_turn", "own", "waiting")

    def __init__(self, own: _Class) -> None:
        self.own = own
        self.waiting: dict[C, _Wait] = {}
        self._first_turn = 0
        self._first_since = 0.0

    def waited_seconds(self, now: float) -> float:
        turn = next((wait.turn for wait in self.waiting.values()), 0)
        if not turn or turn != self._first_turn:
            self._first_turn, self._first_since = turn, now
        return now - self._first_since
