"""The Kafka listeners: limits, tasks and shutdown around its clients' connections.

The server owns each request until its answer. It closes a connection that sends malformed data,
without effect on others. It stops reading while a client does not read its answers, has too many
requests in flight, or the memory for requests is used up.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Final

from tidelog.broker.authentication.attempt import Established, SaslTerms
from tidelog.broker.authentication.principal_rules import NoRuleMatches
from tidelog.broker.authentication.sessions import LoginSession
from tidelog.broker.authentication.tls import ListenerTls
from tidelog.broker.dispatch.dispatcher import Dispatcher, ReadyAnswer
from tidelog.broker.fairness.client_memory import AnswerMemory, RequestMemory
from tidelog.broker.fairness.connection_limits import OF_ALL, ConnectionLimits, Displacement
from tidelog.broker.fairness.frame_pace import FramePace, ReceiveLimits
from tidelog.broker.fairness.turns import Turns
from tidelog.broker.handlers.request_context import CloseConnection, ConnectedClient
from tidelog.broker.handlers.services import Services
from tidelog.broker.network.client_socket import ClientSocket
from tidelog.broker.network.connection import ServedConnection, TakenRequest
from tidelog.broker.network.pending_connections import PendingConnection
from tidelog.broker.network.reserved_address import ReservedAddress
from tidelog.broker.network.sasl_socket import SaslSocket
from tidelog.broker.network.tls_handshake import TlsHandshake
from tidelog.broker.quotas.connection_rates import AcceptRates, ConnectionRates
from tidelog.broker.quotas.metrics import QuotaMetrics
from tidelog.broker.settings.listeners import ListenerConfig
from tidelog.broker.telemetry.fault_log import SparseLog
from tidelog.broker.telemetry.metrics import (
    ANSWER_BYTES_WAITING,
    CONNECTIONS,
    CONNECTIONS_WAITING,
    REQUEST_BYTES_IN_FLIGHT,
    REQUESTS_IN_FLIGHT,
)
from tidelog.coordinator.cluster.records.client_quotas import QuotaKey
from tidelog.protocol.frames import FrameReader, new_scratch
from tidelog.protocol.message import Response
from tidelog.protocol.schemas.cluster.api_versions import ApiVersion
from tidelog.security.principal import ANONYMOUS

logger = logging.getLogger(__name__)

PATIENCE_SECONDS: Final = 1.0
"""How long clients wait for memory before the server evicts slow holders of it."""
SLOW_SECONDS: Final = 30.0
"""A request is slow if its rest would take longer than this."""
SWEEP_SECONDS_MAX: Final = 1.0
SWEPT_AT_ONCE: Final = 50
"""Connections that a sweep examines before it yields to other tasks."""


class KafkaServer:
    """Serves its listeners until closed."""

    def __init__(
        self,
        services: Services,
        dispatcher: Dispatcher,
        answers: AnswerMemory,
        limits: ConnectionLimits,
        rates: ConnectionRates,
        accept_rates: AcceptRates,
        connection_lost: Callable[[int], None],
        addresses: Sequence[ReservedAddress],
        tls: Mapping[str, ListenerTls],
        sasl: Mapping[str, SaslTerms],
    ) -> None:
        """`connection_lost` gets the id of each closed connection. `tls`, `sasl`: by listener."""
        settings = services.settings
        self._limits = limits
        self._rates = rates
        self._accept_rates = accept_rates
        self._displacement: Displacement[ClientSocket | PendingConnection] = Displacement(
            lambda: chain(self._pending, self._sockets.values())
        )
        self._pending: dict[PendingConnection, str] = {}
        self._tls = tls
        self._sasl = sasl
        self._expiries: dict[ServedConnection, asyncio.TimerHandle] = {}
        """The ends of authentications that do not hold for ever."""
        self._authentication_seconds = settings.integer("authentication.timeout.ms") / 1000
        self._connection_lost = connection_lost
        self._services = services
        self._dispatcher = dispatcher
        self._metrics = services.metrics
        self._clock = services.clock
        self._log = SparseLog(logger, services.clock)
        self._request_bytes_max = settings.integer("socket.request.max.bytes")
        self._requests_max = settings.integer("connection.requests.in.flight.max")
        self._connection_bytes_max = settings.integer("connection.requests.bytes.max")
        self._receive_limits = ReceiveLimits(
            settings.integer("request.receive.timeout.ms") / 1000,
            settings.integer("request.receive.grace.ms") / 1000,
            settings.integer("request.receive.rate.min.bytes"),
        )
        self._shutdown_seconds = settings.integer("shutdown.timeout.ms") / 1000
        self._memory: RequestMemory[ServedConnection] = RequestMemory(
            settings.integer("queued.max.request.bytes")
        )
        self._answer_memory = answers
        self._answer_bytes_max = settings.integer("connection.answers.bytes.max")
        self.turns = Turns(self._clock)
        self._scratch = new_scratch()
        self._sockets: dict[ServedConnection, ClientSocket] = {}
        self._answers: set[asyncio.Future[Response | ReadyAnswer | None]] = set()
        self._addresses = addresses
        self._sweeper: asyncio.Task[None] | None = None
        self._next_connection_id = 0
        self._emptied = asyncio.Event()
        self._closing = False

    async def start(self) -> None:
        """Accept connections from now on.

        Raises OSError if another process listens on an address by now.
        """
        for address in self._addresses:
            config = address.config
            delay = partial(self._accept_delay, config.name)
            if config.protocol.uses_tls:
                await address.accept_tls(partial(self._new_handshake, config), delay)
            else:
                await address.accept(partial(self._new_protocol, config.name), delay)
        self._sweeper = asyncio.create_task(self._sweep())
        metrics = self._metrics
        metrics.gauge(
            CONNECTIONS,
            "Open connections.",
            lambda: len(self._sockets) + len(self._pending),
        )
        metrics.gauge(
            CONNECTIONS_WAITING,
            "Connections that wait for memory.",
            lambda: self._memory.waiting,
        )
        metrics.gauge(REQUESTS_IN_FLIGHT, "Running requests.", lambda: self._memory.requests)
        metrics.gauge(
            REQUEST_BYTES_IN_FLIGHT,
            "Bytes of requests being received or served.",
            lambda: self._memory.bytes_held,
        )
        metrics.gauge(
            ANSWER_BYTES_WAITING,
            "Bytes of answers that clients have not taken.",
            lambda: self._answer_memory.bytes_held,
        )

    async def close(self) -> None:
        """Stop reading, finish the running requests, disconnect; close pending connections at once.

        After shutdown.timeout.ms the server cancels the rest. May be called again. The server
        listens until `release`: a refused connection would tell other brokers that this one is
        dead (rule B2).
        """
        await self._stop()
        self._evict_pending()
        for socket in list(self._sockets.values()):
            socket.drain()
        if self._sockets or self._answers:
            deadline = asyncio.create_task(self._end_after(self._shutdown_seconds))
            await self._emptied.wait()
            deadline.cancel()
            await asyncio.gather(deadline, return_exceptions=True)

    async def release(self) -> None:
        """Stop listening. May be called again."""
        for address in self._addresses:
            await address.close()

    async def abort(self) -> None:
        """Stop at once: cancel requests and cut connections. For a broker that cannot continue."""
        await self.release()
        await self._stop()
        self._end()
        if self._sockets or self._answers:
            await self._emptied.wait()

    async def _stop(self) -> None:
        self._closing = True
        if self._sweeper is not None:
            self._sweeper.cancel()
            await asyncio.gather(self._sweeper, return_exceptions=True)
            self._sweeper = None

    async def _end_after(self, seconds: float) -> None:
        await self._clock.sleep(seconds)
        logger.warning(
            "clients are disconnected before their requests finished",
            extra={"requests": len(self._answers), "connections": len(self._sockets)},
        )
        self._end()

    def _end(self) -> None:
        for answer in list(self._answers):
            answer.cancel()
        self._evict_pending()
        for socket in list(self._sockets.values()):
            socket.abort()

    def _evict_pending(self) -> None:
        for connection in list(self._pending):
            connection.evict("closing", "the broker ends")

    def _accept_delay(self, listener: str) -> float:
        """Count an accepted connection; the seconds until it may begin."""
        seconds = self._accept_rates.delay(listener, self._clock.monotonic())
        self.quota_metrics.accepts_delayed += seconds > 0
        return seconds

    def _new_handshake(self, listener: ListenerConfig, host: str) -> TlsHandshake | None:
        """The handshake of a new connection; None if a limit forbids the connection."""
        handshake = TlsHandshake(
            self,
            self._tls[listener.name].context,
            self._authentication_seconds,
            self._clock,
            partial(self._new_protocol, listener.name),
        )
        return handshake if self.arrived(handshake, host) else None

    def arrived(self, connection: PendingConnection, host: str, *, is_new: bool = True) -> bool:
        """Count a connection that has to shake hands or to authenticate; False if a limit forbids
        it."""
        if self._is_refused(host, is_new):
            return False
        self._pending[connection] = host
        self._limits.opened(host)
        return True

    def passed(self, connection: PendingConnection) -> None:
        """Make room for the protocol that takes over a pending connection."""
        self._limits.closed(self._pending.pop(connection))

    def failed(self, connection: PendingConnection, reason: str, why: str) -> None:
        """Count and log why a pending connection ends."""
        host = self._pending.pop(connection)
        self._limits.closed(host)
        self._tell_closed(host, reason, why)
        self._note_emptied()

    @property
    def advertised(self) -> list[ApiVersion]:
        """The APIs that ApiVersions lists."""
        return self._dispatcher.advertised

    def _new_protocol(
        self, listener: str, handshake: TlsHandshake | None = None
    ) -> asyncio.BufferedProtocol:
        """The first protocol behind the handshake of TLS, if there is one."""
        terms = self._sasl.get(listener)
        if terms is None:
            return self._new_socket(listener, handshake)
        return SaslSocket(
            self,
            terms,
            FrameReader(terms.request_bytes_max, "sasl.server.max.receive.size", self._scratch),
            self._authentication_seconds,
            self._clock,
            lambda established: self._new_socket(listener, handshake, established),
            handshake,
        )

    def _new_socket(
        self,
        listener: str,
        handshake: TlsHandshake | None = None,
        established: Established | None = None,
    ) -> ClientSocket:
        frames = FrameReader(self._request_bytes_max, "socket.request.max.bytes", self._scratch)
        return ClientSocket(
            self,
            listener,
            frames,
            FramePace(self._receive_limits),
            self._metrics,
            self._clock,
            handshake,
            established,
        )

    def accept(
        self, socket: ClientSocket, host: str, tls: ssl.SSLObject | None
    ) -> ServedConnection | None:
        """A new connection's state; None if the connection is refused."""
        principal = ANONYMOUS
        try:
            if socket.established is not None:
                principal = socket.established.principal
            elif tls is not None:
                principal = self._tls[socket.listener].principal(tls)
        except NoRuleMatches as error:
            self._tell_closed(host, "no_principal", str(error))
            return None
        if self._is_refused(host, is_new=socket.established is None and tls is None):
            return None
        self._next_connection_id += 1
        connection = ServedConnection(
            self._dispatcher,
            self._memory,
            self._answer_memory,
            client=ConnectedClient(host, self._next_connection_id, socket.listener, principal),
            requests_max=self._requests_max,
            request_bytes_max=self._connection_bytes_max,
            answer_bytes_max=self._answer_bytes_max,
        )
        self._sockets[connection] = socket
        self._limits.opened(host)
        self._metrics.connections_accepted += 1
        if socket.established is not None:
            self._begin_session(socket, connection, socket.established)
        return connection

    def _begin_session(
        self, socket: ClientSocket, connection: ServedConnection, established: Established
    ) -> None:
        """Serve re-authentications of a connection, and end its authentication in time."""

        def renewed(established: Established) -> None:
            if connection not in self._sockets:
                # It ended while its client authenticated.
                return
            connection.renew(connection.client._replace(principal=established.principal))
            self._expire_in(connection, established.lifetime_ms)

        def failed() -> None:
            # The answer goes first.
            connection.expire()
            asyncio.get_running_loop().call_soon(socket.drain)

        session = LoginSession(self._sasl[socket.listener], established, renewed, failed)
        self._services.sessions.begin(connection.client.connection_id, session)
        self._expire_in(connection, established.lifetime_ms)

    def _expire_in(self, connection: ServedConnection, lifetime_ms: int) -> None:
        if (timer := self._expiries.pop(connection, None)) is not None:
            timer.cancel()
        if lifetime_ms > 0:
            loop = asyncio.get_running_loop()
            timer = loop.call_later(lifetime_ms / 1000, connection.expire)
            self._expiries[connection] = timer

    def _is_refused(self, host: str, is_new: bool) -> bool:
        """Whether a limit forbids one more connection from a host. An idle one may give way.

        `is_new`: it has not arrived before, in another protocol's care.
        """
        limit = "closing" if self._closing else self._limits.violated(host)
        if limit is None and is_new and not self._rates.accepts(host, self._clock.monotonic()):
            limit = QuotaKey.CONNECTION_CREATION_RATE
        if limit in OF_ALL and (idle := self._displacement.next(self._clock.monotonic())):
            idle.evict("displaced", f"{limit} is reached, and a new connection takes its place")
            limit = None
        if limit is None:
            return False
        self._metrics.connections_refused.of(limit).value += 1
        extra = {"client_host": host, "limit": limit}
        self._log.tell(logging.INFO, "connection refused", (host, limit), extra)
        return True

    def serve(
        self, socket: ClientSocket, taken: TakenRequest
    ) -> asyncio.Future[Response | ReadyAnswer | None]:
        """Start a request.

        The handler's synchronous part has run when this returns. So pipelined writes take effect in
        their order of arrival.
        """
        assert taken.opened is not None
        begun = self._clock.monotonic()
        answer = self._dispatcher.begin(self._services, taken.opened)
        self._answers.add(answer)
        answer.add_done_callback(partial(self._answered, socket, taken, begun))
        return answer

    def _answered(
        self,
        socket: ClientSocket,
        taken: TakenRequest,
        begun: float,
        answer: asyncio.Future[Response | ReadyAnswer | None],
    ) -> None:
        """The handler has finished, was cancelled, or has failed."""
        self._answers.discard(answer)
        opened = taken.opened
        assert opened is not None
        ready: ReadyAnswer | None = None
        refusal: CloseConnection | None = None
        try:
            ready = self._dispatcher.conclude(opened, answer)
            if not answer.cancelled():
                opened.route.metrics.observe(self._clock.monotonic() - begun)
        except CloseConnection as error:
            refusal = error
        except Exception:  # the request's memory has to be released all the same
            logger.exception("a request cannot be answered", extra={"api": opened.route.name})
        try:
            buffers, throttle_ms = ready or (None, 0)
            socket.answered(taken, buffers, refusal, throttle_ms)
        finally:
            self._note_emptied()

    @property
    def read_bytes_max(self) -> int:
        """The bytes that a read may deliver, unless it continues a request."""
        return self._memory.read_bytes_max

    @property
    def quota_metrics(self) -> QuotaMetrics:
        """Counts of throttled connections."""
        return self._dispatcher.quotas.metrics

    def durable(self) -> asyncio.Future[None]:
        """Done when every append so far is durable."""
        return self._services.durable()

    def resume_waiting(self) -> None:
        """Let connections that wait for memory read again, as far as it suffices."""
        while (connection := self._memory.next_reader()) is not None:
            self._sockets[connection].update_reading()

    def refused(self, connection: ServedConnection, error: CloseConnection) -> None:
        """Count and log why the broker closes a connection."""
        self._tell_closed(connection.client.client_host, error.reason, str(error))

    def _tell_closed(self, host: str, reason: str, why: str) -> None:
        self._metrics.connections_closed.of(reason).value += 1
        extra = {"client_host": host, "reason": reason, "detail": why}
        self._log.tell(logging.INFO, "connection closed", (host, reason), extra)

    def forget(self, connection: ServedConnection) -> None:
        """Remove a closed connection."""
        del self._sockets[connection]
        self._limits.closed(connection.client.client_host)
        self._expire_in(connection, 0)
        self._services.sessions.end(connection.client.connection_id)
        self._connection_lost(connection.client.connection_id)
        self.resume_waiting()
        self._note_emptied()

    def _note_emptied(self) -> None:
        if self._closing and not self._sockets and not self._answers:
            self._emptied.set()

    async def _sweep(self) -> None:
        """Close idle connections, and clients that send or read too slowly."""
        while True:
            idle_ms = self._services.settings.integer("connections.max.idle.ms")
            idle_seconds = idle_ms / 1000 if idle_ms >= 0 else float("inf")
            await self._clock.sleep(min(SWEEP_SECONDS_MAX, max(0.01, idle_seconds / 4)))
            now = self._clock.monotonic()
            slow_requests, slow_readers = [], []
            async for socket in self._in_pieces(list(self._sockets.values())):
                socket.sweep(now, idle_seconds)
                if socket.request_seconds_left(now) > SLOW_SECONDS:
                    slow_requests.append(socket)
                if socket.answer_seconds_left(now) > SLOW_SECONDS:
                    slow_readers.append(socket)
            self.resume_waiting()
            if self._memory.waited_seconds(now) >= PATIENCE_SECONDS:
                async for socket in self._in_pieces(slow_requests):
                    socket.evict("slow_request", "its request holds memory that others wait for")
            if self._answer_memory.is_short:
                async for socket in self._in_pieces(slow_readers):
                    socket.evict("slow_reader", "its answers hold memory that others need")

    async def _in_pieces(self, sockets: Sequence[ClientSocket]) -> AsyncIterator[ClientSocket]:
        """All sockets, with regular yields to other tasks."""
        for number, socket in enumerate(sockets, 1):
            yield socket
            if number % SWEPT_AT_ONCE == 0:
                await self._clock.sleep(0)
