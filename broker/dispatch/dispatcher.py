"""Which handler serves which request, and what is done with requests that have none.

As in Kafka, a request that cannot be understood (an unknown key, a version that is not served, a
message that does not decode) closes its connection, since there is no answer that its sender could
read. The exception is ApiVersions, by which clients find out what is served (KIP-511).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Generator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from tidelog.broker.dispatch.long_requests import LongRequests
from tidelog.broker.dispatch.request_parts import DIVISIONS, Division, is_long
from tidelog.broker.fairness.slice_turns import SliceTurns
from tidelog.broker.handlers.cluster.versions import answer_api_versions, refuse_api_versions
from tidelog.broker.handlers.error_responses import count_errors, error_response
from tidelog.broker.handlers.request_context import CloseConnection, RequestContext
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
from tidelog.protocol.schemas.api_versions import ApiVersion
from tidelog.protocol.wire import Buffer, LongMessage

if TYPE_CHECKING:
    from tidelog.broker.handlers.services import Services
    from tidelog.broker.telemetry.metrics import BrokerMetrics, RequestMetrics

logger = logging.getLogger(__name__)

SERVED_FROM: Final[Mapping[int, int]] = {ApiKey.PRODUCE: 3}
"""Lowest version served where it is above the lowest advertised: record batches of the second
format come with version 3, but clients stop compressing unless 0 is advertised (KAFKA-18659)."""

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
"""Requests that cost no more than what they carry or bring: they are begun as soon as they come.
Others may take long whatever their size (all topics, all groups): connections take turns."""

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
"""Requests whose answer is all that comes of them."""

GIVEN_UP: Final[frozenset[int]] = READS | {ApiKey.FETCH, OwnApiKey.FLUSH_TOPICS, OwnApiKey.ADOPT}
"""Requests that are ended when their connection is lost: they may take long, and what they change,
if anything, does no harm unanswered."""

ERRORS_COUNTED_BY_HANDLER: Final = frozenset({ApiKey.PRODUCE, ApiKey.FETCH})
"""Looking for errors in their answers would cost too much on the hot path."""


Handler: TypeAlias = "Callable[[Any, Any, RequestContext], Awaitable[Response | None]]"
"""(broker, request, context) -> the answer, or None where there is to be none (acks=0)."""


@dataclass(frozen=True, slots=True)
class Route:
    """How the requests of one API are served."""

    api_key: int
    name: str
    request: type[Request[Response]]
    handler: Handler
    versions: range
    advertised: ApiVersion | None
    """As listed in ApiVersions; Tidelog's own APIs are not."""
    given_up: bool
    """Ended when its connection is lost."""
    cheap: bool
    division: Division | None
    """How it is cut where it is long."""
    metrics: RequestMetrics


class OpenedRequest(NamedTuple):
    """A request that can be served."""

    route: Route
    message: Request[Response] | None
    """None where it has yet to be read, in `steps`."""
    context: RequestContext
    steps: Generator[None, None, Request[Response]] | None = None
    is_cut: bool = False
    """It is served in parts."""

    @property
    def is_alone(self) -> bool:
        """Whether no request of its connection that came later is begun before it is answered,
        whatever `request_order` says of its API: its handler is called late, and more than once."""
        return self.is_cut or self.steps is not None


class ReadyAnswer(NamedTuple):
    """The frame that answers a request."""

    buffers: list[Buffer]


