"""The pure connection against a scripted peer, frame by frame."""

from __future__ import annotations

import pytest

from tidelog.client.connection import ClientConnection
from tidelog.client.errors import NoCommonVersion, RequestOutcome, TooManyRequests
from tidelog.protocol.api import OWN_KEYS_FROM, register
from tidelog.protocol.errors import MalformedMessage, UnencodableMessage
from tidelog.protocol.fields import int32
from tidelog.protocol.headers import decode_request_header, encode_response
from tidelog.protocol.message import Request, Response
from tidelog.protocol.schemas.cluster.api_versions import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
)
from tidelog.protocol.schemas.groups import HeartbeatRequest, HeartbeatResponse
from tidelog.protocol.schemas.produce import ProduceRequest
from tidelog.protocol.wire import Buffer


def _connection(outstanding_max: int = 2, queued_max: int = 10) -> ClientConnection[str]:
    return ClientConnection("c", outstanding_max, queued_max)


def _submit(connection: ClientConnection[str], *tokens: str) -> None:
    for token in tokens:
        connection.submit(HeartbeatRequest(member_id=token), 4, token)


def _correlation_ids(buffers: list[Buffer]) -> list[int]:
    """The correlation ids of the requests in a stream."""
    stream = memoryview(b"".join(buffers))
    found = []
    while stream:
        size = int.from_bytes(stream[:4], "big")
        found.append(decode_request_header(stream[4 : 4 + size]).correlation_id)
        stream = stream[4 + size :]
    return found


def _answer(correlation_id: int, code: int = 0) -> memoryview:
    response = HeartbeatResponse(error_code=code)
    return memoryview(b"".join(encode_response(response, 4, correlation_id)))[4:]


def test_requests_go_out_while_there_is_room_and_are_answered_in_order() -> None:
    connection = _connection()
    _submit(connection, "a", "b", "c")
    assert _correlation_ids(connection.outgoing().buffers) == [0, 1]
    assert connection.outgoing().buffers == []
    assert connection.receive(_answer(0, code=25)) == ("a", HeartbeatResponse(error_code=25))
    assert _correlation_ids(connection.outgoing().buffers) == [2]
    assert [connection.receive(_answer(n)).token for n in (1, 2)] == ["b", "c"]


def test_nothing_goes_out_while_the_transport_is_full() -> None:
    connection = _connection()
    connection.pause()
    _submit(connection, "a")
    assert connection.outgoing().buffers == []
    connection.resume()
    assert _correlation_ids(connection.outgoing().buffers) == [0]


def test_the_end_tells_sent_requests_from_unsent_requests() -> None:
    connection = _connection()
    _submit(connection, "a", "b", "c")
    connection.outgoing()
    connection.receive(_answer(0))
    _submit(connection, "d")
    connection.outgoing()
    assert connection.end() == [
        ("b", RequestOutcome.UNKNOWN),
        ("c", RequestOutcome.UNKNOWN),
        ("d", RequestOutcome.NOT_APPLIED),
    ]
    assert connection.end() == []


def test_a_request_that_is_withdrawn_in_time_is_not_sent() -> None:
    connection = _connection(outstanding_max=1)
    _submit(connection, "a", "b", "c")
    connection.outgoing()
    assert connection.withdraw("b") is RequestOutcome.NOT_APPLIED
    assert connection.withdraw("a") is RequestOutcome.UNKNOWN
    # The answer is still due, and must not be taken for the answer of the next request.
    assert connection.receive(_answer(0)).token == "a"
    assert _correlation_ids(connection.outgoing().buffers) == [2]
    assert connection.receive(_answer(2)).token == "c"


def test_the_queue_has_a_limit() -> None:
    connection = _connection(queued_max=2)
    _submit(connection, "a", "b")
    with pytest.raises(TooManyRequests, match="2 requests"):
        _submit(connection, "c")
    connection.outgoing()
    _submit(connection, "c")


def test_a_request_that_cannot_be_encoded_leaves_no_gap() -> None:
    connection = _connection()
    with pytest.raises(UnencodableMessage):
        connection.submit(HeartbeatRequest(generation_id=2**40), 4, "bad")
    _submit(connection, "a")
    assert _correlation_ids(connection.outgoing().buffers) == [0]


def test_produce_without_acks_expects_no_answer() -> None:
    connection = _connection(outstanding_max=1)
    connection.submit(ProduceRequest(acks=0), 9, "silent")
    _submit(connection, "a")
    going = connection.outgoing()
    assert going.unanswered == ["silent"]
    assert _correlation_ids(going.buffers) == [0, 1]
    assert connection.receive(_answer(1)).token == "a"


@pytest.mark.parametrize(
    ("frame", "why"),
    [
        (_answer(1), "response 1 comes where 0 is due"),
        (memoryview(b"\0\0"), "2 bytes"),
        (memoryview(_answer(0))[:-1], "HeartbeatResponse version 4"),
        (memoryview(bytes(_answer(0)) + b"x"), "1 bytes that do not belong"),
    ],
)
def test_answers_that_make_no_sense_are_refused(frame: memoryview, why: str) -> None:
    connection = _connection()
    _submit(connection, "a", "b")
    connection.outgoing()
    with pytest.raises(MalformedMessage, match=why):
        connection.receive(frame)
    assert connection.end() == [("a", RequestOutcome.UNKNOWN), ("b", RequestOutcome.UNKNOWN)]


def test_an_answer_without_a_request_is_refused() -> None:
    with pytest.raises(MalformedMessage, match="without a request"):
        _connection().receive(_answer(0))


def test_a_refused_version_is_answered_in_version_0() -> None:
    connection = _connection()
    connection.submit(ApiVersionsRequest(), 4, "hello")
    connection.outgoing()
    refusal = ApiVersionsResponse(
        error_code=35, api_keys=[ApiVersion(api_key=18, min_version=0, max_version=2)]
    )
    frame = memoryview(b"".join(encode_response(refusal, 0, 0)))[4:]
    assert connection.receive(frame).response == refusal


def test_the_highest_common_version_is_taken() -> None:
    connection = _connection()
    key = HeartbeatRequest.API_KEY
    with pytest.raises(NoCommonVersion, match="does not offer HeartbeatRequest"):
        connection.highest_common_version(HeartbeatRequest)
    for offered, expected in ((range(4), 3), (range(2, 100), 4), (range(4, 5), 4)):
        connection.learn_versions({key: offered})
        assert connection.highest_common_version(HeartbeatRequest) == expected
    connection.learn_versions({key: range(5, 7)})
    with pytest.raises(NoCommonVersion, match="versions 5 to 6, this client speaks 0 to 4"):
        connection.highest_common_version(HeartbeatRequest)


def test_own_requests_need_not_be_advertised() -> None:
    class NudgeResponse(Response, api_key=OWN_KEYS_FROM + 99, versions=(0, 3), flexible=0):
        error_code: int = int32()

    class NudgeRequest(
        Request[NudgeResponse], api_key=OWN_KEYS_FROM + 99, versions=(0, 3), flexible=0
    ):
        number: int = int32()

    register(NudgeRequest, NudgeResponse)
    connection = _connection()
    version = connection.highest_common_version(NudgeRequest)
    assert version == 3
    connection.submit(NudgeRequest(number=1), version, "nudge")
    connection.outgoing()
    frame = memoryview(b"".join(encode_response(NudgeResponse(error_code=7), 3, 0)))[4:]
    assert connection.receive(frame).response == NudgeResponse(error_code=7)
