"""Any sequence of requests, answers and faults on a connection keeps its promises."""

from __future__ import annotations

from collections.abc import Callable

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

from tests.unit.broker.network.connection_world import (
    REQUESTS_MAX,
    feed,
    fetch_frame,
    future_versions_frame,
    heartbeat_frame,
    joined,
    metadata_frame,
    new_connection,
    produce_frame,
)
from tidelog.broker.dispatch.request_order import SIDE_BY_SIDE
from tidelog.broker.fairness.client_memory import RequestMemory
from tidelog.broker.handlers.cluster.versions import answer_api_versions
from tidelog.broker.handlers.request_context import CloseConnection
from tidelog.broker.network.connection import ServedConnection, TakenRequest
from tidelog.protocol.api import ApiKey
from tidelog.protocol.schemas.cluster.api_versions import ApiVersionsRequest, ApiVersionsResponse
from tidelog.protocol.wire import Buffer

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
    def records_without_an_answer_become_durable(self) -> None:
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
    def sent_bytes_are_a_prefix_of_the_owed_bytes(self) -> None:
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
