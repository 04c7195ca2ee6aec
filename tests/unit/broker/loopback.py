"""A Kafka server with handlers of the test's own, on loopback, and a client that only handles
frames."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Coroutine, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, TypeVar, cast

import uvloop

from tidelog.broker.authentication.attempt import SaslTerms
from tidelog.broker.authentication.sessions import Sessions
from tidelog.broker.authentication.tls import ListenerTls
from tidelog.broker.dispatch.dispatcher import Dispatcher, Handler
from tidelog.broker.dispatch.long_requests import LongRequests
from tidelog.broker.fairness.client_memory import AnswerMemory
from tidelog.broker.fairness.connection_limits import ConnectionLimits, descriptors_left
from tidelog.broker.fairness.turns import SliceTurns
from tidelog.broker.handlers.services import Services
from tidelog.broker.network.reserved_address import ReservedAddress
from tidelog.broker.network.server import KafkaServer
from tidelog.broker.quotas.client_quotas import ClientQuotas
from tidelog.broker.quotas.connection_rates import AcceptRates, ConnectionRates
from tidelog.broker.settings.listeners import ListenerConfig
from tidelog.broker.settings.settings import BrokerSettings
from tidelog.broker.telemetry.metrics import BrokerMetrics
from tidelog.clock import SystemClock
from tidelog.network import SocketNetwork
from tidelog.protocol.codec import decode
from tidelog.protocol.headers import encode_request, response_body_position
from tidelog.protocol.message import Request, Response
from tidelog.protocol.wire import ELEMENTS_MAX
from tidelog.security.security_protocol import SecurityProtocol

T = TypeVar("T")
R = TypeVar("R", bound=Response)
LOOPBACK = ListenerConfig("PLAINTEXT", SecurityProtocol.PLAINTEXT, ("127.0.0.1", 0), None)


def run(main: Coroutine[Any, Any, T], loop: str = "uvloop") -> T:
    """Run a test on one of the two kinds of event loops."""
    factory = uvloop.new_event_loop if loop == "uvloop" else asyncio.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        return runner.run(main)


class Loopback:
    """A running server."""

    def __init__(self, server: KafkaServer, address: tuple[str, int], metrics: BrokerMetrics):
        self.server = server
        self.address = address
        self.metrics = metrics
        self.clients: list[Client] = []
        self.quotas: ClientQuotas
        self.connection_rates: ConnectionRates
        self.tls: ListenerTls
        """The TLS of a server that offers it."""

    async def connect(self) -> Client:
        """A client's connection; closed in the end."""
        client = Client(*await asyncio.open_connection(*self.address))
        self.clients.append(client)
        return client


class Client:
    """One connection of a client that leaves pipelining to the test."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self._correlation_id = 0

    def send(self, request: Request[Response], version: int) -> int:
        """Write a request. Returns its correlation id."""
        self._correlation_id += 1
        self.writer.writelines(encode_request(request, version, self._correlation_id, "test"))
        return self._correlation_id

    async def receive(self, response: type[R], version: int) -> tuple[int, R]:
        """The next answer and the correlation id in it."""
        frame = memoryview(await self.receive_frame())
        position = response_body_position(frame, response, version)
        (correlation_id,) = struct.unpack_from(">i", frame)
        return correlation_id, decode(response, frame, version, position)

    async def receive_frame(self) -> bytes:
        """The next answer's frame."""
        (size,) = struct.unpack(">i", await self.reader.readexactly(4))
        return await self.reader.readexactly(size)

    async def ask(self, request: Request[Response], response: type[R], version: int) -> R:
        """Send a request and wait for its answer."""
        sent = self.send(request, version)
        correlation_id, answer = await self.receive(response, version)
        assert correlation_id == sent
        return answer

    async def closed(self) -> bool:
        """Wait for the server to close the connection. Returns whether it closed without sending
        more bytes."""
        try:
            return await self.reader.read() == b""
        except ConnectionError:
            return True

    async def close(self) -> None:
        """Close the connection."""
        self.writer.close()
        with suppress(ConnectionError):
            await self.writer.wait_closed()


def dispatcher_of(handlers: Mapping[int, Handler], metrics: BrokerMetrics) -> Dispatcher:
    """A dispatcher with separate turns."""
    turns = SliceTurns()
    return Dispatcher(handlers, metrics, turns, LongRequests(turns, ELEMENTS_MAX))


def _durable() -> asyncio.Future[None]:
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    done.set_result(None)
    return done


@asynccontextmanager
async def serving(
    handlers: Mapping[int, Handler],
    clock: object = None,
    descriptors_max: int | None = None,
    protocol: str = "PLAINTEXT",
    sasl: Mapping[str, SaslTerms] | None = None,
    **settings: object,
) -> AsyncIterator[Loopback]:
    """A server with these handlers and settings, closed in the end."""
    metrics = BrokerMetrics()
    services = SimpleNamespace(
        settings=BrokerSettings.of(**settings),
        metrics=metrics,
        clock=clock or SystemClock(),
        durable=_durable,
        sessions=Sessions(),
    )
    config = replace(LOOPBACK, protocol=SecurityProtocol(protocol))
    tls = {}
    if config.protocol.uses_tls:
        tls[config.name] = ListenerTls(config.name, services.settings.at_listener(config.name))
    answers = AnswerMemory(services.settings.integer("queued.max.answer.bytes"))
    descriptors = descriptors_left(services.settings, descriptors_max)
    limits = ConnectionLimits(lambda: services.settings, descriptors)
    rates = ConnectionRates(lambda: services.settings)
    dispatcher = dispatcher_of(handlers, metrics)
    address = await ReservedAddress.of(SocketNetwork(), config)
    server = KafkaServer(
        cast(Services, services),
        dispatcher,
        answers,
        limits,
        rates,
        AcceptRates(lambda: services.settings, None),
        lambda _: None,
        [address],
        tls,
        sasl or {},
    )
    await server.start()
    loopback = Loopback(server, address.address, metrics)
    loopback.quotas, loopback.connection_rates = dispatcher.quotas, rates
    if tls:
        loopback.tls = tls[config.name]
    try:
        yield loopback
    finally:
        await server.abort()
        for client in loopback.clients:
            await client.close()
