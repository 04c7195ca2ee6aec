"""The handler of each request, and the treatment of requests without one.

As in Kafka, an unintelligible request (an unknown key, an unserved version, a malformed message)
closes its connection: its sender could not read any answer. The exception is ApiVersions, by which
clients learn the served APIs (KIP-511).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Generator, Mapping
from dataclasses import dataclass
from types import CoroutineType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from tidelog.broker.dispatch.charges import Charge
from tidelog.broker.dispatch.long_requests import LongRequests
from tidelog.broker.dispatch.permissions.guard import Guard
from tidelog.broker.dispatch.permissions.table import PERMISSIONS
from tidelog.broker.dispatch.request_parts import DIVISIONS, Division, is_long
from tidelog.broker.fairness.turns import SliceTurns
from tidelog.broker.handlers.cluster.versions import answer_api_versions, refuse_api_versions
from tidelog.broker.handlers.error_responses import count_errors, error_response
from tidelog.broker.handlers.request_context import (
    CloseConnection,
    ConnectedClient,
    RequestContext,
)
from tidelog.broker.quotas.client_quotas import ClientQuotas
from tidelog.broker.quotas.metrics import QuotaMetrics
from tidelog.broker.settings.settings import BrokerSettings
from tidelog.concurrency import OfOneLoop
from tidelog.named_tuples import new_tuple
from tidelog.protocol.api import ADVERTISED, OWN_KEYS_FROM, ApiKey, OwnApiKey, request_type
from tidelog.protocol.codec import decode_in_steps, decode_short
from tidelog.protocol.error_codes import ErrorCode
from tidelog.protocol.errors import MalformedMessage, UnknownApi
from tidelog.protocol.headers import (
    decode_request_header,
    encode_response,
    encode_response_in_steps,
    encode_short_response,
)
from tidelog.protocol.message import Request, Response
from tidelog.protocol.schemas.cluster.api_versions import ApiVersion
from tidelog.protocol.wire import Buffer, LongMessage

if TYPE_CHECKING:
    from tidelog.broker.handlers.services import Services
    from tidelog.broker.telemetry.metrics import BrokerMetrics, RequestMetrics

logger = logging.getLogger(__name__)

SERVED_FROM: Final[Mapping[int, int]] = {ApiKey.PRODUCE: 3}
"""The lowest served version, where it is above the lowest advertised one.

Record batches of the second format come with version 3, but clients stop compressing unless the
broker advertises version 0 (KAFKA-18659).
"""

CHEAP: Final[frozenset[int]] = frozenset(
    {
        ApiKey.PRODUCE,
        ApiKey.FETCH,
        ApiKey.API_VERSIONS,
        ApiKey.FIND_COORDINATOR,
        ApiKey.HEARTBEAT,
        ApiKey.CONSUMER_GROUP_HEARTBEAT,
        ApiKey.OFFSET_COMMIT,
        ApiKey.INIT_PRODUCER_ID,
        ApiKey.ADD_PARTITIONS_TO_TXN,
        ApiKey.ADD_OFFSETS_TO_TXN,
        ApiKey.TXN_OFFSET_COMMIT,
        ApiKey.END_TXN,
    }
)
"""Requests that cost no more than the data they carry: they start on arrival.

Others may take long whatever their size (all topics, all groups): connections take turns.
"""

READS: Final[frozenset[int]] = frozenset(
    {
        ApiKey.METADATA,
        ApiKey.LIST_OFFSETS,
        ApiKey.OFFSET_FOR_LEADER_EPOCH,
        ApiKey.OFFSET_FETCH,
        ApiKey.FIND_COORDINATOR,
        ApiKey.DESCRIBE_GROUPS,
        ApiKey.LIST_GROUPS,
        ApiKey.CONSUMER_GROUP_DESCRIBE,
        ApiKey.DESCRIBE_CONFIGS,
        ApiKey.LIST_CONFIG_RESOURCES,
        ApiKey.DESCRIBE_TOPIC_PARTITIONS,
        ApiKey.DESCRIBE_LOG_DIRS,
        ApiKey.DESCRIBE_PRODUCERS,
        ApiKey.DESCRIBE_TRANSACTIONS,
        ApiKey.LIST_TRANSACTIONS,
    }
)
"""Requests without an effect besides their answer."""

GIVEN_UP: Final[frozenset[int]] = READS | {ApiKey.FETCH, OwnApiKey.FLUSH_TOPICS, OwnApiKey.ADOPT}
"""Requests that the broker cancels when their connection closes.

