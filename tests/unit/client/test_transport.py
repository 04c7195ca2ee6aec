"""One connection over a network with faults, in virtual time."""

from __future__ import annotations

import asyncio

import pytest

from tests.unit.client.scripted_broker import ScriptedBroker
from tests.unit.client.simulated import World, play
from tidelog.client.errors import NoCommonVersion, RequestFailed, RequestOutcome, RequestRefused
from tidelog.client.security import ClientSecurity, Login
from tidelog.client.settings import ClientSettings
from tidelog.client.transport import BrokerConnection
from tidelog.errors import InvalidConfiguration
from tidelog.network import SocketNetwork
from tidelog.protocol.api import ApiKey
from tidelog.protocol.errors import UnencodableMessage
from tidelog.protocol.frames import new_scratch
from tidelog.protocol.headers import encode_response
from tidelog.protocol.schemas.cluster.api_versions import ApiVersionsRequest, ApiVersionsResponse
from tidelog.protocol.schemas.cluster.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
)
from tidelog.protocol.schemas.fetch import (
    FetchablePartitionResponse,
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
)
from tidelog.protocol.schemas.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from tidelog.protocol.schemas.security.sasl import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from tidelog.protocol.schemas.transactions import EndTxnRequest
from tidelog.security.security_protocol import SecurityProtocol

HOST = "broker-host"
LIFETIME_MS = 10_000


def _ask(name: str) -> MetadataRequest:
    return MetadataRequest(topics=[MetadataRequestTopic(name=name)])


def _echo(request: MetadataRequest) -> MetadataResponse:
    """A broker that answers with the requested name."""
    assert request.topics is not None
    return MetadataResponse(cluster_id=request.topics[0].name)


async def _broker(world: World) -> ScriptedBroker:
    broker = await world.broker(HOST)
    broker.on(MetadataRequest, _echo)
    return broker


@pytest.mark.parametrize("seed", range(5))
def test_each_of_many_concurrent_requests_gets_its_own_answer(seed: int) -> None:
    async def story(world: World) -> None:
        broker = await _broker(world)
        connection = await world.connect(broker)
        names = [f"topic-{number}" * (1 + number * 20) for number in range(60)]
        answers = await asyncio.gather(*(connection.request(_ask(name)) for name in names))
        assert [answer.cluster_id for answer in answers] == names
        await connection.close()

    play(story, seed)


def test_no_more_than_the_limit_is_outstanding() -> None:
    async def story(world: World) -> None:
        broker = await _broker(world)
        connection = await world.connect(broker, ClientSettings(outstanding_max=3))
        broker.holding = True
        requests = [asyncio.ensure_future(connection.request(_ask(str(n)))) for n in range(8)]
        await asyncio.sleep(5)
        assert len(broker.seen(MetadataRequest)) == 3
        broker.release()
        assert [answer.cluster_id for answer in await asyncio.gather(*requests)] == list("01234567")
        await connection.close()

    play(story)


def test_a_lost_connection_fails_sent_and_unsent_requests_differently() -> None:
    async def story(world: World) -> None:
        broker = await _broker(world)
        connection = await world.connect(broker, ClientSettings(outstanding_max=1))
        broker.holding = True
        tasks = []
        for number in range(3):
            tasks.append(asyncio.ensure_future(connection.request(_ask(str(number)))))
            await asyncio.sleep(0.01)
        await broker.stop()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        failures = [result for result in results if isinstance(result, RequestFailed)]
        assert [failure.outcome for failure in failures] == [
            RequestOutcome.UNKNOWN,
            RequestOutcome.NOT_APPLIED,
            RequestOutcome.NOT_APPLIED,
        ]
        assert f"MetadataRequest to {HOST}:" in str(failures[0])
        assert "may or may not have been applied" in str(failures[0])
        assert not connection.is_open
        with pytest.raises(RequestFailed) as caught:
            await connection.request(_ask("later"))
        assert caught.value.outcome is RequestOutcome.NOT_APPLIED

    play(story)


