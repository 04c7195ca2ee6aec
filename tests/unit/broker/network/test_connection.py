"""The pure connection and the accounting of its memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    precondition,
    rule,
)

from tests.unit.broker.loopback import dispatcher_of
from tidelog.broker.dispatch.dispatcher import Dispatcher
from tidelog.broker.dispatch.request_order import SIDE_BY_SIDE
from tidelog.broker.fairness.answer_memory import AnswerMemory
from tidelog.broker.fairness.request_memory import LARGE_BYTES, RequestMemory
from tidelog.broker.handlers.cluster.versions import answer_api_versions
from tidelog.broker.handlers.request_context import CloseConnection, RequestContext
from tidelog.broker.network.connection import ServedConnection, TakenRequest
from tidelog.broker.telemetry.metrics import BrokerMetrics
from tidelog.protocol.api import ApiKey
from tidelog.protocol.headers import decode_correlation_id, encode_request
from tidelog.protocol.message import Request, Response
from tidelog.protocol.schemas.api_versions import ApiVersionsRequest, ApiVersionsResponse
from tidelog.protocol.schemas.fetch import FetchRequest
from tidelog.protocol.schemas.groups import HeartbeatRequest
from tidelog.protocol.schemas.metadata import MetadataRequest
from tidelog.protocol.schemas.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
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
        connection_id=1,
        client_host="1.2.3.4",
        requests_max=REQUESTS_MAX,
        request_bytes_max=REQUEST_BYTES_MAX,
        answer_bytes_max=ANSWER_BYTES_MAX,
    )


def frame(request: Request[Response], version: int, correlation_id: int = 0) -> memoryview:
    buffers = encode_request(request, version, correlation_id, "c")
    return memoryview(bytearray(b"".join(buffers)))[4:]


def future_versions_frame(correlation_id: int) -> memoryview:
    """ApiVersions in a version that nobody knows yet."""
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


def test_answers_leave_in_the_order_of_the_requests() -> None:
    connection = new_connection()
    feed(connection, heartbeat_frame(1), heartbeat_frame(2), heartbeat_frame(3))
    first, second, third = (taken_by(connection) for _ in range(3))
    assert connection.answer(third, [b"3"]) == []
    assert connection.answer(first, [b"1"]) == [b"1"]
    assert connection.unfinished
    assert connection.answer(second, [b"2a", b"2b"]) == [b"2a", b"2b", b"3"]
    assert not connection.unfinished


def test_a_request_without_an_answer_holds_up_nobody() -> None:
    """acks=0."""
    connection = new_connection()
    feed(connection, frame(ProduceRequest(acks=0), 9), metadata_frame())
    produce, metadata = taken_by(connection), taken_by(connection)
    assert connection.answer(metadata, [b"metadata"]) == []
    assert connection.answer(produce, None) == [b"metadata"]


def test_a_handler_sees_who_asked() -> None:
    connection = new_connection()
    feed(connection, metadata_frame(77))
    opened = taken_by(connection).opened
    assert opened is not None
    assert opened.route.name == "Metadata"
    assert opened.message == MetadataRequest(topics=[])
    assert opened.context == RequestContext(8, 77, "c", "1.2.3.4", 1)


def test_reading_stops_at_the_limit_of_requests_and_goes_on_below_it() -> None:
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
    """So a client that does not read cannot make the broker hold more than one fetch's answer."""
    connection = new_connection()
    feed(connection, fetch_frame())
    fetch = taken_by(connection)
    assert fetch.api_key == ApiKey.FETCH
    # Else nobody would notice that the client hangs up.
    assert connection.wants_reading()
    feed(connection, fetch_frame(), metadata_frame())
    assert connection.next_request() is None
    assert not connection.wants_reading()
    connection.answer(fetch, [b"records"])
    assert taken_by(connection).api_key == ApiKey.FETCH
    assert connection.next_request() is None