They may take long, and their effects, if any, do no harm without an answer.
"""

RENEWING: Final = frozenset({ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE})
"""Requests by which a client authenticates again."""

ERRORS_COUNTED_BY_HANDLER: Final = frozenset({ApiKey.PRODUCE, ApiKey.FETCH})
"""A scan of their answers for errors would cost too much on the hot path."""

Handler: TypeAlias = "Callable[[Any, Any, RequestContext], Awaitable[Response | None]]"
"""(broker, request, context) -> the answer, or None for a request without one (acks=0)."""


@dataclass(frozen=True, slots=True)
class Route:
    """The handler of one API's requests and their properties."""

    api_key: int
    name: str
    request: type[Request[Response]]
    handler: Handler
    versions: range
    advertised: ApiVersion | None
    """The versions in ApiVersions; None for Tidelog's own APIs."""
    given_up: bool
    """Whether its requests are cancelled when their connection closes."""
    cheap: bool
    division: Division | None
    """How its long requests are cut into parts."""
    metrics: RequestMetrics


class OpenedRequest(NamedTuple):
    """A request that the broker can serve."""

    route: Route
    message: Request[Response] | None
    """None if `steps` have yet to decode it."""
    context: RequestContext
    steps: Generator[None, None, Request[Response]] | None = None
    is_cut: bool = False
    """Whether it is served in parts."""
    size: int = 0
    """The bytes of the request."""

    @property
    def is_alone(self) -> bool:
        """Whether later requests of its connection wait for its answer, whatever `request_order`
        says.

        Its handler is called late, and more than once.
        """
        return self.is_cut or self.steps is not None


class ReadyAnswer(NamedTuple):
    buffers: list[Buffer] | None
    """The answer's frame; None if there is no answer."""
    throttle_ms: int = 0
    """How long the connection starts no further requests."""


