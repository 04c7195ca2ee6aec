"""One client's connection: frames in, requests out; answers in, bytes out, in the requests' order.

Pure: no socket, no clock, no task. The server feeds it and asks for the next step.

Some requests run side by side (`request_order`) and finish in any order. Their answers leave in the
order of the requests. No request starts behind one that may wait for long (a fetch). So a
connection never holds more than one large answer that the client has not begun to read.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from tidelog.broker.dispatch.dispatcher import (
    Dispatcher,
    ExpiredSession,
    OpenedRequest,
    ReadyAnswer,
)
from tidelog.broker.dispatch.request_order import RequestOrder
from tidelog.broker.fairness.client_memory import AnswerMemory, RequestMemory
from tidelog.broker.handlers.request_context import CloseConnection, ConnectedClient
from tidelog.protocol.headers import api_key_of
from tidelog.protocol.wire import Buffer

SIZE_PREFIX_BYTES = 4


class TakenRequest:
    """A running request. `opened` is None if `ready` answers it at once."""

    __slots__ = (
        "answer",
        "answer_bytes",
        "api_key",
        "cheap",
        "done",
        "is_alone",
        "opened",
        "ready",
        "size",
    )

    def __init__(
        self, api_key: int, opened: OpenedRequest | None, ready: list[Buffer] | None, size: int
    ) -> None:
        self.api_key = api_key
        self.opened = opened
        self.ready = ready
        self.is_alone = opened is not None and opened.is_alone
        """Whether no later request starts before this one is answered."""
        self.cheap = opened is not None and opened.route.cheap
        """Whether the request costs little to start."""
        self.size = size
        """The request's received bytes."""
        self.done = False
        self.answer: list[Buffer] | None = None
        self.answer_bytes = 0
        """The answer's bytes, while it waits for earlier answers."""


