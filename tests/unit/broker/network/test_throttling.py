"""Throttled connections: the answer is sent at once, and the next request starts after the throttle
time."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.unit.broker.loopback import Client, Loopback, run, serving
from tests.unit.broker.network.served import beat
from tidelog.broker.handlers.error_responses import error_response
from tidelog.broker.handlers.request_context import RequestContext
from tidelog.clock import SystemClock
from tidelog.coordinator.cluster.records.client_quotas import DEFAULT_NAME, QuotaEntity
from tidelog.protocol.api import ApiKey
from tidelog.protocol.error_codes import ErrorCode
from tidelog.protocol.message import Response
from tidelog.protocol.schemas.groups import HeartbeatResponse
from tidelog.protocol.schemas.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from tidelog.protocol.schemas.transactions import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

ANYONE = QuotaEntity(user=DEFAULT_NAME)
RATE = 10_000.0
OVER_BYTES = 103_000
"""Bytes that RATE throttles for 0.3 s: the bytes of 0.3 s more than the free ten seconds."""


class Still(SystemClock):
    """A clock on which no time passes for quotas."""

    def monotonic(self) -> float:
        return 1000.0


class Starts:
    """Handlers that note when each request starts."""

    def __init__(self) -> None:
        self.at: list[float] = []

    def _note(self) -> None:
        self.at.append(asyncio.get_running_loop().time())

    async def produce(self, _b: Any, request: Any, _c: RequestContext) -> ProduceResponse | None:
        self._note()
        return ProduceResponse() if request.acks else None

    async def heartbeat(self, _b: Any, _r: Any, _c: RequestContext) -> HeartbeatResponse:
        self._note()
        return HeartbeatResponse()

    def handlers(self) -> dict[int, Any]:
        return {ApiKey.PRODUCE: self.produce, ApiKey.HEARTBEAT: self.heartbeat}


def produced(size: int, acks: int = -1) -> ProduceRequest:
    data = PartitionProduceData(index=0, records=bytes(size))
    return ProduceRequest(acks=acks, topic_data=[TopicProduceData(name="t", partition_data=[data])])


def limit(broker: Loopback, key: str = "producer_byte_rate", value: float = RATE) -> None:
    broker.quotas.renew({ANYONE: {key: value}})


async def beats(client: Client) -> None:
    await client.ask(beat(1), HeartbeatResponse, 4)


@pytest.mark.parametrize("loop", ["uvloop", "asyncio"])
def test_a_producer_over_its_quota_is_answered_at_once_and_waits_with_its_next_request(
    loop: str,
) -> None:
    async def main() -> None:
        starts, now = Starts(), asyncio.get_running_loop().time
        async with serving(starts.handlers(), Still()) as broker:
            limit(broker)
            client, other = await broker.connect(), await broker.connect()
            assert (await client.ask(produced(1000), ProduceResponse, 9)).throttle_time_ms == 0
            await beats(client)
            told = await client.ask(produced(OVER_BYTES), ProduceResponse, 9)
            answered = now()
            assert told.throttle_time_ms == pytest.approx(400, abs=100)
            assert broker.quotas.metrics.connections == 1
            await asyncio.gather(beats(client), beats(other))
            # The other connection is not throttled, although both have the same client id.
            assert starts.at[-2] < starts.at[-1]
            assert starts.at[-1] - starts.at[2] >= told.throttle_time_ms / 1000 - 0.01
            assert answered < starts.at[-1]
            assert broker.quotas.metrics.connections == 0
            assert broker.quotas.metrics.throttled.items() == [("producer_byte_rate", 1)]

    run(main(), loop)


def test_a_producer_without_answers_is_muted_too() -> None:
    async def main() -> None:
        starts = Starts()
        async with serving(starts.handlers(), Still()) as broker:
            limit(broker)
            client = await broker.connect()
            client.send(produced(OVER_BYTES, acks=0), 9)
            await beats(client)
            assert starts.at[1] - starts.at[0] >= 0.28

    run(main())


def test_requests_that_came_with_a_throttled_one_wait_as_well() -> None:
    async def main() -> None:
        starts = Starts()
        async with serving(starts.handlers(), Still()) as broker:
            limit(broker)
            client = await broker.connect()
            # Produces run side by side; the beat behind them starts after all of them.
            for _ in range(2):
                client.send(produced(OVER_BYTES // 2 + 500), 9)
            client.send(beat(1), 4)
            answers = [(await client.receive(ProduceResponse, 9))[1] for _ in range(2)]
            await client.receive(HeartbeatResponse, 4)
            assert [each.throttle_time_ms > 0 for each in answers] == [False, True]
            assert starts.at[2] - starts.at[1] >= 0.3

    run(main())


def test_without_a_quota_nothing_is_charged() -> None:
    async def main() -> None:
        async with serving(Starts().handlers(), Still()) as broker:
            client = await broker.connect()
            told = await client.ask(produced(OVER_BYTES), ProduceResponse, 9)
            assert told.throttle_time_ms == 0
            limit(broker)
            told = await client.ask(produced(OVER_BYTES - 5000), ProduceResponse, 9)
            assert told.throttle_time_ms == 0

    run(main())


def test_a_connection_that_ends_while_it_is_muted_leaves_nothing() -> None:
    async def main() -> None:
        async with serving(Starts().handlers(), Still()) as broker:
            limit(broker, value=1.0)
            client = await broker.connect()
            told = await client.ask(produced(OVER_BYTES), ProduceResponse, 9)
            assert told.throttle_time_ms > 60_000
            assert broker.quotas.metrics.connections == 1
            # The broker does not read, so it does not see the client leave. It closes the
            # connection itself.
            await broker.server.abort()
            assert broker.quotas.metrics.connections == 0

    run(main())


def test_the_broker_ends_in_time_while_connections_are_muted() -> None:
    async def main() -> None:
        async with serving(Starts().handlers(), Still()) as broker:
            limit(broker, value=1.0)
            client = await broker.connect()
            await client.ask(produced(OVER_BYTES), ProduceResponse, 9)
            client.send(beat(1), 4)
            await broker.server.close()
            assert await client.closed()

    run(main())


class Busy(Still):
    """A clock that moves when a handler works."""

    now = 1000.0

    def monotonic(self) -> float:
        return self.now


def test_the_time_of_requests_is_charged_and_the_answer_tells_the_wait() -> None:
    async def main() -> None:
        clock = Busy()

        async def heartbeat(_b: Any, _r: Any, _c: RequestContext) -> HeartbeatResponse:
            await asyncio.sleep(0)
            clock.now += 1.2
            return HeartbeatResponse()

        async with serving({ApiKey.HEARTBEAT: heartbeat}, clock) as broker:
            limit(broker, "request_percentage", 10.0)
            client = await broker.connect()
            told = await client.ask(beat(1), HeartbeatResponse, 4)
            # 120 percent seconds are used, and 100 are free. Without the bound the wait would be
            # two seconds.
            assert told.throttle_time_ms == 1000

    run(main())


MARKERS = WriteTxnMarkersRequest(
    markers=[
        WritableTxnMarker(topics=[WritableTxnMarkerTopic(name="t", partition_indexes=[0])]),
    ]
)


@pytest.mark.parametrize(
    ("code", "is_muted"),
    [
        (ErrorCode.NONE, False),
        (ErrorCode.NOT_LEADER_OR_FOLLOWER, False),
        (ErrorCode.CLUSTER_AUTHORIZATION_FAILED, True),
        (None, True),
    ],
)
def test_a_client_that_sends_requests_of_brokers_has_its_quota_as_always(
    code: ErrorCode | None, is_muted: bool
) -> None:
    """Brokers have none. A client that is refused, or that asks for nothing, is no broker."""

    async def main() -> None:
        clock = Busy()

        async def mark(_b: Any, request: Any, _c: RequestContext) -> Response | None:
            clock.now += 1.2
            if code is None:
                return WriteTxnMarkersResponse()
            return error_response(request, 1, code, "")

        async with serving({ApiKey.WRITE_TXN_MARKERS: mark}, clock) as broker:
            limit(broker, "request_percentage", 10.0)
            client = await broker.connect()
            request = WriteTxnMarkersRequest() if code is None else MARKERS
            await client.ask(request, WriteTxnMarkersResponse, 1)
            assert broker.quotas.metrics.connections == is_muted

    run(main())