class Dispatcher(OfOneLoop):
    """The registry of handlers. It serves ApiVersions itself and advertises the handlers' APIs."""

    def __init__(
        self,
        handlers: Mapping[int, Handler],
        metrics: BrokerMetrics,
        turns: SliceTurns,
        long_requests: LongRequests,
        guard: Guard | None = None,
        quotas: ClientQuotas | None = None,
    ) -> None:
        """`handlers` by API key; `guard` asks for permission before they are called.

        Raises ValueError for a Kafka API without versions to advertise, KeyError for a guarded API
        without a declaration of what it needs.
        """
        self._turns = turns
        self._long_requests = long_requests
        self.quotas = quotas or ClientQuotas(BrokerSettings, QuotaMetrics())
        """Charged for each request while there are any."""
        self._routes: dict[int, Route] = {}
        for key, handler in {**handlers, ApiKey.API_VERSIONS: self._api_versions}.items():
            if guard is not None:
                handler = guard.guarded(key, _api_name(key), PERMISSIONS[key], handler)
            self._routes[key] = _route(key, handler, metrics)
        self._advertised = [
            route.advertised
            for _, route in sorted(self._routes.items())
            if route.advertised is not None
        ]

    @property
    def advertised(self) -> list[ApiVersion]:
        """The APIs that ApiVersions lists, by key."""
        return list(self._advertised)

    def is_cheap(self, frame: memoryview) -> bool:
        """Whether the request in a frame costs little to start."""
        return int.from_bytes(frame[:2], "big") in CHEAP

    def open(self, frame: memoryview, client: ConnectedClient) -> OpenedRequest | ReadyAnswer:
        """The request in a frame. Its bytes and records are views into the frame.

        Raises:
            CloseConnection: the request is unintelligible; nothing was done.
        """
        try:
            header = decode_request_header(frame)
        except MalformedMessage as error:
            raise CloseConnection("malformed", str(error)) from error
        except UnknownApi as error:
            raise CloseConnection("unknown_api", str(error)) from error
        key, version, correlation_id, client_id, position = header
        route = self._routes.get(key)
        if route is None:
            raise CloseConnection("unknown_api", f"{_api_name(key)} is not served here")
        if version not in route.versions:
            if key == ApiKey.API_VERSIONS:
                refusal = refuse_api_versions(self._advertised)
                return ReadyAnswer(encode_response(refusal, 0, correlation_id))
            raise CloseConnection(
                "unsupported_version",
                f"{route.name} is served in versions {route.versions.start} to "
                f"{route.versions.stop - 1}, not {version}",
            )
        context = new_tuple(RequestContext, (version, correlation_id, client_id, *client))
        try:
            message = decode_short(route.request, frame, version, position)
        except LongMessage:
            steps = decode_in_steps(route.request, frame, version, position)
            return OpenedRequest(route, None, context, steps, size=len(frame))
        except MalformedMessage as error:
            raise CloseConnection("malformed", str(error)) from error
        is_cut = route.division is not None and is_long(route.division, message)
        return new_tuple(OpenedRequest, (route, message, context, None, is_cut, len(frame)))

    def begin(
        self, services: Services, opened: OpenedRequest
    ) -> asyncio.Future[Response | ReadyAnswer | None]:
        """Call the handler. `conclude` takes the returned future once it is done.

        A handler that is a plain function does its first steps here and now, in the order of a
        connection's requests. It may return a future, which saves a task.
        """
        route, message, context, _, _, _ = opened
        charge = Charge(self.quotas, services.clock, opened) if self.quotas.active else None
        answer: Awaitable[Response | None]
        try:
            if message is None:
                answer = self._read_and_served(services, opened, charge)
            elif opened.is_cut:
                answer = self._served(services, route, message, context, charge)
            elif charge is not None:
                answer = charge.stopwatch.call(route.handler, services, message, context)
            else:
                answer = route.handler(services, message, context)
                if route.api_key == ApiKey.PRODUCE:
                    # The answer of an uncut request is short. Most are futures already.
                    if isinstance(answer, asyncio.Future):
                        return answer
                    return asyncio.ensure_future(answer)
        except Exception as error:  # noqa: BLE001 - `conclude` handles it like any later one
            failed: asyncio.Future[Response | ReadyAnswer | None] = self.loop.create_future()
            failed.set_exception(error)
            return failed
        task: asyncio.Future[Any] = self.loop.create_task(self._encoded(opened, answer, charge))
        if type(answer) is CoroutineType:
            # A coroutine cancelled before its first step would warn that it was never awaited.
            task.add_done_callback(lambda _: answer.close())
        return task

    async def _read_and_served(
        self, services: Services, opened: OpenedRequest, charge: Charge | None
    ) -> Response | None:
        """Decode a long message in its turns, then serve it."""
        assert opened.steps is not None
        try:
            async with self._long_requests.read(opened.steps) as message:
                return await self._served(services, opened.route, message, opened.context, charge)
        except MalformedMessage as error:
            raise CloseConnection("malformed", str(error)) from error

    async def _served(
        self,
        services: Services,
        route: Route,
        message: Request[Response],
        context: RequestContext,
        charge: Charge | None,
    ) -> Response | None:
        if route.division is None or not is_long(route.division, message):
            return await route.handler(services, message, context)

        def serve(part: Request[Response]) -> Awaitable[Response | None]:
            answer = route.handler(services, part, context)
            # A part is a task of its own.
            return answer if charge is None else charge.stopwatch.timed(answer)

        return await self._long_requests.serve(route.division, message, serve)

    async def _encoded(
        self, opened: OpenedRequest, answer: Awaitable[Response | None], charge: Charge | None
    ) -> ReadyAnswer | None:
        """Count the answer's errors and encode its frame; a long answer takes turns.

        Quotas are charged before that: the answer tells the client how long it has to wait.
        """
        if charge is None:
            response, throttle_ms = await answer, 0
        else:
            response = await charge.stopwatch.timed(answer)
            throttle_ms = charge.made(response)
        if response is None:
            return ReadyAnswer(None, throttle_ms) if throttle_ms else None
        route, context = opened.route, opened.context
        version, correlation_id = context.api_version, context.correlation_id
        if route.api_key not in ERRORS_COUNTED_BY_HANDLER:
            for _ in count_errors(response, route.metrics):
                await self._turns.next()
        try:
            buffers = encode_short_response(response, version, correlation_id)
        except LongMessage:
            steps = encode_response_in_steps(response, version, correlation_id)
            buffers = await self._turns.through(steps)
        return new_tuple(ReadyAnswer, (buffers, throttle_ms))

    def conclude(
        self, opened: OpenedRequest, answer: asyncio.Future[Response | ReadyAnswer | None]
    ) -> ReadyAnswer | None:
        """The answer to a finished request; None if it has no answer or was cancelled.

        A handler's failure is logged and answered with UNKNOWN_SERVER_ERROR in the shape of the
        request's answers. Such a failure is the broker's fault, and must not affect other requests.

        Raises:
            CloseConnection: the handler demands it, or no answer has room for the error.
        """
        if answer.cancelled():
            return None
        route, context = opened.route, opened.context
        try:
            response = answer.result()
            if response is None:
                return None
            if isinstance(response, ReadyAnswer):
                return response
            buffers = encode_response(response, context.api_version, context.correlation_id)
            return new_tuple(ReadyAnswer, (buffers, 0))
        except CloseConnection:
            raise
        except Exception as error:  # one request's error must not end the others
            logger.exception(
                "request failed",
                extra={
                    "api": route.name,
                    "api_version": context.api_version,
                    "client_id": context.client_id,
                    "client_host": context.client_host,
                },
            )
            return _fault(opened, error)

    async def _api_versions(
        self, _services: Services, request: Any, context: RequestContext
    ) -> Response:
        return answer_api_versions(self._advertised, request, context.api_version)