def test_a_request_begins_when_what_it_may_show_is_done() -> None:
    connection = new_connection()
    feed(connection, produce_frame(1), produce_frame(2), fetch_frame(3))
    first, second = taken_by(connection), taken_by(connection)
    assert connection.next_request() is None
    connection.answer(second, [b"2"])
    assert connection.next_request() is None
    connection.answer(first, [b"1"])
    assert taken_by(connection).api_key == ApiKey.FETCH


def test_it_begins_when_that_is_durable_where_it_had_no_answer() -> None:
    """acks=0."""
    connection = new_connection()
    feed(connection, produce_frame(1), produce_frame(2), fetch_frame(3), fetch_frame(4))
    first, second = taken_by(connection), taken_by(connection)
    connection.answer(second, None)
    # What the other one does is not appended yet.
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


def test_a_draining_connection_answers_what_it_serves_and_drops_the_rest() -> None:
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
    """KIP-511: a newer client learns from it which versions there are."""
    connection = new_connection()
    feed(connection, future_versions_frame(9))
    taken = taken_by(connection)
    assert taken.opened is None
    assert taken.ready is not None
    answer = memoryview(joined(connection.answer(taken, taken.ready)))[4:]
    assert decode_correlation_id(answer) == 9
    assert bytes(answer[4:]).hex() == "0023" + "00000001" + "0012" + "0000" + "0004"


def test_bytes_too_many_are_ignored() -> None:
    """What librdkafka 2.16 sends for all topics: the list's null is written as four bytes."""
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
def test_what_cannot_be_understood_closes_the_connection(damaged: memoryview, reason: str) -> None:
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


def test_what_is_advertised_is_what_is_served_and_produce_from_0_on() -> None:
    advertised = new_dispatcher().advertised
    listed = {each.api_key: (each.min_version, each.max_version) for each in advertised}
    assert listed == {0: (0, 13), 1: (4, 17), 3: (0, 13), 12: (0, 4), 18: (0, 4)}


def test_a_handler_without_versions_to_advertise_is_refused() -> None:
    with pytest.raises(ValueError, match="SaslHandshake"):
        dispatcher_of({ApiKey.SASL_HANDSHAKE: never}, BrokerMetrics())