def test_a_broker_that_does_not_answer_is_given_up_in_time() -> None:
    async def story(world: World) -> None:
        broker = await _broker(world)
        settings = ClientSettings(outstanding_max=1, request_timeout_ms=2000)
        connection = await world.connect(broker, settings)
        broker.on(MetadataRequest, lambda request: None)
        started = world.loop.time()
        first = asyncio.ensure_future(connection.request(_ask("first")))
        await asyncio.sleep(0.01)
        queued = asyncio.ensure_future(connection.request(_ask("queued"), timeout_ms=1000))
        behind = asyncio.ensure_future(connection.request(_ask("behind"), timeout_ms=9000))
        with pytest.raises(RequestFailed, match="no answer within 1000 ms") as caught:
            await queued
        assert caught.value.outcome is RequestOutcome.NOT_APPLIED
        with pytest.raises(RequestFailed, match="no answer within 2000 ms") as caught:
            await first
        assert caught.value.outcome is RequestOutcome.UNKNOWN
        with pytest.raises(RequestFailed, match="no answer within 2000 ms") as caught:
            await behind
        assert caught.value.outcome is RequestOutcome.NOT_APPLIED
        assert 2.0 <= world.loop.time() - started < 2.1
        assert len(broker.seen(MetadataRequest)) == 1
        assert not connection.is_open

    play(story)


def test_a_cancelled_request_does_not_disturb_the_next() -> None:
    async def story(world: World) -> None:
        broker = await _broker(world)
        connection = await world.connect(broker)
        broker.holding = True
        cancelled = asyncio.ensure_future(connection.request(_ask("cancelled")))
        kept = asyncio.ensure_future(connection.request(_ask("kept")))
        await asyncio.sleep(1)
        cancelled.cancel()
        await asyncio.wait([cancelled])
        broker.release()
        assert (await kept).cluster_id == "kept"
        assert (await connection.request(_ask("next"))).cluster_id == "next"
        await connection.close()

    play(story)


def test_a_refused_connection() -> None:
    async def story(world: World) -> None:
        with pytest.raises(RequestFailed, match="connecting to nowhere:9092") as caught:
            await BrokerConnection.open(
                world.client_network, ("nowhere", 9092), ClientSettings(), new_scratch()
            )
        assert caught.value.outcome is RequestOutcome.NOT_APPLIED

    play(story)


@pytest.mark.parametrize("host", ["broker..example", f"{'b' * 64}.example"])
def test_a_name_that_is_no_host_name_fails_like_any_other_address(host: str) -> None:
    """A broker may advertise it. Python's own error ended each broker that watched that one."""

    async def story() -> None:
        with pytest.raises(RequestFailed) as failed:
            await BrokerConnection.open(
                SocketNetwork(), (host, 9092), ClientSettings(), new_scratch()
            )
        assert failed.value.outcome is RequestOutcome.NOT_APPLIED

    asyncio.run(story())


def test_a_host_that_cannot_be_reached_takes_no_longer_than_the_timeout() -> None:
    async def story(world: World) -> None:
        broker = await _broker(world)
        world.network.partition("client-host", HOST)
        started = world.loop.time()
        with pytest.raises(RequestFailed, match="no connection within 3000 ms") as caught:
            await world.connect(broker, ClientSettings(connect_timeout_ms=3000))
        assert caught.value.outcome is RequestOutcome.NOT_APPLIED
        assert 3.0 <= world.loop.time() - started < 3.1

    play(story)


def test_a_broker_that_accepts_and_says_nothing_is_not_a_connection() -> None:
    async def story(world: World) -> None:
        broker = await _broker(world)
        broker.on(ApiVersionsRequest, lambda request: None)
        with pytest.raises(RequestFailed, match="no connection within 3000 ms"):
            await world.connect(broker, ClientSettings(connect_timeout_ms=3000))
        await asyncio.sleep(1)
        assert broker.connections[0].transport.is_closing()

    play(story)