class ExpiredSession:
    """Opens requests of a connection whose authentication has expired: only those that renew
    it."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        self._dispatcher = dispatcher

    def is_cheap(self, frame: memoryview) -> bool:
        """See Dispatcher."""
        return self._dispatcher.is_cheap(frame)

    def open(self, frame: memoryview, client: ConnectedClient) -> OpenedRequest | ReadyAnswer:
        """See Dispatcher. Raises CloseConnection for all other requests."""
        if int.from_bytes(frame[:2], "big") not in RENEWING:
            raise CloseConnection(
                "session_expired", "the client sends requests and does not authenticate again"
            )
        return self._dispatcher.open(frame, client)


def _fault(opened: OpenedRequest, error: Exception) -> ReadyAnswer:
    """The answer to a request whose handler raised `error`."""
    route, message, context, _, _, _ = opened
    code = ErrorCode.UNKNOWN_SERVER_ERROR
    route.metrics.errors.of(code.name).value += 1
    response = None
    if message is not None:
        why = "the broker failed; see its log"
        response = error_response(message, context.api_version, code, why)
    if response is None:
        raise CloseConnection("handler_failed", f"{route.name} failed: {error}") from error
    return ReadyAnswer(encode_response(response, context.api_version, context.correlation_id))


def _route(key: int, handler: Handler, metrics: BrokerMetrics) -> Route:
    name = _api_name(key)
    request = request_type(key)
    advertised = None
    versions = request.VERSIONS
    if key < OWN_KEYS_FROM:
        if key not in ADVERTISED:
            raise ValueError(f"{name} has a handler, but no versions to advertise")
        lowest, highest = ADVERTISED[ApiKey(key)]
        advertised = ApiVersion(api_key=key, min_version=lowest, max_version=highest)
        versions = range(SERVED_FROM.get(key, lowest), highest + 1)
    return Route(
        api_key=key,
        name=name,
        request=request,
        handler=handler,
        versions=versions,
        advertised=advertised,
        given_up=key in GIVEN_UP,
        cheap=key in CHEAP,
        division=DIVISIONS.get(key),
        metrics=metrics.api(name),
    )


def _api_name(key: int) -> str:
    """The API's name in Kafka's schemas: "ListOffsets"."""
    return request_type(key).__name__.removesuffix("Request")
