"""One client's socket: carries the bytes of a pure Connection and starts its requests."""

from __future__ import annotations

import asyncio
from typing import Final, Protocol, cast

from tidelog.broker.dispatch.dispatcher import ReadyAnswer
from tidelog.broker.fairness.displacement import ESTABLISHED_REQUESTS, Idleness
from tidelog.broker.fairness.frame_pace import FramePace
from tidelog.broker.fairness.progress import TransferProgress
from tidelog.broker.fairness.turns import COSTLY, Turns
from tidelog.broker.handlers.request_context import CloseConnection
from tidelog.broker.network.connection import ServedConnection, TakenRequest
from tidelog.broker.telemetry.metrics import BrokerMetrics
from tidelog.clock import Clock
from tidelog.protocol.errors import MalformedMessage
from tidelog.protocol.frames import FrameReader
from tidelog.protocol.message import Response
from tidelog.protocol.wire import Buffer

_GATHERED_BYTES_MAX: Final = 64 * 1024
"""Answers beyond this are sent at once: the transport then says whether the client keeps up."""
LEFT_SECONDS: Final = 5.0
"""How long a client that sends no more is taken for one that waits for answers."""
_BEGUN_AT_ONCE_MAX: Final = 8
"""Cheap requests that are begun as soon as they come, if nothing of their connection waits."""
_BEGUN_PER_TURN_MAX: Final = 8
"""Cheap requests that are begun in a turn; of others it is one."""


class SocketOwner(Protocol):
    """The server, as its sockets see it."""

    def admit(self, socket: ClientSocket, host: str) -> ServedConnection | None:
        """A new connection's state, or None where a limit forbids it."""
        ...

    def serve(
        self, socket: ClientSocket, taken: TakenRequest
    ) -> asyncio.Future[Response | ReadyAnswer | None]:
        """Start a request; `socket.answered` is called in the end, never before this returns."""
        ...

    @property
    def read_bytes_max(self) -> int:
        """What a read may deliver that does not continue a request."""
        ...

    @property
    def turns(self) -> Turns:
        """Where connections wait that have more requests than are begun at once."""
        ...

    def durable(self) -> asyncio.Future[None]:
        """Done when all that was appended so far is durable."""
        ...

    def relieve(self) -> None:
        """Memory was given back: let connections that wait for it read again."""
        ...

    def refused(self, connection: ServedConnection, error: CloseConnection) -> None:
        """The broker closes this connection."""
        ...

    def forget(self, connection: ServedConnection) -> None:
        """The connection is gone."""
        ...