def test_an_older_broker_is_asked_again_in_its_own_version() -> None:
    async def story(world: World) -> None:
        broker = await _broker(world)
        broker.versions[ApiKey.API_VERSIONS] = (0, 2)
        broker.versions[ApiKey.METADATA] = (0, 5)
        connection = await world.connect(broker)
        assert broker.headers[-1].api_version == 2
        await connection.request(_ask("old"))
        assert broker.headers[-1].api_version == 5
        assert broker.headers[-1].client_id == "tidelog"
        await connection.close()

    play(story)


def test_a_broker_that_refuses_to_say_its_versions() -> None:
    async def story(world: World) -> None:
        broker = await _broker(world)
        broker.on(ApiVersionsRequest, lambda request: ApiVersionsResponse(error_code=58))
        with pytest.raises(RequestRefused, match="SASL_AUTHENTICATION_FAILED"):
            await world.connect(broker)

    play(story)


def test_a_request_that_the_broker_does_not_offer_is_not_sent() -> None:
    async def story(world: World) -> None:
        broker = await _broker(world)
        del broker.versions[ApiKey.END_TXN]
        connection = await world.connect(broker)
        before = len(broker.requests)
        with pytest.raises(NoCommonVersion, match="does not offer EndTxnRequest"):
            await connection.request(EndTxnRequest())
        with pytest.raises(UnencodableMessage):
            await connection.request(MetadataRequest(topics=None), version=0)
        assert (await connection.request(_ask("still fine"))).cluster_id == "still fine"
        assert len(broker.requests) == before + 1
        await connection.close()

    play(story)


_WRONG_ID = b"".join(encode_response(MetadataResponse(), 13, 9999))


@pytest.mark.parametrize(
    ("garbage", "why"),
    [
        (b"\xff\xff\xff\xff", "size of -1"),
        (b"\x7f\0\0\0", "exceeds response_bytes_max"),
        (b"\0\0\0\x05\0\0\0\x01\0", "MetadataResponse version 13"),
        (_WRONG_ID, "response 9999 comes where 1 is due"),
    ],
)
def test_garbage_from_the_broker_ends_the_connection(garbage: bytes, why: str) -> None:
    async def story(world: World) -> None:
        broker = await _broker(world)
        connection = await world.connect(broker)
        broker.on(MetadataRequest, lambda request: garbage)
        with pytest.raises(RequestFailed, match=why) as caught:
            await connection.request(_ask("x"))
        assert caught.value.outcome is RequestOutcome.UNKNOWN
        assert not connection.is_open

    play(story)


def test_produce_without_acks_is_sent_and_not_waited_for() -> None:
    async def story(world: World) -> None:
        broker = await _broker(world)
        broker.on(ProduceRequest, lambda request: None)
        connection = await world.connect(broker)
        await connection.send(ProduceRequest(acks=0))
        assert (await connection.request(_ask("after"))).cluster_id == "after"
        assert len(broker.seen(ProduceRequest)) == 1
        with pytest.raises(TypeError, match="use send"):
            await connection.request(ProduceRequest(acks=0))
        await connection.close()

    play(story)


def test_a_full_transport_holds_requests_back_and_sends_them_later() -> None:
    async def story(world: World) -> None:
        broker = await _broker(world)
        broker.on(ProduceRequest, lambda request: ProduceResponse())
        connection = await world.connect(broker, ClientSettings(outstanding_max=100))
        world.network.partition("client-host", HOST)
        data = PartitionProduceData(records=b"r" * 300_000)
        request = ProduceRequest(
            acks=-1, topic_data=[TopicProduceData(name="t", partition_data=[data])]
        )
        sends = [asyncio.ensure_future(connection.request(request)) for _ in range(20)]
        await asyncio.sleep(1)
        assert broker.seen(ProduceRequest) == []
        world.network.heal()
        await asyncio.gather(*sends)
        assert len(broker.seen(ProduceRequest)) == 20
        await connection.close()

    play(story)