def test_reading_stops_while_the_requests_of_a_connection_are_too_large() -> None:
    connection = new_connection()
    half = frame(ProduceRequest(acks=1, transactional_id="x" * (REQUEST_BYTES_MAX // 4)), 9)
    first, second = half, frame(ProduceRequest(acks=1, transactional_id="x" * 30_000), 9)
    feed(connection, *[first] * 2)
    held = [taken_by(connection), taken_by(connection)]
    assert connection.wants_reading()
    feed(connection, *[second] * 2)
    held.append(taken_by(connection))
    assert not connection.wants_reading()
    connection.answer(held[0], [])
    held.append(taken_by(connection))
    connection.answer(held[1], [])
    assert connection.wants_reading()


def test_a_single_request_larger_than_a_connection_may_have_is_served() -> None:
    connection = new_connection()
    size = 2 * REQUEST_BYTES_MAX
    large = frame(ProduceRequest(acks=1, topic_data=[data_of(bytes(size))]), 9)
    connection.received(1000, [], len(large) + 4)
    assert connection.wants_reading()
    connection.received(len(large) + 4 - 1000, [large])
    assert not connection.wants_reading()
    taken = taken_by(connection)
    connection.answer(taken, [])
    assert connection.wants_reading()


def data_of(records: bytes) -> TopicProduceData:
    return TopicProduceData(
        name="t", partition_data=[PartitionProduceData(index=0, records=records)]
    )


def test_answers_that_are_not_taken_count_and_hold_up_their_connection() -> None:
    answers = AnswerMemory(10_000)
    connection = new_connection(answers=answers)
    feed(connection, *[produce_frame()] * 4)
    first, second = taken_by(connection), taken_by(connection)
    # It waits for the one before it.
    assert connection.answer(second, [bytes(600)]) == []
    assert answers.bytes_held == 600
    assert connection.waits
    assert len(connection.answer(first, [bytes(500)])) == 2
    assert answers.bytes_held == 0
    connection.unsent(1100)
    assert answers.bytes_held == 1100
    assert not connection.waits
    assert connection.next_request() is None
    connection.unsent(400)
    assert connection.waits
    assert answers.bytes_held == 400
    third = taken_by(connection)
    fourth = taken_by(connection)
    connection.answer(fourth, [bytes(300)])
    connection.lost()
    connection.unsent(0)
    assert connection.answer(third, [bytes(300)]) == []
    assert answers.bytes_held == 0


# --- memory ---


def test_connections_wait_for_memory_in_turn() -> None:
    memory: RequestMemory[str] = RequestMemory(100)
    memory.received(100, 1)
    assert not memory.admit("b", 0, 0)
    assert not memory.admit("c", 0, 0)
    assert memory.next_reader() is None
    assert memory.waiting == 2
    memory.answered(100)
    assert memory.next_reader() == "b"
    assert memory.next_reader() == "c"
    assert memory.next_reader() is None


def test_a_connection_that_is_gone_waits_no_more() -> None:
    memory: RequestMemory[str] = RequestMemory(10)
    memory.received(10, 1)
    memory.admit("b", 0, 0)
    memory.admit("c", 0, 0)
    memory.withdraw("b")
    memory.answered(10)
    assert memory.next_reader() == "c"


def test_what_is_admitted_counts_as_a_whole_and_goes_on_whatever_is_held() -> None:
    memory: RequestMemory[str] = RequestMemory(100)
    memory.received(10, 0)
    assert memory.admit("a", 90, 10)
    assert memory.bytes_held == 90
    memory.received(10, 0)
    assert not memory.admit("b", 50, 10)
    memory.completed()
    assert memory.bytes_held == 100
    # Only what is begun can become complete and be answered: so one may always go on.
    assert memory.next_reader() == "b"
    assert memory.admit("b", 50, 10)
    assert not memory.admit("idle", 0, 0)
    memory.answered(90)
    assert memory.next_reader() == "idle"


def test_small_requests_do_not_wait_for_large_ones_nor_these_for_very_large_ones() -> None:
    memory: RequestMemory[str] = RequestMemory(64 * MIB)
    assert memory.admit("very large", 100 * MIB, 0)
    assert not memory.admit("another", 9 * MIB, 0)
    memory.abandoned(100 * MIB, admitted=True)
    assert memory.next_reader() == "another"
    assert memory.admit("another", 9 * MIB, 0)
    assert not memory.admit("very large", 100 * MIB, 0)
    for number in range(4):
        assert memory.admit(f"large {number}", 5 * MIB, 0)
    assert not memory.admit("large 4", 5 * MIB, 0)
    assert memory.admit("small", LARGE_BYTES, 0)
    assert memory.admit("idle", 0, 0)
    # A large one that goes makes room for a large one, not for a very large one.
    memory.completed()
    memory.answered(5 * MIB)
    assert memory.next_reader() == "large 4"
    assert memory.next_reader() is None


def test_it_is_told_how_long_the_first_of_those_that_wait_has_waited() -> None:
    memory: RequestMemory[str] = RequestMemory(10)
    memory.received(10, 1)
    assert memory.waited_seconds(5.0) == 0
    memory.admit("b", 0, 0)
    memory.admit("c", 0, 0)
    assert memory.waited_seconds(6.0) == 0
    memory.admit("b", 0, 0)
    assert memory.waited_seconds(8.0) == 2
    memory.withdraw("b")
    assert memory.waited_seconds(9.0) == 0
    assert memory.waited_seconds(9.5) == 0.5


def test_no_limit_is_no_limit() -> None:
    memory: RequestMemory[str] = RequestMemory(-1)
    memory.received(2**40, 1)
    assert memory.admit("a", 2**40, 0)


MIB = 1 << 20
READ_BYTES_MAX = 30
FRAME_BYTES_MAX = 50
MEMORY_BYTES = 40


class MemoryMachine(RuleBasedStateMachine):
    """Clients send requests piece by piece; whoever wants to read asks first. Nothing may stay
    blocked for ever, and what is held stays bounded."""

    def __init__(self) -> None:
        super().__init__()
        self.memory: RequestMemory[int] = RequestMemory(MEMORY_BYTES)
        self.reading = dict.fromkeys(range(4), True)
        self.part = dict.fromkeys(self.reading, 0)
        self.size = dict.fromkeys(self.reading, 0)
        self.admitted = dict.fromkeys(self.reading, False)
        self.serving: list[int] = []

    def update(self, client: int) -> None:
        if not self.admitted[client]:
            size = self.size[client]
            self.reading[client] = self.memory.admit(client, size, self.part[client])
            self.admitted[client] = self.reading[client] and size > 0

    def relieve(self) -> None:
        while (client := self.memory.next_reader()) is not None:
            self.update(client)
            assert self.reading[client]

    @rule(
        client=st.integers(0, 3),
        came=st.integers(1, READ_BYTES_MAX),
        size=st.integers(1, FRAME_BYTES_MAX),
    )
    def bytes_arrive(self, client: int, came: int, size: int) -> None:
        if not self.reading[client]:
            return
        if not self.size[client]:
            self.size[client] = size
        came = min(came, self.size[client] - self.part[client])
        self.part[client] += came
        complete = self.part[client] == self.size[client]
        if not self.admitted[client]:
            self.memory.received(came, int(complete))
        elif complete:
            self.memory.completed()
        if complete:
            self.serving.append(self.size[client])
            self.size[client] = self.part[client] = 0
            self.admitted[client] = False
        self.update(client)

    @precondition(lambda self: self.serving)
    @rule(position=st.integers(0, 100))
    def a_request_is_answered(self, position: int) -> None:
        self.memory.answered(self.serving.pop(position % len(self.serving)))
        self.relieve()

    @rule(client=st.integers(0, 3))
    def a_connection_is_replaced(self, client: int) -> None:
        admitted = self.admitted[client]
        size = self.size[client] if admitted else self.part[client]
        self.memory.abandoned(size, admitted=admitted)
        self.memory.withdraw(client)
        self.size[client] = self.part[client] = 0
        self.admitted[client] = False
        self.relieve()
        self.update(client)

    @invariant()
    def the_sums_are_right(self) -> None:
        held = [(self.size if self.admitted[each] else self.part)[each] for each in self.part]
        assert self.memory.bytes_held == sum(self.serving) + sum(held)
        assert self.memory.requests == len(self.serving)

    @invariant()
    def what_is_held_is_bounded(self) -> None:
        reads = READ_BYTES_MAX * len(self.reading)
        assert self.memory.bytes_held <= MEMORY_BYTES + FRAME_BYTES_MAX + reads

    @invariant()
    def somebody_can_always_give_memory_back(self) -> None:
        """Also if every idle client stays silent."""
        assert self.serving or any(self.admitted.values()) or all(self.reading.values())


TestMemory = MemoryMachine.TestCase


FRAMES = (heartbeat_frame, metadata_frame, produce_frame, fetch_frame, future_versions_frame)


class ConnectionMachine(RuleBasedStateMachine):
    """Frames, answers and write pauses in any order, against a plain list."""

    taken = Bundle("taken")

    def __init__(self) -> None:
        super().__init__()
        self.memory: RequestMemory[ServedConnection] = RequestMemory(-1)
        self.connection = new_connection(self.memory)
        self.sent: list[bytes] = []
        self.expected: list[bytes | None] = []
        self.received = 0
        self.in_service: list[int] = []
        self.unsettled = False
        self.writing = True

    @initialize()
    def start(self) -> None:
        assert self.connection.wants_reading()

    @rule(kinds=st.lists(st.sampled_from(FRAMES), max_size=5))
    def frames_arrive(self, kinds: list[Callable[[int], memoryview]]) -> None:
        frames = []
        for kind in kinds:
            self.received += 1
            frames.append(kind(self.received))
        feed(self.connection, *frames)

    @rule(target=taken)
    def requests_are_taken(self) -> object:
        started = []
        while (taken := self.connection.next_request()) is not None:
            assert self.writing
            position = len(self.expected)
            if taken.ready is not None:
                self.expected.append(joined(taken.ready))
                self.collect(self.connection.answer(taken, taken.ready))
                continue
            assert taken.opened is not None
            assert taken.opened.context.correlation_id == position + 1
            others = SIDE_BY_SIDE.get(taken.api_key, frozenset())
            assert others >= set(self.in_service)
            assert ApiKey.PRODUCE in others or not self.unsettled
            self.expected.append(f"answer {position}".encode())
            self.in_service.append(taken.api_key)
            started.append((position, taken))
        assert self.in_flight <= REQUESTS_MAX
        if self.writing and not self.in_flight and not self.connection.must_settle():
            assert len(self.expected) == self.received
        return multiple(*started)

    @rule(request=consumes(taken), answered=st.booleans())
    def a_request_ends(self, request: tuple[int, TakenRequest], answered: bool) -> None:
        position, taken = request
        self.in_service.remove(taken.api_key)
        if not answered:
            self.expected[position] = None
            self.unsettled = True
        answer = self.expected[position]
        self.collect(self.connection.answer(taken, None if answer is None else [answer]))

    @precondition(lambda self: self.connection.must_settle())
    @rule()
    def what_had_no_answer_is_durable(self) -> None:
        assert self.unsettled
        self.connection.settled()
        self.unsettled = False

    @rule(writing=st.booleans())
    def the_client_reads_or_not(self, writing: bool) -> None:
        self.writing = writing
        (self.connection.resume_writing if writing else self.connection.pause_writing)()

    @property
    def in_flight(self) -> int:
        return len(self.in_service)

    def collect(self, buffers: list[Buffer]) -> None:
        self.sent.extend(bytes(buffer) for buffer in buffers)

    @invariant()
    def what_was_sent_is_a_prefix_of_what_was_owed(self) -> None:
        owed = [answer for answer in self.expected if answer is not None]
        assert self.sent == owed[: len(self.sent)]

    @invariant()
    def all_is_sent_once_nothing_is_in_flight(self) -> None:
        if self.in_flight == 0:
            assert len(self.sent) == sum(answer is not None for answer in self.expected)
            assert self.memory.requests == self.received - len(self.expected)

    def teardown(self) -> None:
        self.connection.lost()
        assert self.memory.requests == self.in_flight


TestConnection = ConnectionMachine.TestCase


@given(data=st.binary(max_size=200), key=st.sampled_from([0, 1, 3, 18]), version=st.integers(0, 20))
def test_garbage_is_a_request_or_a_reason_to_close(data: bytes, key: int, version: int) -> None:
    connection = new_connection()
    header = key.to_bytes(2, "big") + version.to_bytes(2, "big") + bytes(4) + b"\xff\xff"
    for garbage in (data, header + data):
        feed(connection, memoryview(bytearray(garbage)))
        try:
            taken = connection.next_request()
        except CloseConnection as error:
            assert error.reason in ("malformed", "unknown_api", "unsupported_version")  # noqa: PT017
            connection.lost()
            connection = new_connection()
        else:
            assert taken is not None
            connection.answer(taken, None)


def test_the_answer_to_an_odd_client_name_is_an_error() -> None:
    odd = ApiVersionsRequest(client_software_name="a b", client_software_version="1")
    assert answer_api_versions([], odd, 3) == ApiVersionsResponse(error_code=42)
    assert answer_api_versions([], odd, 2).error_code == 0