class Dispatcher:
    """The registry of handlers. ApiVersions is served by itself and advertises what is in it."""

    def __init__(
        self,
        handlers: Mapping[int, Handler],
        metrics: BrokerMetrics,
        turns: SliceTurns,
        long_requests: LongRequests,
    ) -> None:
        """Handlers by API key. ValueError for a key of Kafka's without versions to advertise."""
        self._turns = turns
        self._long_requests = long_requests
        self._routes: dict[int, Route] = {}
        for key, handler in {**handlers, ApiKey.API_VERSIONS: self._api_versions}.items():
            self._routes[key] = _route(key, handler, metrics)
        self._advertised = [
            route.advertised
            for _, route in sorted(self._routes.items())
            if route.advertised is not None
        ]

    @property
    def advertised(self) -> list[ApiVersion]:
        """What ApiVersions lists, by key."""
        return list(self._advertised)

    def is_cheap(self, frame: memoryview) -> bool:
        """Whether the request in a frame costs little to begin."""
        return int.from_bytes(frame[:2], "big") in CHEAP

    def open(
        self, frame: memoryview, client_host: str, connection_id: int
    ) -> OpenedRequest | ReadyAnswer:
        """The request in a frame. Its bytes and records are views into the frame.

        Raises:
            CloseConnection: it cannot be understood; nothing was done.
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
        context = RequestContext(version, correlation_id, client_id, client_host, connection_id)
        try:
            message = decode_short(route.request, frame, version, position)
        except LongMessage:
            steps = decode_in_steps(route.request, frame, version, position)
            return OpenedRequest(route, None, context, steps)
        except MalformedMessage as error:
            raise CloseConnection("malformed", str(error)) from error
        division = route.division
        if division is not None and is_long(division, message):
            return OpenedRequest(route, message, context, None, True)
        return OpenedRequest(route, message, context)

    def begin(
        self, services: Services, opened: OpenedRequest
    ) -> asyncio.Future[Response | ReadyAnswer | None]:
        """Call the handler; `conclude` takes what is returned once it is done.

        A handler that is a plain function does its first steps here and now, in the order in which
        a connection's requests came, and may return a future, which saves a task.
        """
        route, message, context, _, _ = opened
        answer: Awaitable[Response | None]
        try:
            if message is None:
                answer = self._read_and_served(services, opened)
            elif opened.is_cut:
                answer = self._served(services, route, message, context)
            else:
                answer = route.handler(services, message, context)
                if route.api_key == ApiKey.PRODUCE:
                    # A request that is not cut has a short answer.
                    return asyncio.ensure_future(answer)
        except Exception as error:  # noqa: BLE001 - `conclude` handles it like any later one
            failed: asyncio.Future[Response | ReadyAnswer | None] = (
                asyncio.get_running_loop().create_future()
            )
            failed.set_exception(error)
            return failed
        task: asyncio.Future[Any] = asyncio.ensure_future(self._encoded(opened, answer))
        if isinstance(answer, Coroutine):
            # Given up before its first step, it would complain that nobody awaited it.
            task.add_done_callback(lambda _: answer.close())
        return task

    async def _read_and_served(self, services: Services, opened: OpenedRequest) -> Response | None:
        """A long message is read as its turn comes."""
        assert opened.steps is not None
        try:
            async with self._long_requests.read(opened.steps) as message:
                return await self._served(services, opened.route, message, opened.context)
        except MalformedMessage as error:
            raise CloseConnection("malformed", str(error)) from error

    async def _served(
        self,
        services: Services,
        route: Route,
        message: Request[Response],
        context: RequestContext,
    ) -> Response | None:
        if route.division is None or not is_long(route.division, message):
            return await route.handler(services, message, context)
        return await self._long_requests.serve(
            route.division, message, lambda part: route.handler(services, part, context)
        )

    async def _encoded(
        self, opened: OpenedRequest, answer: Awaitable[Response | None]
    ) -> ReadyAnswer | None:
        """The answer's frame, and its errors counted; a long one's as its turn comes."""
        response = await answer
        if response is None:
            return None
        route, context = opened.route, opened.context
        version, correlation_id = context.api_version, context.correlation_id
        if route.api_key not in ERRORS_COUNTED_BY_HANDLER:
            await self._turns.through(count_errors(response, route.metrics))
        try:
            return ReadyAnswer(encode_short_response(response, version, correlation_id))
        except LongMessage:
            steps = encode_response_in_steps(response, version, correlation_id)
            return ReadyAnswer(await self._turns.through(steps))

    def conclude(
        self, opened: OpenedRequest, answer: asyncio.Future[Response | ReadyAnswer | None]
    ) -> list[Buffer] | None:
        """The frame that answers a request whose handler is done, or None where there is to be
        none, as when it was cancelled.

        A handler that fails is logged and answered with UNKNOWN_SERVER_ERROR in the shape of the
        request's answers: the fault is ours, and other requests must not suffer from it.

        Raises:
            CloseConnection: the handler wants it, or no answer has room for the error.
        """
        if answer.cancelled():
            return None
        route, context = opened.route, opened.context
        try:
            response = answer.result()
            if response is None:
                return None
            if isinstance(response, ReadyAnswer):
                return response.buffers
            return encode_response(response, context.api_version, context.correlation_id)
        except CloseConnection:
            raise
        except Exception as error:  # whatever it is, one request must not end the others
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


def _fault(opened: OpenedRequest, error: Exception) -> list[Buffer] | None:
    """The answer to a request whose handler raised `error`."""
    route, message, context, _, _ = opened
    code = ErrorCode.UNKNOWN_SERVER_ERROR
    route.metrics.errors.of(code.name).value += 1
    response = None
    if message is not None:
        why = "the broker failed; see its log"
        response = error_response(message, context.api_version, code, why)
    if response is None:
        raise CloseConnection("handler_failed", f"{route.name} failed: {error}") from error
    return encode_response(response, context.api_version, context.correlation_id)


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
    """ "ListOffsets", as the schemas call it."""
    return request_type(key).__name__.removesuffix("Request")
