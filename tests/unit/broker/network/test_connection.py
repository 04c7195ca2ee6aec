"""The pure connection: the order of answers, the frames that it reads, the frames that it
refuses."""

from __future__ import annotations

import pytest

from tests.unit.broker.loopback import dispatcher_of
from tests.unit.broker.network.connection_world import (
    REQUESTS_MAX,
    feed,
    fetch_frame,
    frame,
    future_versions_frame,
    heartbeat_frame,
    joined,
    metadata_frame,
    never,
    new_connection,
    new_dispatcher,
    produce_frame,
    taken_by,
)
from tidelog.broker.fairness.client_memory import RequestMemory
from tidelog.broker.handlers.request_context import CloseConnection, RequestContext
from tidelog.broker.network.connection import ServedConnection
from tidelog.broker.telemetry.metrics import BrokerMetrics
from tidelog.protocol.api import ApiKey
from tidelog.protocol.headers import decode_correlation_id
from tidelog.protocol.schemas.cluster.metadata import MetadataRequest
from tidelog.protocol.schemas.produce import ProduceRequest
from tidelog.security.principal import Principal


def test_answers_leave_in_the_order_of_the_requests() -> None:
    connection = new_connection()
    feed(connection, heartbeat_frame(1), heartbeat_frame(2), heartbeat_frame(3))
    first, second, third = (taken_by(connection) for _ in range(3))
    assert connection.answer(third, [b"3"]) == []
    assert connection.answer(first, [b"1"]) == [b"1"]
    assert connection.unfinished
    assert connection.answer(second, [b"2a", b"2b"]) == [b"2a", b"2b", b"3"]
    assert not connection.unfinished


def test_a_request_without_an_answer_holds_up_no_other() -> None:
    """A Produce request with acks=0."""
    connection = new_connection()
    feed(connection, frame(ProduceRequest(acks=0), 9), metadata_frame())
    produce, metadata = taken_by(connection), taken_by(connection)
    assert connection.answer(metadata, [b"metadata"]) == []
    assert connection.answer(produce, None) == [b"metadata"]


def test_a_handler_sees_the_client() -> None:
    connection = new_connection()
    feed(connection, metadata_frame(77))
    opened = taken_by(connection).opened
    assert opened is not None
    assert opened.route.name == "Metadata"
    assert opened.message == MetadataRequest(topics=[])
    assert opened.context == RequestContext(8, 77, "c", "1.2.3.4", 1)


def test_reading_stops_at_the_limit_of_requests_and_goes_on_below_the_limit() -> None:
    connection = new_connection()
    feed(connection, *(heartbeat_frame(number) for number in range(REQUESTS_MAX + 2)))
    taken = [taken_by(connection) for _ in range(REQUESTS_MAX)]
    assert connection.next_request() is None
    assert not connection.wants_reading()
    connection.answer(taken[0], [b"0"])
    fourth = taken_by(connection)
    assert connection.next_request() is None
    assert not connection.wants_reading()
    for each in (*taken[1:], fourth):
        connection.answer(each, [b"x"])
    taken_by(connection)
    assert connection.wants_reading()


def test_an_answered_request_counts_while_an_earlier_one_holds_its_answer() -> None:
    connection = new_connection()
    feed(connection, *(heartbeat_frame(number) for number in range(REQUESTS_MAX + 1)))
    taken = [taken_by(connection) for _ in range(REQUESTS_MAX)]
    connection.answer(taken[1], [b"large"])
    connection.answer(taken[2], [b"large"])
    assert connection.next_request() is None


def test_nothing_is_served_behind_a_fetch() -> None:
    """So the broker holds at most one fetch's answer for a client that does not read."""
    connection = new_connection()
    feed(connection, fetch_frame())
    fetch = taken_by(connection)
    assert fetch.api_key == ApiKey.FETCH
    # Otherwise the server would not notice that the client hangs up.
    assert connection.wants_reading()
    feed(connection, fetch_frame(), metadata_frame())
    assert connection.next_request() is None
    assert not connection.wants_reading()
    connection.answer(fetch, [b"records"])
    assert taken_by(connection).api_key == ApiKey.FETCH
    assert connection.next_request() is None


def test_a_fetch_begins_when_earlier_produces_are_answered() -> None:
    connection = new_connection()
    feed(connection, produce_frame(1), produce_frame(2), fetch_frame(3))
    first, second = taken_by(connection), taken_by(connection)
    assert connection.next_request() is None
    connection.answer(second, [b"2"])
    assert connection.next_request() is None
    connection.answer(first, [b"1"])
    assert taken_by(connection).api_key == ApiKey.FETCH


def test_a_request_behind_acks_0_begins_when_the_records_are_durable() -> None:
    """A Produce request with acks=0."""
    connection = new_connection()
    feed(connection, produce_frame(1), produce_frame(2), fetch_frame(3), fetch_frame(4))
    first, second = taken_by(connection), taken_by(connection)
    connection.answer(second, None)
    # The other connection's records are not appended yet.
    assert not connection.must_settle()
    connection.answer(first, None)
    assert connection.next_request() is None
    assert connection.must_settle()
    connection.settled()
    fetch = taken_by(connection)
    connection.answer(fetch, [b"3"])
    assert not connection.must_settle()
    taken_by(connection)


