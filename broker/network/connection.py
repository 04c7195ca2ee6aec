"""One client's connection: frames in, requests out; answers in, bytes out, in the requests' order.

Pure: no socket, no clock, no task. The server feeds it and asks what to do.

Some requests are served side by side (`request_order`) and finish in any order; their answers leave
in the order in which the requests came. A request that may wait for long (a fetch) is served with
none after it, so a connection never holds more than one large answer that the client has not begun
to read.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from tidelog.broker.dispatch.dispatcher import Dispatcher, OpenedRequest, ReadyAnswer
from tidelog.broker.dispatch.request_order import RequestOrder
from tidelog.broker.fairness.answer_memory import AnswerMemory
from tidelog.broker.fairness.request_memory import RequestMemory
from tidelog.broker.handlers.request_context import CloseConnection
from tidelog.protocol.headers import api_key_of
from tidelog.protocol.wire import Buffer

SIZE_PREFIX_BYTES = 4


class TakenRequest:
    """A request that is being served. `opened` is None where `ready` answers it at once."""

    __slots__ = ("answer", "answer_bytes", "api_key", "done", "opened", "ready", "size")

    def __init__(
        self, api_key: int, opened: OpenedRequest | None, ready: list[Buffer] | None, size: int
    ) -> None:
        self.api_key = api_key
        self.opened = opened
        self.ready = ready
        self.size = size
        """Bytes received for it."""
        self.done = False
        self.answer: list[Buffer] | None = None
        self.answer_bytes = 0
        """Of the answer, while it waits for those before it."""

    @property
    def is_alone(self) -> bool:
        """Whether nothing after it is begun before it is answered, whatever it is."""
        return self.opened is not None and self.opened.is_alone

    @property
    def cheap(self) -> bool:
        """Whether it costs little to begin."""
        return self.opened is not None and self.opened.route.cheap


class ServedConnection:
    """The state of one connection. After CloseConnection was raised only `lost` may be called."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        memory: RequestMemory[ServedConnection],
        answers: AnswerMemory,
        *,
        connection_id: int,
        client_host: str,
        requests_max: int,
        request_bytes_max: int,
        answer_bytes_max: int,
    ) -> None:
        """`requests_max` requests are served at a time. More are read only while those that were
        received are of less than `request_bytes_max`, and begun only while the answers that the
        client has not taken are of less than `answer_bytes_max`."""
        self.connection_id = connection_id
        self.client_host = client_host
        self._dispatcher = dispatcher
        self._memory = memory
        self._answers = answers
        self._requests_max = requests_max
        self._request_bytes_max = request_bytes_max
        self._answer_bytes_max = answer_bytes_max
        self._frames: deque[memoryview] = deque()
        self._taken: deque[TakenRequest] = deque()
        self._request_bytes = 0
        """Of complete requests that are not answered."""
        self._part = 0
        """Bytes that came of a request that is not complete."""
        self._announced = 0
        """The bytes of all of it; 0 while that is unknown."""
        self._admitted = False
        self._serving = 0
        self.requests_begun = 0
        self._blocked_bytes = 0
        """Of answers that wait for those before them."""
        self._unsent_bytes = 0
        """Of answers that could be sent and that the client has not taken."""
        self._order = RequestOrder()
        self._writing = True
        self._open = True

    @property
    def serving(self) -> int:
        """Requests that are being served."""
        return self._serving

    @property
    def waits(self) -> bool:
        """Whether there is a request that could be begun."""
        return self._is_next_accepted() and self._order.admits(api_key_of(self._frames[0]))

    @property
    def next_is_cheap(self) -> bool:
        """Whether the request that is to be begun next costs little."""
        return bool(self._frames) and self._dispatcher.is_cheap(self._frames[0])

    @property
    def unsent_bytes(self) -> int:
        """Of answers that the client has not taken."""
        return self._unsent_bytes

    @property
    def unfinished(self) -> bool:
        """Whether answers are still owed for requests that were received as a whole."""
        return bool(self._taken or self._frames)

    @property
    def part_bytes(self) -> int:
        """Bytes that came of a request that is not complete."""
        return self._part

    @property
    def bytes_left(self) -> int:
        """What has to come of it, as far as that is known."""
        return max(0, self._announced - self._part)

    @property
    def keeps_up(self) -> bool:
        """Whether the client takes its answers."""
        return self._writing

    def received(self, size: int, frames: Sequence[memoryview], announced: int = 0) -> None:
        """`size` more bytes came, which completed these frames; of the next one, `announced` bytes
        in all, a part came too."""
        complete = 0
        for frame in frames:
            self._frames.append(frame)
            complete += len(frame) + SIZE_PREFIX_BYTES
        if not self._admitted:
            self._memory.received(size, len(frames))
        elif frames:
            # What is admitted comes into a buffer of its own, alone.
            self._admitted = False
            self._memory.completed()
        self._request_bytes += complete
        self._part += size - complete
        self._announced = announced

    def next_request(self) -> TakenRequest | None:
        """The next request to serve; None while there is none or it has to wait.

        Raises:
            CloseConnection: it cannot be understood. Nothing was done for it.
        """
        if not self.waits:
            return None
        frame = self._frames.popleft()
        api_key = api_key_of(frame)
        size = len(frame) + SIZE_PREFIX_BYTES
        try:
            opened = self._dispatcher.open(frame, self.client_host, self.connection_id)
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
        """The request is answered with these buffers, or is to have no answer (None). Returned is
        what can be sent now."""
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
        """So many bytes of answers wait for the client to take them."""
        if size != self._unsent_bytes:
            self._answers.change(size - self._unsent_bytes)
            self._unsent_bytes = size

    def must_settle(self) -> bool:
        """Whether the next request waits only until what was done without an answer is durable;
        `settled` is to be called then."""
        return self._is_next_accepted() and self._order.must_settle(api_key_of(self._frames[0]))

    def settled(self) -> None:
        """What was done without an answer before `must_settle` said so is durable."""
        self._order.settle()

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
        self._taken.clear()
        self._change_blocked(-self._blocked_bytes)

    def wants_reading(self) -> bool:
        """Whether the server shall read from the socket. Where memory is what is lacking, the
        connection is remembered by RequestMemory."""
        if (
            self._open
            and not self._frames
            and self._request_bytes < self._request_bytes_max
            and self._has_room()
        ):
            if not self._admitted:
                if not self._memory.admit(self, self._announced, self._part):
                    return False
                self._admitted = self._announced > 0
            return True
        self._memory.withdraw(self)
        return False

    def _is_next_accepted(self) -> bool:
        return self._open and bool(self._frames) and self._accepting()

    def _accepting(self) -> bool:
        return self._has_room() and not (self._taken and self._taken[-1].is_alone)

    def _has_room(self) -> bool:
        """Also behind a request that is served alone one more is read, else nobody would notice
        that the client has gone."""
        return (
            self._writing
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
        size = self._announced if self._admitted else self._part
        self._memory.abandoned(size, admitted=self._admitted)
        self._part = self._announced = 0
        self._admitted = False
