"""Pure connections with small limits, and frames of requests to feed them."""

from __future__ import annotations

from typing import Any

from tests.unit.broker.loopback import dispatcher_of
from tidelog.broker.dispatch.dispatcher import Dispatcher
from tidelog.broker.fairness.client_memory import AnswerMemory, RequestMemory
from tidelog.broker.handlers.request_context import ConnectedClient, RequestContext
from tidelog.broker.network.connection import ServedConnection, TakenRequest
from tidelog.broker.telemetry.metrics import BrokerMetrics
from tidelog.protocol.api import ApiKey
from tidelog.protocol.headers import encode_request
from tidelog.protocol.message import Request, Response
from tidelog.protocol.schemas.cluster.api_versions import ApiVersionsRequest
from tidelog.protocol.schemas.cluster.metadata import MetadataRequest
from tidelog.protocol.schemas.fetch import FetchRequest
from tidelog.protocol.schemas.groups import HeartbeatRequest
from tidelog.protocol.schemas.produce import ProduceRequest
from tidelog.protocol.wire import Buffer

REQUESTS_MAX = 3
REQUEST_BYTES_MAX = 100_000
ANSWER_BYTES_MAX = 1000


async def never(_broker: object, _request: Any, _context: RequestContext) -> Response | None:
    raise AssertionError("these tests answer themselves")


def new_dispatcher() -> Dispatcher:
    keys = (ApiKey.METADATA, ApiKey.FETCH, ApiKey.PRODUCE, ApiKey.HEARTBEAT)
    return dispatcher_of(dict.fromkeys(keys, never), BrokerMetrics())


def new_connection(
    memory: RequestMemory[ServedConnection] | None = None,
    dispatcher: Dispatcher | None = None,
    answers: AnswerMemory | None = None,
) -> ServedConnection:
    return ServedConnection(
        dispatcher or new_dispatcher(),
        memory or RequestMemory(-1),
        answers or AnswerMemory(1 << 30),
        client=ConnectedClient("1.2.3.4", 1),
        requests_max=REQUESTS_MAX,
        request_bytes_max=REQUEST_BYTES_MAX,
        answer_bytes_max=ANSWER_BYTES_MAX,
    )


def frame(request: Request[Response], version: int, correlation_id: int = 0) -> memoryview:
    buffers = encode_request(request, version, correlation_id, "c")
    return memoryview(bytearray(b"".join(buffers)))[4:]


def future_versions_frame(correlation_id: int) -> memoryview:
    """ApiVersions in a version that does not exist yet."""
    each = frame(ApiVersionsRequest(), 4, correlation_id)
    each[2:4] = (99).to_bytes(2, "big")
    return each


def feed(connection: ServedConnection, *frames: memoryview) -> None:
    connection.received(sum(len(each) + 4 for each in frames), frames)


def metadata_frame(correlation_id: int = 0) -> memoryview:
    return frame(MetadataRequest(topics=[]), 8, correlation_id)


def heartbeat_frame(correlation_id: int = 0) -> memoryview:
    """Heartbeats are served side by side."""
    return frame(HeartbeatRequest(), 3, correlation_id)


def produce_frame(correlation_id: int = 0) -> memoryview:
    return frame(ProduceRequest(), 9, correlation_id)


def fetch_frame(correlation_id: int = 0) -> memoryview:
    return frame(FetchRequest(), 12, correlation_id)


def taken_by(connection: ServedConnection) -> TakenRequest:
    taken = connection.next_request()
    assert taken is not None
    return taken


def joined(buffers: list[Buffer]) -> bytes:
    return b"".join(bytes(buffer) for buffer in buffers)
