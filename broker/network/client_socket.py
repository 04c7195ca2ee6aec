"""One client's socket: carries the bytes of a pure Connection and starts its requests."""

from __future__ import annotations

import asyncio
import math
import ssl
from typing import Final, Protocol, cast

from tidelog.broker.authentication.attempt import Established
from tidelog.broker.dispatch.dispatcher import ReadyAnswer
from tidelog.broker.fairness.connection_limits import ESTABLISHED_REQUESTS, Idleness
from tidelog.broker.fairness.frame_pace import FramePace
from tidelog.broker.fairness.progress import TransferProgress
from tidelog.broker.fairness.turns import COSTLY, Turns
from tidelog.broker.handlers.request_context import CloseConnection
from tidelog.broker.network.connection import ServedConnection, TakenRequest
from tidelog.broker.network.tls_handshake import TlsHandshake
from tidelog.broker.quotas.metrics import QuotaMetrics
from tidelog.broker.telemetry.metrics import BrokerMetrics
from tidelog.clock import Clock
from tidelog.protocol.errors import MalformedMessage
from tidelog.protocol.frames import FrameReader
from tidelog.protocol.message import Response
from tidelog.protocol.wire import Buffer

_GATHERED_BYTES_MAX: Final = 64 * 1024
"""Larger answers are sent at once: the transport then reports whether the client keeps up."""
LEFT_SECONDS: Final = 5.0
"""How long a client that closed its sending side may still wait for answers."""
_BEGUN_AT_ONCE_MAX: Final = 16
"""Cheap requests that start on arrival, if no request of their connection waits: all of a read, if
they are of 16 KiB, the usual batch. The rest waits for a turn, and reading pauses."""
_BEGUN_PER_TURN_MAX: Final = 8
"""Cheap requests that start in a turn; of costly requests it is one."""
COSTLY_EVERY_SECONDS: Final = 1.0
"""On average one costly request of a connection starts on arrival in this time.

Clients that start together ask for Metadata a few times each. In a busy broker their turns would
come slowly.
"""
COSTLY_AT_ONCE: Final = 3
"""The costly requests of a connection that start on arrival after a time of rest."""


class SocketOwner(Protocol):
    """The server, as its sockets use it."""

    def accept(
        self, socket: ClientSocket, host: str, tls: ssl.SSLObject | None
    ) -> ServedConnection | None:
        """A new connection's state; None if the connection is refused."""
        ...

    def serve(
        self, socket: ClientSocket, taken: TakenRequest
    ) -> asyncio.Future[Response | ReadyAnswer | None]:
        """Start a request.

        The server calls `socket.answered` at the end, and never before this returns.
        """
        ...

    @property
    def read_bytes_max(self) -> int:
        """The bytes that a read may deliver, unless it continues a request."""
        ...

    @property
    def quota_metrics(self) -> QuotaMetrics:
        """Counts of throttled connections."""
        ...

    @property
    def turns(self) -> Turns:
        """The queue of connections with more requests than may start at once."""
        ...

    def durable(self) -> asyncio.Future[None]:
        """Done when every append so far is durable."""
        ...

    def resume_waiting(self) -> None:
        """Let connections that wait for memory read again."""
        ...

    def refused(self, connection: ServedConnection, error: CloseConnection) -> None:
        """Record why the broker closes this connection."""
        ...

    def forget(self, connection: ServedConnection) -> None:
        """Remove a closed connection."""
        ...


