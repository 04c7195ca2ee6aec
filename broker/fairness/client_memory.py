"""The memory of clients' requests and of their answers, over all connections. Pure.

A request counts from its first byte until its answer, by its received bytes. When its size is known
and more of it has to arrive, its memory is reserved: its full size counts. Until then its
connection waits. A connection without a request also waits, while the limit is reached. A request
with reserved memory may always continue: if it stalls, its client is at fault.

Large requests share a part of the memory, and very large ones a part of that. So small requests
never wait for large ones. Memory for one request is reserved even above the limit. So held bytes
stay below the limit, plus one request, plus one read of each connection.

Answers count until clients have taken them. Each connection has a limit of its own: none of its
requests starts while too many bytes of its answers wait. Large answers, those of fetches, are cut
to the room that is left. So many clients that do not read stay within the common limit, except the
smallest answer: one batch.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final, Generic, NamedTuple, TypeVar

from tidelog.protocol.frames import SCRATCH_BYTES

C = TypeVar("C", bound=Hashable)

LARGE_BYTES: Final = SCRATCH_BYTES
"""Larger requests take up at most half of the memory. Smaller ones may arrive in one read."""
VERY_LARGE_BYTES: Final = 8 * 1024 * 1024
"""Larger requests take up at most a quarter of the memory, or there is only one of them."""
EXHAUSTED_READ_BYTES: Final = 4096
"""The bytes that a read may deliver while the limit is reached."""
_NO_LIMIT: Final = 2**63


class RequestMemory(Generic[C]):
    """`C` is the type of a connection."""

    def __init__(self, bytes_max: int) -> None:
        """`bytes_max` of -1 is no limit."""
        bytes_max = bytes_max if bytes_max >= 0 else _NO_LIMIT
        self._all = _Class(0, bytes_max)
        self._large = _Class(LARGE_BYTES, bytes_max // 2)
        self._very_large = _Class(VERY_LARGE_BYTES, bytes_max // 4)
        self._classes = (self._all, self._large, self._very_large)
        # Begun requests continue before new ones start: only they give memory back.
        self._begun: tuple[_Queue[C], ...] = tuple(_Queue(each) for each in self._classes)
        self._idle: _Queue[C] = _Queue(self._all)
        self._queues = (*self._begun, self._idle)
        self._reserved = 0
        """Incomplete requests with reserved memory."""
        self._turns = 0
        self.requests = 0
        """Complete requests without an answer."""

    @property
    def bytes_held(self) -> int:
        """Received bytes without an answer, and the rest of reserved memory."""
        return self._all.bytes_held

    @property
    def waiting(self) -> int:
        """The number of waiting connections."""
        return sum(len(queue.waiting) for queue in self._queues)

    @property
    def read_bytes_max(self) -> int:
        """The bytes that the next read may deliver, unless its memory is reserved."""
        return EXHAUSTED_READ_BYTES if self._all.is_full else SCRATCH_BYTES

    def received(self, size: int, requests: int) -> None:
        """Count `size` bytes that were not reserved before, and newly complete requests."""
        self._all.bytes_held += size
        self.requests += requests

    def completed(self) -> None:
        """A request with reserved memory is complete."""
        self._reserved -= 1
        self.requests += 1

    def answered(self, size: int) -> None:
        """Release a request of `size` bytes, with its answer or without one."""
        self.requests -= 1
        assert self.requests >= 0
        self._give_back(size)

    def abandoned(self, size: int, *, reserved: bool) -> None:
        """Release an incomplete request.

        `size`: its full size if that was reserved, otherwise its received bytes.
        """
        self._reserved -= reserved
        assert self._reserved >= 0
        self._give_back(size)

    def withdraw(self, connection: C) -> None:
        """The connection no longer waits."""
        for queue in self._queues:
            queue.waiting.pop(connection, None)

    def reserve(self, connection: C, size: int, received: int) -> bool:
        """Whether the connection may continue to read; if not, it waits.

        `size` and `received` are of its incomplete request, whose memory this reserves. With `size`
        0 it has none.
        """
        if not size and not self._all.is_full:
            self._idle.waiting.pop(connection, None)
            return True
        queue = self._queue_of(size)
        if not self._fits(queue.own, size):
            if connection not in queue.waiting:
                self._turns += 1
                queue.waiting[connection] = _Wait(size, self._turns)
            return False
        queue.waiting.pop(connection, None)
        if size:
            self._reserved += 1
            self._all.bytes_held += size - received
            for each in self._classes[1:]:
                if size > each.above:
                    each.bytes_held += size
        return True

    def next_reader(self) -> C | None:
        """The next waiting connection whose request now fits; None if none does.

        It no longer waits: it has to ask again.
        """
        for queue in self._queues:
            if not queue.waiting:
                continue
            for connection, wait in queue.waiting.items():
                if not self._fits(queue.own, wait.size):
                    break
                del queue.waiting[connection]
                return connection
        return None

    def waited_seconds(self, now: float) -> float:
        """The longest time that a connection has been first in its queue.

        The time starts with the first call that finds it there.
        """
        return max(queue.waited_seconds(now) for queue in self._queues)

    def _queue_of(self, size: int) -> _Queue[C]:
        if not size:
            return self._idle
        return self._begun[(size > LARGE_BYTES) + (size > VERY_LARGE_BYTES)]

    def _fits(self, own: _Class, size: int) -> bool:
        if size and not self._reserved:
            return True
        for each in self._classes:
            if each.is_full:
                return False
            if each is own:
                break
        return not own.above or not own.bytes_held or own.bytes_held + size <= own.bytes_max

    def _give_back(self, size: int) -> None:
        for each in self._classes:
            if each.above and size <= each.above:
                break
            each.bytes_held -= size
            assert each.bytes_held >= 0


class _Class:
    """The requests above a size, and their common limit."""

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
    """The size of the request to continue; 0 if none has begun."""
    turn: int


class _Queue(Generic[C]):
    """The connections that wait for the same memory, in the order of their arrival."""

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


_SHARE: Final = 4
"""One answer may take 1/4 of the room that is left."""


class AnswerMemory:
    """The unread answers of all connections."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self.bytes_held = 0

    @property
    def is_short(self) -> bool:
        """Whether the server must evict clients that do not take their answers."""
        return self.bytes_held > self._bytes_max // 2

    @property
    def answer_bytes_max(self) -> int:
        """The size limit of the next answer; at least 1, so that it makes progress."""
        return max(1, (self._bytes_max - self.bytes_held) // _SHARE)

    def change(self, size: int) -> None:
        """Add `size` held bytes, which may be negative."""
        self.bytes_held += size
        assert self.bytes_held >= 0