def test_a_client_that_does_not_read_is_served_no_further() -> None:
    connection = new_connection()
    feed(connection, heartbeat_frame())
    connection.pause_writing()
    assert connection.next_request() is None
    assert not connection.wants_reading()
    connection.resume_writing()
    taken_by(connection)
    assert connection.wants_reading()


def test_a_draining_connection_answers_begun_requests_and_drops_the_rest() -> None:
    memory: RequestMemory[ServedConnection] = RequestMemory(-1)
    connection = new_connection(memory)
    feed(connection, heartbeat_frame(1), heartbeat_frame(2))
    first = taken_by(connection)
    connection.stop()
    assert connection.next_request() is None
    assert not connection.wants_reading()
    assert connection.unfinished
    assert connection.answer(first, [b"1"]) == [b"1"]
    assert not connection.unfinished
    assert memory.bytes_held == 0


def test_a_lost_connection_sends_nothing_and_gives_its_memory_back() -> None:
    memory: RequestMemory[ServedConnection] = RequestMemory(-1)
    connection = new_connection(memory)
    feed(connection, heartbeat_frame(1), heartbeat_frame(2))
    connection.received(7, ())
    first = taken_by(connection)
    connection.lost()
    assert memory.bytes_held == first.size
    assert connection.answer(first, [b"1"]) == []
    assert (memory.bytes_held, memory.requests) == (0, 0)
    assert not connection.wants_reading()


def test_an_api_versions_request_of_any_version_gets_an_answer() -> None:
    """KIP-511: the answer tells a newer client which versions exist."""
    connection = new_connection()
    feed(connection, future_versions_frame(9))
    taken = taken_by(connection)
    assert taken.opened is None
    assert taken.ready is not None
    answer = memoryview(joined(connection.answer(taken, taken.ready)))[4:]
    assert decode_correlation_id(answer) == 9
    assert bytes(answer[4:]).hex() == "0023" + "00000001" + "0012" + "0000" + "0004"


def test_bytes_too_many_are_ignored() -> None:
    """librdkafka 2.16 sends such a request for all topics: it writes the list's null as four
    bytes."""
    connection = new_connection()
    feed(
        connection,
        memoryview(bytes.fromhex("0003000d00000003000772646b61666b6100" + "00000000010000")),
    )
    opened = taken_by(connection).opened
    assert opened is not None
    assert opened.message == MetadataRequest(topics=None, allow_auto_topic_creation=False)


@pytest.mark.parametrize(
    ("damaged", "reason"),
    [
        (memoryview(b""), "malformed"),
        (memoryview(b"\x00\x03\x00"), "malformed"),
        (memoryview(b"\x7f\x00\x00\x00\x00\x00\x00\x00\xff\xff"), "unknown_api"),
        (memoryview(b"\x00\x0b\x00\x05\x00\x00\x00\x00\xff\xff"), "unknown_api"),
        (frame(MetadataRequest(topics=[]), 8)[:-1], "malformed"),
        (memoryview(b"\x00\x03\x00\x63\x00\x00\x00\x00\xff\xff\x00"), "unsupported_version"),
        (memoryview(b"\x00\x00\x00\x02\x00\x00\x00\x00\xff\xff\x00"), "unsupported_version"),
    ],
)
def test_an_unintelligible_request_closes_the_connection(damaged: memoryview, reason: str) -> None:
    memory: RequestMemory[ServedConnection] = RequestMemory(-1)
    connection = new_connection(memory)
    feed(connection, heartbeat_frame(1), damaged, heartbeat_frame(3))
    assert connection.answer(taken_by(connection), [b"1"]) == [b"1"]
    with pytest.raises(CloseConnection) as refusal:
        connection.next_request()
    assert refusal.value.reason == reason
    assert connection.next_request() is None
    connection.lost()
    assert memory.bytes_held == 0


def test_advertised_versions_are_served_and_produce_is_advertised_from_0() -> None:
    advertised = new_dispatcher().advertised
    listed = {each.api_key: (each.min_version, each.max_version) for each in advertised}
    assert listed == {0: (0, 13), 1: (4, 17), 3: (0, 13), 12: (0, 4), 18: (0, 4)}


def test_a_handler_without_versions_to_advertise_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    few = {ApiKey.API_VERSIONS: (0, 4)}
    monkeypatch.setattr("tidelog.broker.dispatch.dispatcher.ADVERTISED", few)
    with pytest.raises(ValueError, match="SaslHandshake"):
        dispatcher_of({ApiKey.SASL_HANDSHAKE: never}, BrokerMetrics())


def test_a_connection_whose_authentication_has_expired_serves_its_renewal_alone() -> None:
    connection = new_connection()
    connection.expire()
    feed(connection, metadata_frame())
    with pytest.raises(CloseConnection, match="does not authenticate again") as refused:
        connection.next_request()
    assert refused.value.reason == "session_expired"


def test_a_renewed_connection_serves_everything_as_its_client() -> None:
    connection = new_connection()
    connection.expire()
    connection.renew(connection.client._replace(principal=Principal("alice", ("ops",))))
    feed(connection, metadata_frame())
    opened = taken_by(connection).opened
    assert opened is not None
    assert opened.context.principal == Principal("alice", ("ops",))