class ClientSocket(asyncio.BufferedProtocol):
    """The transport's callbacks, a request's end and the server's sweep are the entry points."""

    def __init__(
        self,
        owner: SocketOwner,
        frames: FrameReader,
        pace: FramePace,
        metrics: BrokerMetrics,
        clock: Clock,
    ) -> None:
        self._owner = owner
        self._frames = frames
        self._pace = pace
        self._metrics = metrics
        self._clock = clock
        self._transport: asyncio.Transport | None = None
        self._connection: ServedConnection | None = None
        self._given_up: set[asyncio.Future[Response | ReadyAnswer | None]] = set()
        """Requests being served that end with the connection."""
        self._taken_up = TransferProgress()
        self._sent_bytes = 0
        self._settling: asyncio.Future[None] | None = None
        """What was done without an answer becomes durable; the next request waits for it."""
        self._outgoing: list[Buffer] = []
        self._outgoing_bytes = 0
        self._reading = True
        self._draining = False
        self._left_at: float | None = None
        """When the client said that it sends no more."""
        self._active = 0.0
        """When bytes last came or went."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Refuse the connection if a limit says so."""
        self._transport = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername")
        self._active = self._clock.monotonic()
        self._connection = self._owner.admit(self, str(peer[0]) if peer else "")
        if self._connection is None:
            self._transport.abort()

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where the next read goes."""
        return self._frames.get_buffer(self._owner.read_bytes_max)

    def buffer_updated(self, nbytes: int) -> None:
        """Bytes came."""
        connection = self._connection
        if connection is None or self._draining:
            return
        now = self._active = self._clock.monotonic()
        self._metrics.received_bytes += nbytes
        try:
            frames = self._frames.buffer_updated(nbytes)
        except MalformedMessage as error:
            self._refuse(CloseConnection("malformed", str(error)))
            return
        connection.received(nbytes, frames, self._frames.announced)
        self._follow_pace(connection, now, nbytes, begins=bool(frames))
        if frames and self not in self._owner.turns:
            self._begin_some(connection, _BEGUN_AT_ONCE_MAX, costly_too=False)
            self._owner.turns.join(self)
        else:
            self.update_reading()

    def eof_received(self) -> bool:
        """The client sends no more; what it has asked for is still answered."""
        connection = self._connection
        if connection is None or self._transport is None:
            return False
        self._draining = True
        self._left_at = self._clock.monotonic()
        self._close_when_finished(connection)
        return not self._transport.is_closing()

    def pause_writing(self) -> None:
        """The client is slower than its answers."""
        if self._connection is not None:
            self._connection.pause_writing()
            self.update_reading()

    def resume_writing(self) -> None:
        """It has caught up."""
        connection = self._connection
        if connection is None:
            return
        self._active = self._clock.monotonic()
        connection.resume_writing()
        self._note_unsent(connection)
        self._go_on(connection)

    def connection_lost(self, exc: Exception | None) -> None:
        """Nobody is there to be answered. A read that waits for data ends; writes go on."""
        self._transport = None
        self._owner.turns.leave(self)
        for answer in self._given_up:
            answer.cancel()
        if self._connection is not None:
            self._connection.lost()
            self._connection.unsent(0)
            self._owner.forget(self._connection)

    def answered(
        self, taken: TakenRequest, buffers: list[Buffer] | None, error: CloseConnection | None
    ) -> None:
        """A request is done: with an answer, with none to give, or with a reason to close the
        connection."""
        connection = self._connection
        assert connection is not None
        self._active = self._clock.monotonic()
        self._send(connection.answer(taken, buffers))
        if error is not None:
            self._refuse(error)
        else:
            self._go_on(connection)
        if self._draining:
            self._close_when_finished(connection)
        self._owner.relieve()

    def update_reading(self) -> None:
        """Read from the socket, or stop, as the connection wants it."""
        transport, connection = self._transport, self._connection
        if transport is None or connection is None or transport.is_closing():
            return
        wanted = connection.wants_reading()
        if wanted != self._reading:
            self._reading = wanted
            if wanted:
                transport.resume_reading()
            else:
                transport.pause_reading()
        if self._pace.begun:
            # A client that does not take its answers holds itself up.
            if wanted or not connection.keeps_up:
                self._pace.resume(self._clock.monotonic())
            else:
                self._pace.stop(self._clock.monotonic())

    def drain(self) -> None:
        """Take no further requests, finish those that are being served, then close."""
        connection = self._connection
        if connection is None:
            return
        self._draining = True
        connection.stop()
        self.update_reading()
        self._close_when_finished(connection)

    def abort(self) -> None:
        """Close at once; what is not sent is lost."""
        if self._transport is not None:
            self._transport.abort()

    def sweep(self, now: float, idle_seconds: float) -> None:
        """Close the connection if nothing has moved on it for so long and nothing is being served,
        or if a request takes too long to come."""
        connection = self._connection
        if connection is None:
            return
        if now - self._active >= idle_seconds and not connection.serving:
            self.evict("idle", f"nothing was asked for {idle_seconds:g} s")
        elif self._left_at is not None and now - self._left_at >= LEFT_SECONDS:
            # It most likely reads no more either.
            self.evict("left", "the client had gone before it was answered")
        elif self._pace.is_late(now):
            self.evict("slow_request", "a request was begun and did not come in time")
        elif connection.unsent_bytes:
            self._note_unsent(connection)

    def idleness(self) -> Idleness | None:
        """How long nothing has moved on a connection of which nothing is being served."""
        transport, connection = self._transport, self._connection
        if transport is None or connection is None or transport.is_closing():
            return None
        if connection.unfinished or connection.unsent_bytes:
            return None
        return Idleness(connection.requests_begun >= ESTABLISHED_REQUESTS, self._active)

    def request_seconds_left(self, now: float) -> float:
        """How long the rest of a request would take, as fast as it has come since the last call; 0
        if none has begun, or that is not known."""
        if self._connection is None or not self._pace.begun:
            return 0.0
        return self._pace.seconds_left(now, self._connection.bytes_left)

    def answer_seconds_left(self, now: float) -> float:
        """How long the client would take for the rest of its answers, as fast as it has taken them
        since the last call; 0 if it has them all, or that is not known."""
        left = 0 if self._connection is None else self._connection.unsent_bytes
        if not left:
            self._taken_up.forget()
            return 0.0
        return self._taken_up.seconds_left(now, self._sent_bytes - left, left)

    def evict(self, reason: str, why: str) -> None:
        """Close the connection for the sake of others; what is not sent is lost."""
        self._refuse(CloseConnection(reason, why))
        self.abort()

    def _follow_pace(
        self, connection: ServedConnection, now: float, size: int, *, begins: bool
    ) -> None:
        """`size` bytes came; `begins`: with the end of a request, perhaps another's beginning."""
        pace = self._pace
        if not connection.part_bytes:
            pace.end()
        elif begins or not pace.begun:
            pace.begin(now, connection.part_bytes)
        else:
            pace.go_on(now, size)

    @property
    def waits(self) -> bool:
        """Whether there are requests that can be begun."""
        return self._connection is not None and self._connection.waits

    def take_turn(self) -> int:
        """Begin some requests; what they count."""
        if self._connection is None:
            return 0
        return self._begin_some(self._connection, _BEGUN_PER_TURN_MAX, costly_too=True)

    def _begin_some(self, connection: ServedConnection, cheap_max: int, *, costly_too: bool) -> int:
        """Begin cheap requests, and with them one that may be costly; what they count."""
        begun = 0
        try:
            while begun < cheap_max and (costly_too or connection.next_is_cheap):
                taken = connection.next_request()
                if taken is None:
                    break
                self._begin(connection, taken)
                begun += 1 if taken.cheap else COSTLY
        except CloseConnection as error:
            self._refuse(error)
        self._settle(connection)
        self.update_reading()
        if self._draining:
            self._close_when_finished(connection)
        return begun

    def _begin(self, connection: ServedConnection, taken: TakenRequest) -> None:
        if taken.opened is None:
            self._send(connection.answer(taken, taken.ready))
            self._owner.relieve()
            return
        answer = self._owner.serve(self, taken)
        if taken.opened.route.given_up:
            self._given_up.add(answer)
            answer.add_done_callback(self._given_up.discard)

    def _go_on(self, connection: ServedConnection) -> None:
        """The next requests may have become such as can be begun."""
        self._settle(connection)
        self._owner.turns.join(self)
        self.update_reading()

    def _settle(self, connection: ServedConnection) -> None:
        if self._settling is None and connection.must_settle():
            self._settling = self._owner.durable()
            self._settling.add_done_callback(self._settled)

    def _settled(self, durable: asyncio.Future[None]) -> None:
        self._settling = None
        connection = self._connection
        # Where that can no longer be told the broker ends.
        if connection is None or durable.cancelled() or durable.exception() is not None:
            return
        connection.settled()
        self._go_on(connection)

    def _send(self, buffers: list[Buffer]) -> None:
        """Send once all that is ready now has been done: many requests wait for the same WAL slot,
        and their answers make one system call then."""
        if self._transport is None or not buffers:
            return
        if not self._outgoing:
            asyncio.get_running_loop().call_soon(self._flush)
        self._outgoing += buffers
        self._outgoing_bytes += sum(map(len, buffers))
        if self._outgoing_bytes >= _GATHERED_BYTES_MAX:
            self._flush()

    def _flush(self) -> None:
        outgoing, self._outgoing = self._outgoing, []
        size_bytes, self._outgoing_bytes = self._outgoing_bytes, 0
        if self._transport is None or not outgoing:
            return
        self._metrics.sent_bytes += size_bytes
        self._sent_bytes += size_bytes
        self._transport.writelines(outgoing)
        if self._connection is not None:
            self._note_unsent(self._connection)

    def _note_unsent(self, connection: ServedConnection) -> None:
        transport = self._transport
        sent = transport.get_write_buffer_size() if transport is not None else 0
        connection.unsent(self._outgoing_bytes + sent)

    def _refuse(self, error: CloseConnection) -> None:
        """Close the connection; answers that are ready are still sent, others are not given."""
        transport, connection = self._transport, self._connection
        if transport is None or connection is None or transport.is_closing():
            return
        self._owner.refused(connection, error)
        connection.lost()
        self._flush()
        transport.close()

    def _close_when_finished(self, connection: ServedConnection) -> None:
        if self._transport is not None and not connection.unfinished:
            self._flush()
            self._transport.close()