class ClientSocket(asyncio.BufferedProtocol):
    """An asyncio protocol that feeds one ServedConnection.

    Its entry points are the transport's callbacks, the end of a request and the server's sweep.
    """

    def __init__(
        self,
        owner: SocketOwner,
        listener: str,
        frames: FrameReader,
        pace: FramePace,
        metrics: BrokerMetrics,
        clock: Clock,
        handshake: TlsHandshake | None = None,
        established: Established | None = None,
    ) -> None:
        """`handshake`, `established`: the results of TLS and of SASL, if the listener has them."""
        self._owner = owner
        self._loop = asyncio.get_running_loop()
        self.listener = listener
        self._frames = frames
        self._pace = pace
        self._metrics = metrics
        self._clock = clock
        self._handshake = handshake
        self.established = established
        self._transport: asyncio.Transport | None = None
        self._connection: ServedConnection | None = None
        self._given_up: set[asyncio.Future[Response | ReadyAnswer | None]] = set()
        """Running requests that are cancelled when the connection closes."""
        self._taken_up = TransferProgress()
        self._sent_bytes = 0
        self._settling: asyncio.Future[None] | None = None
        """Requests without an answer become durable; the next request waits for them."""
        self._outgoing: list[Buffer] = []
        self._outgoing_bytes = 0
        self._reading = True
        self._draining = False
        self._left_at: float | None = None
        """When the client closed its sending side."""
        self._muted: asyncio.TimerHandle | None = None
        """Ends the time in which no request starts, because of a quota."""
        self._active = 0.0
        """When bytes last arrived or left."""
        self._rested = -math.inf
        """From when on a costly request may start on arrival."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Accept the connection, or abort it if a limit forbids it."""
        self._transport = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername")
        self._active = self._clock.monotonic()
        if self._handshake is not None and self.established is None:
            self._handshake.done()
        tls = transport.get_extra_info("ssl_object")
        self._connection = self._owner.accept(self, str(peer[0]) if peer else "", tls)
        if self._connection is None:
            self._transport.abort()

    def get_buffer(self, sizehint: int) -> memoryview:
        """The buffer of the next read."""
        return self._frames.get_buffer(self._owner.read_bytes_max)

    def buffer_updated(self, nbytes: int) -> None:
        """Take the received bytes and start requests."""
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
            self._begin_some(connection, _BEGUN_AT_ONCE_MAX, costly_too=now >= self._rested)
            if connection.has_request:
                self._owner.turns.join(self)
        else:
            self.update_reading()

    def eof_received(self) -> bool:
        """The client closed its sending side; the broker still answers its requests."""
        connection = self._connection
        if connection is None or self._transport is None:
            return False
        self._draining = True
        self._left_at = self._clock.monotonic()
        self._close_when_finished(connection)
        # TLS knows no connection that is closed by one side alone.
        return self._handshake is None and not self._transport.is_closing()

    def pause_writing(self) -> None:
        """The client reads more slowly than its answers come: stop reading from it."""
        if self._connection is not None:
            self._connection.pause_writing()
            self.update_reading()

    def resume_writing(self) -> None:
        """The client has caught up: read from it again."""
        connection = self._connection
        if connection is None:
            return
        self._active = self._clock.monotonic()
        connection.resume_writing()
        self._note_unsent(connection)
        self._go_on(connection)

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel reads that wait for data. Writes continue without an answer."""
        self._transport = None
        self._end_mute()
        self._owner.turns.leave(self)
        for answer in self._given_up:
            answer.cancel()
        if self._connection is not None:
            self._connection.lost()
            self._connection.unsent(0)
            self._owner.forget(self._connection)

    def answered(
        self,
        taken: TakenRequest,
        buffers: list[Buffer] | None,
        error: CloseConnection | None,
        throttle_ms: int = 0,
    ) -> None:
        """Finish a request: send its answer, if it has one (`buffers`), or close the connection
        (`error`). `throttle_ms`: how long no further request starts."""
        connection = self._connection
        assert connection is not None
        self._active = self._clock.monotonic()
        self._send(connection.answer(taken, buffers))
        if error is not None:
            self._refuse(error)
        else:
            if throttle_ms:
                self.mute(throttle_ms / 1000)
            self._go_on(connection)
        if self._draining:
            self._close_when_finished(connection)
        self._owner.resume_waiting()

    def mute(self, seconds: float) -> None:
        """Start no further request, and read none, for this time."""
        connection = self._connection
        if connection is None or self._transport is None:
            return
        until = self._loop.time() + seconds
        self._owner.quota_metrics.seconds.observe(seconds)
        if self._muted is None:
            self._owner.quota_metrics.connections += 1
        elif self._muted.when() >= until:
            return
        else:
            self._muted.cancel()
        self._muted = self._loop.call_at(until, self._unmute)
        connection.mute()
        self.update_reading()

    def _unmute(self) -> None:
        self._end_mute()
        if self._connection is not None:
            self._connection.unmute()
            self._go_on(self._connection)

    def _end_mute(self) -> None:
        if self._muted is not None:
            self._muted.cancel()
            self._muted = None
            self._owner.quota_metrics.connections -= 1

    def update_reading(self) -> None:
        """Pause or resume reading from the socket, as the connection's state demands."""
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
            # A client that does not take its answers delays itself.
            if wanted or not connection.keeps_up:
                self._pace.resume(self._clock.monotonic())
            else:
                self._pace.stop(self._clock.monotonic())

    def drain(self) -> None:
        """Take no further requests, finish the running ones, then close."""
        connection = self._connection
        if connection is None:
            return
        self._draining = True
        connection.stop()
        self.update_reading()
        self._close_when_finished(connection)

    def abort(self) -> None:
        """Close at once; unsent answers are lost."""
        if self._transport is not None:
            self._transport.abort()

    def sweep(self, now: float, idle_seconds: float) -> None:
        """Evict the connection if it is idle, its client has left, or a request arrives too
        slowly."""
        connection = self._connection
        if connection is None:
            return
        if now - self._active >= idle_seconds and not connection.serving:
            self.evict("idle", f"the client sent no request for {idle_seconds:g} s")
        elif self._left_at is not None and now - self._left_at >= LEFT_SECONDS:
            # The client most likely reads no more either.
            self.evict("left", "the client left before its answer")
        elif self._pace.is_late(now):
            self.evict("slow_request", "the rest of a request did not arrive in time")
        elif connection.unsent_bytes:
            self._note_unsent(connection)

    def idleness(self) -> Idleness | None:
        """The connection's idleness; None while it has requests or unsent answers."""
        transport, connection = self._transport, self._connection
        if transport is None or connection is None or transport.is_closing():
            return None
        if connection.unfinished or connection.unsent_bytes:
            return None
        return Idleness(connection.requests_begun >= ESTABLISHED_REQUESTS, self._active)

    def request_seconds_left(self, now: float) -> float:
        """The time that the rest of a request needs, at its pace since the last call.

        0 if no request has begun, or the pace is unknown.
        """
        if self._connection is None or not self._pace.begun:
            return 0.0
        return self._pace.seconds_left(now, self._connection.bytes_left)

    def answer_seconds_left(self, now: float) -> float:
        """The time that the client needs for the rest of its answers, at its pace since the last
        call.

        0 if it has them all, or the pace is unknown.
        """
        left = 0 if self._connection is None else self._connection.unsent_bytes
        if not left:
            self._taken_up.forget()
            return 0.0
        return self._taken_up.seconds_left(now, self._sent_bytes - left, left)

    def evict(self, reason: str, why: str) -> None:
        """Close the connection to free its resources for others; unsent answers are lost."""
        self._refuse(CloseConnection(reason, why))
        self.abort()

    def _follow_pace(
        self, connection: ServedConnection, now: float, size: int, *, begins: bool
    ) -> None:
        """Note that `size` bytes arrived.

        `begins`: they complete a request, and may begin another.
        """
        pace = self._pace
        if not connection.part_bytes:
            pace.end()
        elif begins or not pace.begun:
            pace.begin(now, connection.part_bytes)
        else:
            pace.go_on(now, size)

    @property
    def waits(self) -> bool:
        """Whether a received request may start."""
        return self._connection is not None and self._connection.waits

    def take_turn(self) -> int:
        """Start some requests; return their total cost."""
        if self._connection is None:
            return 0
        return self._begin_some(self._connection, _BEGUN_PER_TURN_MAX, costly_too=True)

    def _begin_some(self, connection: ServedConnection, cheap_max: int, *, costly_too: bool) -> int:
        """Start cheap requests, or one that may be costly; return their total cost."""
        begun = 0
        try:
            while begun < cheap_max and (costly_too or connection.next_is_cheap):
                taken = connection.next_request()
                if taken is None:
                    break
                self._begin(connection, taken)
                if taken.cheap:
                    begun += 1
                else:
                    begun += COSTLY
                    rest = self._active - (COSTLY_AT_ONCE - 1) * COSTLY_EVERY_SECONDS
                    self._rested = max(self._rested, rest) + COSTLY_EVERY_SECONDS
        except CloseConnection as error:
            self._refuse(error)
        if connection.has_request:
            self._settle(connection)
        self.update_reading()
        if self._draining:
            self._close_when_finished(connection)
        return begun

    def _begin(self, connection: ServedConnection, taken: TakenRequest) -> None:
        if taken.opened is None:
            self._send(connection.answer(taken, taken.ready))
            self._owner.resume_waiting()
            return
        answer = self._owner.serve(self, taken)
        if taken.opened.route.given_up:
            self._given_up.add(answer)
            answer.add_done_callback(self._given_up.discard)

    def _go_on(self, connection: ServedConnection) -> None:
        """Queue for a turn: the next requests may now be ready to start."""
        if connection.has_request:
            self._settle(connection)
            self._owner.turns.join(self)
        # What ends here gives room, which a socket that is read from has.
        if not self._reading:
            self.update_reading()

    def _settle(self, connection: ServedConnection) -> None:
        if self._settling is None and connection.must_settle():
            self._settling = self._owner.durable()
            self._settling.add_done_callback(self._settled)

    def _settled(self, durable: asyncio.Future[None]) -> None:
        self._settling = None
        connection = self._connection
        # If the outcome is unknown, the broker ends.
        if connection is None or durable.cancelled() or durable.exception() is not None:
            return
        connection.settled()
        self._go_on(connection)

    def _send(self, buffers: list[Buffer]) -> None:
        """Send in the next pass of the event loop.

        Many requests wait for the same WAL slot: their answers then take one system call.
        """
        if self._transport is None or not buffers:
            return
        if not self._outgoing:
            self._loop.call_soon(self._flush)
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
        """Close the connection; ready answers are still sent, the others are not."""
        transport, connection = self._transport, self._connection
        if transport is None or connection is None or transport.is_closing():
            return
        self._owner.refused(connection, error)
        connection.lost()
        self._close(transport)

    def _close_when_finished(self, connection: ServedConnection) -> None:
        # A second `close` of asyncio's TLS transport would leave it without `abort`.
        transport = self._transport
        if transport is not None and not transport.is_closing() and not connection.unfinished:
            self._close(transport)

    def _close(self, transport: asyncio.Transport) -> None:
        """Close once all answers are sent."""
        self._flush()
        if not self._reading:
            # If the client of asyncio's TLS transport has hung up while reading was paused, `close`
            # alone does nothing.
            self._reading = True
            transport.resume_reading()
        transport.close()
