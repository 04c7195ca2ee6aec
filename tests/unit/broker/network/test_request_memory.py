"""The accounting of the memory of requests and answers: which connection waits, and how long."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.unit.broker.network.connection_world import (
    REQUEST_BYTES_MAX,
    feed,
    frame,
    new_connection,
    produce_frame,
    taken_by,
)
from tidelog.broker.fairness.client_memory import LARGE_BYTES, AnswerMemory, RequestMemory
from tidelog.protocol.schemas.produce import PartitionProduceData, ProduceRequest, TopicProduceData


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
    # The answer waits for the one before it.
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


def test_connections_wait_for_memory_in_turn() -> None:
    memory: RequestMemory[str] = RequestMemory(100)
    memory.received(100, 1)
    assert not memory.reserve("b", 0, 0)
    assert not memory.reserve("c", 0, 0)
    assert memory.next_reader() is None
    assert memory.waiting == 2
    memory.answered(100)
    assert memory.next_reader() == "b"
    assert memory.next_reader() == "c"
    assert memory.next_reader() is None


def test_a_connection_that_is_gone_waits_no_more() -> None:
    memory: RequestMemory[str] = RequestMemory(10)
    memory.received(10, 1)
    memory.reserve("b", 0, 0)
    memory.reserve("c", 0, 0)
    memory.withdraw("b")
    memory.answered(10)
    assert memory.next_reader() == "c"


def test_a_reserved_request_counts_whole_and_always_continues() -> None:
    memory: RequestMemory[str] = RequestMemory(100)
    memory.received(10, 0)
    assert memory.reserve("a", 90, 10)
    assert memory.bytes_held == 90
    memory.received(10, 0)
    assert not memory.reserve("b", 50, 10)
    memory.completed()
    assert memory.bytes_held == 100
    # Only a begun request can become complete and be answered, so one reader may always go on.
    assert memory.next_reader() == "b"
    assert memory.reserve("b", 50, 10)
    assert not memory.reserve("idle", 0, 0)
    memory.answered(90)
    assert memory.next_reader() == "idle"


def test_small_requests_do_not_wait_for_large_or_large_for_very_large_requests() -> None:
    memory: RequestMemory[str] = RequestMemory(64 * MIB)
    assert memory.reserve("very large", 100 * MIB, 0)
    assert not memory.reserve("another", 9 * MIB, 0)
    memory.abandoned(100 * MIB, reserved=True)
    assert memory.next_reader() == "another"
    assert memory.reserve("another", 9 * MIB, 0)
    assert not memory.reserve("very large", 100 * MIB, 0)
    for number in range(4):
        assert memory.reserve(f"large {number}", 5 * MIB, 0)
    assert not memory.reserve("large 4", 5 * MIB, 0)
    assert memory.reserve("small", LARGE_BYTES, 0)
    assert memory.reserve("idle", 0, 0)
    # A large request that ends makes room for a large one, but not for a very large one.
    memory.completed()
    memory.answered(5 * MIB)
    assert memory.next_reader() == "large 4"
    assert memory.next_reader() is None


def test_the_wait_of_the_first_waiting_connection_is_measured() -> None:
    memory: RequestMemory[str] = RequestMemory(10)
    memory.received(10, 1)
    assert memory.waited_seconds(5.0) == 0
    memory.reserve("b", 0, 0)
    memory.reserve("c", 0, 0)
    assert memory.waited_seconds(6.0) == 0
    memory.reserve("b", 0, 0)
    assert memory.waited_seconds(8.0) == 2
    memory.withdraw("b")
    assert memory.waited_seconds(9.0) == 0
    assert memory.waited_seconds(9.5) == 0.5


def test_no_limit_is_no_limit() -> None:
    memory: RequestMemory[str] = RequestMemory(-1)
    memory.received(2**40, 1)
    assert memory.reserve("a", 2**40, 0)


MIB = 1 << 20
READ_BYTES_MAX = 30
FRAME_BYTES_MAX = 50
MEMORY_BYTES = 40


class MemoryMachine(RuleBasedStateMachine):
    """Clients send requests piece by piece, and a connection asks for memory before it reads. No
    connection may stay blocked for ever, and the held memory stays bounded."""

    def __init__(self) -> None:
        super().__init__()
        self.memory: RequestMemory[int] = RequestMemory(MEMORY_BYTES)
        self.reading = dict.fromkeys(range(4), True)
        self.part = dict.fromkeys(self.reading, 0)
        self.size = dict.fromkeys(self.reading, 0)
        self.reserved = dict.fromkeys(self.reading, False)
        self.serving: list[int] = []

    def update(self, client: int) -> None:
        if not self.reserved[client]:
            size = self.size[client]
            self.reading[client] = self.memory.reserve(client, size, self.part[client])
            self.reserved[client] = self.reading[client] and size > 0

    def resume_waiting(self) -> None:
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
        if not self.reserved[client]:
            self.memory.received(came, int(complete))
        elif complete:
            self.memory.completed()
        if complete:
            self.serving.append(self.size[client])
            self.size[client] = self.part[client] = 0
            self.reserved[client] = False
        self.update(client)

    @precondition(lambda self: self.serving)
    @rule(position=st.integers(0, 100))
    def a_request_is_answered(self, position: int) -> None:
        self.memory.answered(self.serving.pop(position % len(self.serving)))
        self.resume_waiting()

    @rule(client=st.integers(0, 3))
    def a_connection_is_replaced(self, client: int) -> None:
        reserved = self.reserved[client]
        size = self.size[client] if reserved else self.part[client]
        self.memory.abandoned(size, reserved=reserved)
        self.memory.withdraw(client)
        self.size[client] = self.part[client] = 0
        self.reserved[client] = False
        self.resume_waiting()
        self.update(client)

    @invariant()
    def the_sums_are_right(self) -> None:
        held = [(self.size if self.reserved[each] else self.part)[each] for each in self.part]
        assert self.memory.bytes_held == sum(self.serving) + sum(held)
        assert self.memory.requests == len(self.serving)

    @invariant()
    def held_memory_is_bounded(self) -> None:
        reads = READ_BYTES_MAX * len(self.reading)
        assert self.memory.bytes_held <= MEMORY_BYTES + FRAME_BYTES_MAX + reads

    @invariant()
    def held_memory_can_always_be_given_back(self) -> None:
        """A client can always give memory back, even if every idle client stays silent."""
        assert self.serving or any(self.reserved.values()) or all(self.reading.values())


TestMemory = MemoryMachine.TestCase
