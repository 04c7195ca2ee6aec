"""One client's connection: frames in, requests out; answers in, bytes out, in the requests' order.

Pure: no socket, no clock, no task. The server feeds it and asks what to do.

Requests may be served at the same time and finish in any order; their answers leave in the order in
which the requests came. A request that may wait for long (a fetch) is served with none after it, so
a connection never holds more than one large answer that the client has not begun to read.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from tidelog.broker.dispatch import CloseConnection, Dispatcher, OpenedRequest, ReadyAnswer
from tidelog.broker.request_memory import RequestMemory
from tidelog.protocol.wire import Buffer

SIZE_PREFIX_BYTES = 4


class TakenRequest:
    """A request that is being served. `opened` is None where `ready` answers it at once."""

    __slots__ = ("answer", "done", "opened", "ready", "size")

    def __init__(self, opened: OpenedRequest | None, ready: list[Buffer] | None, size: int) -> None:
        self.opened = opened
        self.ready = ready
        self.size = size
        """Bytes received for it."""
        self.done = False
        self.answer: list[Buffer] | None = None

    @property
    def long_poll(self) -> bool:
        """Whether nothing after it is served before it is answered."""
        return self.opened is not None and self.opened.is_alone

    @property
    def ends_with_client(self) -> bool:
        """Whether it is given up when the connection is lost."""
        return self.opened is not None and self.opened.route.ends_with_client


class Connection:
    """The state of one connection. After CloseConnection was raised only `lost` may be called."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        memory: RequestMemory[Connection],
        *,
        connection_id: int,
        client_host: str,
        requests_max: int,
    ) -> None:
        """`requests_max` requests are served at a time; more wait."""
        self.connection_id = connection_id
        self.client_host = client_host
        self._dispatcher = dispatcher
        self._memory = memory
        self._requests_max = requests_max
        self._frames: deque[memoryview] = deque()
        self._taken: deque[TakenRequest] = deque()
        self._part = 0
        """Bytes of a request that is not complete."""
        self._serving = 0
        self._writing = True
        self._open = True

    @property
    def serving(self) -> int:
        """Requests that are being served."""
        return self._serving

    @property
    def unfinished(self) -> bool:
        """Whether answers are still owed for requests that were received as a whole."""
        return bool(self._taken or self._frames)

    def received(self, size: int, frames: Sequence[memoryview]) -> None:
        """`size` more bytes came, which completed these frames."""
        self._frames.extend(frames)
        self._memory.received(self, size, len(frames))
        complete = sum(map(len, frames)) + SIZE_PREFIX_BYTES * len(frames)
        self._part += size - complete

    def next_request(self) -> TakenRequest | None:
        """The next request to serve; None while there is none or it has to wait.

        Raises:
            CloseConnection: it cannot be understood. Nothing was done for it.
        """
        if not (self._open and self._frames and self._accepting()):
            return None
        frame = self._frames.popleft()
        size = len(frame) + SIZE_PREFIX_BYTES
        try:
            opened = self._dispatcher.open(frame, self.client_host, self.connection_id)
        except CloseConnection:
            self._memory.answered(size)
            self._open = False
            raise
        if isinstance(opened, ReadyAnswer):
            taken = TakenRequest(None, opened.buffers, size)
        else:
            taken = TakenRequest(opened, None, size)
        self._taken.append(taken)
        self._serving += 1
        return taken

    def answer(self, taken: TakenRequest, buffers: list[Buffer] | None) -> list[Buffer]:
        """The request is answered with these buffers, or is to have no answer (None). Returned is
        what can be sent now."""
        assert not taken.done
        taken.done = True
        taken.answer = buffers
        self._serving -= 1
        self._memory.answered(taken.size)
        sendable: list[Buffer] = []
        while self._taken and self._taken[0].done:
            first = self._taken.popleft()
            if first.answer:
                sendable.extend(first.answer)
        return sendable if self._open else []

    def pause_writing(self) -> None:
        """The client does not read its answers: take no further requests of it."""
        self._writing = False

    def resume_writing(self) -> None:
        """It reads again."""
        self._writing = True

    def stop(self) -> None:
        """Take no further requests; those that are being served are still answered."""
        self._drop_unserved()
        self._requests_max = 0

    def lost(self) -> None:
        """The connection is gone. What is being served may still be answered, to nobody."""
        self._open = False
        self._drop_unserved()
        self._memory.withdraw(self)

    def wants_reading(self) -> bool:
        """Whether the server shall read from the socket. Where memory is what is lacking, the
        connection is remembered by RequestMemory."""
        if self._open and not self._frames and self._has_room():
            return self._memory.may_read(self, self._part > 0)
        self._memory.withdraw(self)
        return False

    def _accepting(self) -> bool:
        return self._has_room() and not (self._taken and self._taken[-1].long_poll)

    def _has_room(self) -> bool:
        """Also behind a request that is served alone one more is read, else nobody would notice
        that the client has gone."""
        return self._writing and len(self._taken) < self._requests_max

    def _drop_unserved(self) -> None:
        complete = sum(map(len, self._frames)) + SIZE_PREFIX_BYTES * len(self._frames)
        self._memory.answered(complete + self._part, len(self._frames))
        self._frames.clear()
        self._part = 0