def test_closing_fails_waiting_requests() -> None:
    async def story(world: World) -> None:
        broker = await _broker(world)
        connection = await world.connect(broker)
        broker.holding = True
        waiting = asyncio.ensure_future(connection.request(_ask("x")))
        await asyncio.sleep(1)
        await connection.close()
        with pytest.raises(RequestFailed, match="the client closed") as caught:
            await waiting
        assert caught.value.outcome is RequestOutcome.UNKNOWN
        await connection.close()
        await asyncio.sleep(1)
        assert broker.connections[0].transport.is_closing()

    play(story)


def test_large_answers_over_real_sockets() -> None:
    async def story() -> None:
        records = bytes(range(256)) * 8192
        broker = ScriptedBroker()
        await broker.listen(SocketNetwork())
        partition = FetchablePartitionResponse(records=[records[:1000], records[1000:]])
        response = FetchResponse(responses=[FetchableTopicResponse(partitions=[partition])])
        broker.on(FetchRequest, lambda request: response)
        connection = await BrokerConnection.open(
            SocketNetwork(), broker.address, ClientSettings(), new_scratch()
        )
        answers = await asyncio.gather(*(connection.request(FetchRequest()) for _ in range(4)))
        for answer in answers:
            assert answer.responses[0].partitions[0].records == records
        await connection.close()
        await broker.stop()

    asyncio.run(story())


async def _closed_broker(world: World) -> ScriptedBroker:
    """A broker that accepts every login, for a limited time."""
    broker = await _broker(world)
    broker.on(SaslHandshakeRequest, lambda _: SaslHandshakeResponse(mechanisms=["PLAIN"]))
    broker.on(
        SaslAuthenticateRequest, lambda _: SaslAuthenticateResponse(session_lifetime_ms=LIFETIME_MS)
    )
    return broker


class Logins:
    """A login that changes."""

    def __init__(self) -> None:
        self.now = Login("alice", "first")
        self.failure: InvalidConfiguration | None = None

    @property
    def settings(self) -> ClientSettings:
        protocol = SecurityProtocol.SASL_PLAINTEXT
        return ClientSettings(security=ClientSecurity(protocol, None, "PLAIN", self._give))

    def _give(self) -> Login:
        if self.failure is not None:
            raise self.failure
        return self.now


def test_a_renewal_takes_the_password_of_the_time() -> None:
    async def story(world: World) -> None:
        broker, logins = await _closed_broker(world), Logins()
        connection = await world.connect(broker, logins.settings)
        logins.now = Login("alice", "second")
        await asyncio.sleep(LIFETIME_MS / 1000)
        sent = [bytes(each.auth_bytes) for each in broker.seen(SaslAuthenticateRequest)]
        assert sent == [b"\0alice\0first", b"\0alice\0second"]
        assert connection.is_open
        await connection.close()

    play(story)


def test_a_connection_of_another_login_answers_its_requests_and_closes() -> None:
    async def story(world: World) -> None:
        broker, logins = await _closed_broker(world), Logins()
        connection = await world.connect(broker, logins.settings)
        broker.holding = True
        asked = asyncio.ensure_future(connection.request(_ask("asked")))
        await asyncio.sleep(0.01)
        logins.now = Login("bob", "second")
        await asyncio.sleep(LIFETIME_MS / 1000)
        assert not connection.is_open, "the next request goes over another connection"
        assert not asked.done()
        broker.release()
        assert (await asked).cluster_id == "asked"
        await connection.lost()
        assert len(broker.seen(SaslAuthenticateRequest)) == 1, "a renewal would be refused"
        with pytest.raises(RequestFailed, match="login has changed") as caught:
            await connection.request(_ask("later"))
        assert caught.value.outcome is RequestOutcome.NOT_APPLIED

    play(story)


def test_an_unreadable_login_is_told_and_no_connection_stays() -> None:
    async def story(world: World) -> None:
        broker, logins = await _closed_broker(world), Logins()
        connection = await world.connect(broker, logins.settings)
        logins.failure = InvalidConfiguration("secrets: cannot be read")
        await asyncio.sleep(LIFETIME_MS / 1000)
        assert not connection.is_open
        with pytest.raises(RequestRefused, match="secrets: cannot be read"):
            await world.connect(broker, logins.settings)

    play(story)