class ServedConnection:
    """The state of one connection. After CloseConnection was raised only `lost` may be called."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        memory: RequestMemory[ServedConnection],
        answers: AnswerMemory,
        *,
        client: ConnectedClient,
        requests_max: int,
        request_bytes_max: int,
        answer_bytes_max: int,
    ) -> None:
        """At most `requests_max` requests run at a time.

        The broker reads more only while unanswered requests have less than `request_bytes_max`
        bytes. It starts more only while unread answers have less than `answer_bytes_max` bytes.
        """
        self.client = client
        self._dispatcher: Dispatcher | ExpiredSession = dispatcher
        self._serving_dispatcher = dispatcher
        self._memory = memory
        self._answers = answers
        self._requests_max = requests_max
        self._request_bytes_max = request_bytes_max
        self._answer_bytes_max = answer_bytes_max
        self._frames: deque[memoryview] = deque()
        self._taken: deque[TakenRequest] = deque()
        self._request_bytes = 0
        """Bytes of complete requests without an answer."""
        self._part = 0
        """Received bytes of an incomplete request."""
        self._announced = 0
        """The full size of that request; 0 while unknown."""
        self._reserved = False
        self._serving = 0
        self.requests_begun = 0
        self._blocked_bytes = 0
        """Bytes of answers that wait for earlier answers."""
        self._unsent_bytes = 0
        """Bytes of sendable answers that the client has not taken."""
        self._order = RequestOrder()
        self._writing = True
        self._muted = False
        self._open = True

    @property
    def serving(self) -> int:
        """The number of running requests."""
        return self._serving

    @property
    def has_request(self) -> bool:
        """Whether a received request has not started."""
        return bool(self._frames)

    @property
    def waits(self) -> bool:
        """Whether a received request may start."""
        return self._is_next_accepted() and self._order.may_begin(api_key_of(self._frames[0]))

    @property
    def next_is_cheap(self) -> bool:
        """Whether the next request costs little to start."""
        return bool(self._frames) and self._dispatcher.is_cheap(self._frames[0])

    @property
    def unsent_bytes(self) -> int:
        """Bytes of answers that the client has not taken."""
        return self._unsent_bytes

    @property
    def unfinished(self) -> bool:
        """Whether completely received requests lack their answers."""
        return bool(self._taken or self._frames)

    @property
    def part_bytes(self) -> int:
        """Received bytes of an incomplete request."""
        return self._part

    @property
    def bytes_left(self) -> int:
        """The missing bytes of that request, as far as they are known."""
        return max(0, self._announced - self._part)

    @property
    def keeps_up(self) -> bool:
        """Whether the client takes its answers."""
        return self._writing

    def received(self, size: int, frames: Sequence[memoryview], announced: int = 0) -> None:
        """Take `size` received bytes, which completed `frames`.

        The rest belongs to the next frame, of `announced` bytes in all.
        """
        complete = 0
        for frame in frames:
            self._frames.append(frame)
            complete += len(frame) + SIZE_PREFIX_BYTES
        if not self._reserved:
            self._memory.received(size, len(frames))
        elif frames:
            # A request with reserved memory arrives in a buffer of its own, alone.
            self._reserved = False
            self._memory.completed()
        self._request_bytes += complete
        self._part += size - complete
        self._announced = announced

    def next_request(self) -> TakenRequest | None:
        """The next request to serve; None if there is none or it has to wait.

        Raises:
            CloseConnection: the request is malformed or unknown. Nothing was done for it.
        """
        if not self._is_next_accepted():
            return None
        frame = self._frames[0]
        api_key = api_key_of(frame)
        if not self._order.may_begin(api_key):
            return None
        self._frames.popleft()
        size = len(frame) + SIZE_PREFIX_BYTES
        try:
            opened = self._dispatcher.open(frame, self.client)
        except CloseConnection:
            self._end_request(size)
            self._open = False
            raise
        if isinstance(opened, ReadyAnswer):
            taken = TakenRequest(api_key, None, opened.buffers, size)
        else:
            taken = TakenRequest(api_key, opened, None, size)
        self._taken.append(taken)
        self._serving += 1
        self.requests_begun += 1
        self._order.begin(api_key)
        return taken

    def answer(self, taken: TakenRequest, buffers: list[Buffer] | None) -> list[Buffer]:
        """Finish a request with these buffers, or without an answer (None).

        Returns the buffers that may be sent now.
        """
        assert not taken.done
        taken.done = True
        self._serving -= 1
        self._order.end(taken.api_key, is_answered=buffers is not None)
        self._end_request(taken.size)
        if not self._open:
            return []
        taken.answer = buffers
        if self._taken[0] is not taken:
            taken.answer_bytes = sum(map(len, buffers or ()))
            self._change_blocked(taken.answer_bytes)
            return []
        sendable: list[Buffer] = []
        while self._taken and self._taken[0].done:
            first = self._taken.popleft()
            if first.answer:
                sendable.extend(first.answer)
            if first.answer_bytes:
                self._change_blocked(-first.answer_bytes)
        return sendable

    def unsent(self, size: int) -> None:
        """Set the bytes of answers that the client has yet to take."""
        if size != self._unsent_bytes:
            self._answers.change(size - self._unsent_bytes)
            self._unsent_bytes = size

    def must_settle(self) -> bool:
        """Whether the next request waits only for the durability of requests without an answer.

        The server then calls `settled`.
        """
        return self._is_next_accepted() and self._order.must_settle(api_key_of(self._frames[0]))

    def settled(self) -> None:
        """Requests without an answer before the last `must_settle` are durable."""
        self._order.settle()

    def pause_writing(self) -> None:
        """Take no further requests: the client does not read its answers."""
        self._writing = False

    def resume_writing(self) -> None:
        """Take requests again."""
        self._writing = True

    def mute(self) -> None:
        """Take no further requests: the client is over a quota."""
        self._muted = True

    def unmute(self) -> None:
        """Take requests again."""
        self._muted = False

    def stop(self) -> None:
        """Take no further requests; the running ones are still answered."""
        self._drop_unserved()
        self._requests_max = 0

    def expire(self) -> None:
        """Serve re-authentication alone: the client's authentication has expired."""
        self._dispatcher = ExpiredSession(self._serving_dispatcher)

    def renew(self, client: ConnectedClient) -> None:
        """Serve everything: the client has authenticated again."""
        self.client = client
        self._dispatcher = self._serving_dispatcher

    def lost(self) -> None:
        """Release everything of a closed connection. Late answers are dropped."""
        self._open = False
        self._drop_unserved()
        self._memory.withdraw(self)
        self._taken.clear()
        self._change_blocked(-self._blocked_bytes)

    def wants_reading(self) -> bool:
        """Whether the server shall read from the socket.

        If memory is short, RequestMemory queues the connection.
        """
        if (
            self._open
            and not self._frames
            and self._request_bytes < self._request_bytes_max
            and self._has_room()
        ):
            if not self._reserved:
                if not self._memory.reserve(self, self._announced, self._part):
                    return False
                self._reserved = self._announced > 0
            return True
        self._memory.withdraw(self)
        return False

    def _is_next_accepted(self) -> bool:
        if not (self._frames and self._open and self._has_room()):
            return False
        return not (self._taken and self._taken[-1].is_alone)

    def _has_room(self) -> bool:
        """Whether one more request fits. One is read even behind a request served alone, to notice
        EOF."""
        return (
            self._writing
            and not self._muted
            and len(self._taken) < self._requests_max
            and self._blocked_bytes + self._unsent_bytes < self._answer_bytes_max
        )

    def _end_request(self, size: int) -> None:
        self._request_bytes -= size
        self._memory.answered(size)

    def _change_blocked(self, size: int) -> None:
        self._answers.change(size)
        self._blocked_bytes += size

    def _drop_unserved(self) -> None:
        for frame in self._frames:
            self._end_request(len(frame) + SIZE_PREFIX_BYTES)
        self._frames.clear()
        size = self._announced if self._reserved else self._part
        self._memory.abandoned(size, reserved=self._reserved)
        self._part = self._announced = 0
        self._reserved = False
