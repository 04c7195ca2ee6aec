"""How much of the broker's memory clients' requests may take up, over all connections. Pure.

Counted is every byte that was received and whose request is not answered, parts of requests too.
Above the limit connections stop reading, and go on in the order in which they began to wait.

If parts of requests alone exceed the limit, no answer will ever free memory: then one connection,
the privileged one, may complete its request. So what is held stays below the limit, plus one
request, plus what one read of each connection delivers.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

C = TypeVar("C", bound=Hashable)


class RequestMemory(Generic[C]):
    """`C` stands for a connection."""

    def __init__(self, bytes_max: int) -> None:
        """-1 is no limit."""
        self._bytes_max = bytes_max
        self._waiting: dict[C, bool] = {}
        """Whether they have begun a request, in the order in which they began to wait."""
        self._privileged: C | None = None
        self.bytes_held = 0
        self.requests = 0
        """Complete requests that are not answered."""

    @property
    def exhausted(self) -> bool:
        """Whether the limit is reached."""
        return 0 <= self._bytes_max <= self.bytes_held

    @property
    def privileged(self) -> C | None:
        """The connection that may read although the limit is reached."""
        return self._privileged

    def received(self, connection: C, size: int, requests: int) -> None:
        """`size` bytes came, which completed so many requests."""
        self.bytes_held += size
        self.requests += requests
        if requests and self._privileged == connection:
            self._privileged = None

    def answered(self, size: int, requests: int = 1) -> None:
        """Requests of `size` bytes are answered, or will never be."""
        self.bytes_held -= size
        self.requests -= requests
        assert self.bytes_held >= 0
        assert self.requests >= 0

    def withdraw(self, connection: C) -> None:
        """The connection does not want to read now; what it holds is given back by `answered`."""
        self._waiting.pop(connection, None)
        if self._privileged == connection:
            self._privileged = None

    def may_read(self, connection: C, begun: bool) -> bool:
        """Whether the connection may go on reading, which may have `begun` a request. If not,
        `next_reader` names it in its turn."""
        if self._admits(connection, begun):
            self._waiting.pop(connection, None)
            return True
        self._waiting[connection] = begun
        return False

    def next_reader(self) -> C | None:
        """The next connection that waited and now may read; None if none may. It is not waiting any
        more: whoever asks has to let it read."""
        for connection, begun in self._waiting.items():
            if self._admits(connection, begun):
                del self._waiting[connection]
                return connection
            if self.requests or self._privileged is not None:
                return None
        return None

    def _admits(self, connection: C, begun: bool) -> bool:
        if not self.exhausted or self._privileged == connection:
            return True
        # Only who has begun a request can complete it and so give memory back.
        if begun and self.requests == 0 and self._privileged is None:
            self._privileged = connection
            return True
        return False
