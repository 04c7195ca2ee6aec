"""Consume, transform, produce: the output equals the input after every interruption."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator

import confluent_kafka
import pytest

from tidelog.client.pool import CoordinatorKind
from tidelog.errors import InvalidConfiguration
from tidelog.protocol.schemas.groups import LeaveGroupMember, LeaveGroupRequest
from tidelog.sdk.admin import Admin
from tidelog.sdk.consumer import Consumer
from tidelog.sdk.errors import AbortableError, RetriableError
from tidelog.sdk.exactly_once import exactly_once
from tidelog.sdk.messages import Message, NewMessage
from tidelog.sdk.producer import Producer
from tidelog.testing.broker import Broker

COUNT = 60


class Worker:
    """One process of an application: a member of the group with a transactional id."""

    def __init__(
        self, broker: Broker, source: str, sink: str, name: str, **settings: object
    ) -> None:
        self.sink_topic = sink
        self.seen = 0
        self.fails_at: int | None = None
        self.consumer = Consumer(
            broker.bootstrap,
            source,
            "workers",
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            **settings,
        )
        # A busy machine does not end the transactions of these tests.
        self.producer = Producer(
            broker.bootstrap, transactional_id=name, transaction_timeout_ms=600_000
        )

    def transform(self, message: Message) -> list[NewMessage]:
        self.seen += 1
        if self.seen == self.fails_at:
            raise RuntimeError("the worker dies here")
        return [NewMessage(self.sink_topic, message.value, message.key)]

    def run(self, stop: Callable[[], bool]) -> None:
        exactly_once(self.consumer, self.producer, self.transform, batch_records_max=7, stop=stop)

    def close(self) -> None:
        self.consumer.close()
        self.producer.close()


def filled(broker: Broker) -> tuple[str, str]:
    source, sink = broker.topic(3), broker.topic(2)
    broker.produce(source, [b"%d" % number for number in range(COUNT)])
    return source, sink


def is_complete(broker: Broker, sink: str) -> bool:
    return len(broker.read(sink)) >= COUNT


def check_output(broker: Broker, sink: str) -> None:
    found = Counter(int(message.value) for message in broker.read(sink))
    assert found == Counter(range(COUNT))


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_worker_that_dies_in_a_batch_is_followed_by_another(
    shared: Broker, protocol: str
) -> None:
    source, sink = filled(shared)
    first = Worker(shared, source, sink, f"dies-{protocol}", group_protocol=protocol)
    first.fails_at = COUNT // 2
    with pytest.raises(RuntimeError):
        first.run(lambda: False)
    first.close()
    assert 0 < len(shared.read(sink)) < COUNT
    second = Worker(shared, source, sink, f"dies-{protocol}", group_protocol=protocol)
    second.run(lambda: is_complete(shared, sink))
    second.close()
    check_output(shared, sink)


def test_a_worker_whose_transform_has_failed_goes_on(shared: Broker) -> None:
    source, sink = filled(shared)
    worker = Worker(shared, source, sink, "goes-on")
    worker.fails_at = 10
    with pytest.raises(RuntimeError):
        worker.run(lambda: False)
    worker.run(lambda: is_complete(shared, sink))
    worker.close()
    check_output(shared, sink)


def call_another_client(message: Message) -> NewMessage:
    raise RetriableError("of another client")


def call_another_client_later(message: Message) -> Iterator[NewMessage]:
    raise AbortableError("of another client")
    yield


@pytest.mark.parametrize("transform", [call_another_client, call_another_client_later])
def test_an_error_of_transform_leaves_whatever_it_is(
    shared: Broker, transform: Callable[[Message], NewMessage | Iterator[NewMessage]]
) -> None:
    source, sink = filled(shared)
    seen: list[Message] = []

    def fail_once(message: Message) -> NewMessage | Iterator[NewMessage]:
        seen.append(message)
        return transform(message) if len(seen) == 1 else NewMessage(sink, message.value)

    with (
        Consumer(
            shared.bootstrap,
            source,
            transform.__name__,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
        ) as consumer,
        Producer(shared.bootstrap, transactional_id=transform.__name__) as producer,
    ):
        with pytest.raises((RetriableError, AbortableError), match="of another client"):
            exactly_once(consumer, producer, fail_once, stop=lambda: len(seen) > 1)
        assert len(seen) == 1
        exactly_once(consumer, producer, fail_once, stop=lambda: is_complete(shared, sink))
    check_output(shared, sink)


def test_a_transactions_offsets_reach_the_coordinator_after_its_broker_was_killed(
    broker: Broker,
) -> None:
    """librdkafka would wait without end for the coordinator that it knew."""
    source, sink = filled(broker)
    worker = Worker(broker, source, sink, "killed")
    worker.run(lambda: bool(broker.read(sink)))
    batch: list[Message] = []
    while not batch:
        batch = worker.consumer.batch(7)
    with worker.producer.transaction() as transaction:
        for message in batch:
            worker.producer.send(sink, message.value)
        worker.producer.flush(30)
        broker.restart()
        transaction.send_offsets(worker.consumer)
    worker.run(lambda: is_complete(broker, sink))
    worker.close()
    check_output(broker, sink)


def remove_from_group(broker: Broker, consumer: Consumer) -> None:
    """As the group does after a session timeout; return when the client knows."""
    group, client = consumer.group, consumer._client
    assert group is not None
    request = LeaveGroupRequest(
        group_id=group, members=[LeaveGroupMember(member_id=client.memberid())]
    )
    Admin(broker.bootstrap)._ask_directly(
        lambda asked: asked.request_to_coordinator(CoordinatorKind.GROUP, group, request)
    )
    while client.memberid():
        threading.Event().wait(0.02)


def test_a_worker_that_its_group_has_removed_commits_no_offsets(shared: Broker) -> None:
    source, sink = filled(shared)
    first = Worker(shared, source, sink, "removed", heartbeat_interval_ms=100)

    def be_late() -> None:
        batch: list[Message] = []
        while not batch:
            batch = first.consumer.batch(7)
        with first.producer.transaction() as transaction:
            for message in batch:
                first.producer.send(sink, message.value)
            remove_from_group(shared, first.consumer)
            second = Worker(shared, source, sink, "remains")
            second.run(lambda: second.seen >= COUNT)
            second.close()
            transaction.send_offsets(first.consumer)

    with pytest.raises(AbortableError, match="UNKNOWN_MEMBER_ID"):
        be_late()
    first.close()
    check_output(shared, sink)


class Interrupted:
    """A client of librdkafka whose third commit the user interrupts with Ctrl-C."""

    def __init__(
        self, configuration: dict[str, object], *, when_done: bool, error: BaseException
    ) -> None:
        self._client = confluent_kafka.Producer(configuration)
        self._when_done = when_done
        self._error = error
        self._commits = 0

    def __getattr__(self, name: str) -> object:
        return getattr(self._client, name)

    def __len__(self) -> int:
        return len(self._client)

    def commit_transaction(self, timeout: float) -> None:
        self._commits += 1
        if self._commits != 3:
            self._client.commit_transaction(timeout)
            return
        if self._when_done:
            self._client.commit_transaction(30)
        raise self._error


@pytest.mark.parametrize("when_done", [False, True])
@pytest.mark.parametrize(
    "error",
    [KeyboardInterrupt(), SystemError("returned NULL without setting an exception")],
    ids=["in-the-call", "in-a-callback"],
)
def test_a_worker_that_is_interrupted_while_it_commits_goes_on(
    shared: Broker, monkeypatch: pytest.MonkeyPatch, when_done: bool, error: BaseException
) -> None:
    source, sink = filled(shared)

    def made(_: object, configuration: dict[str, object]) -> Interrupted:
        return Interrupted(configuration, when_done=when_done, error=error)

    with monkeypatch.context() as patched:
        patched.setattr("tidelog.sdk.sender.made", made)
        name = f"interrupted-{when_done}-{type(error).__name__}"
        worker = Worker(shared, source, sink, name)
    with pytest.raises(KeyboardInterrupt):
        worker.run(lambda: False)
    worker.run(lambda: is_complete(shared, sink))
    worker.close()
    check_output(shared, sink)


def test_settings_that_break_exactly_once_are_refused(shared: Broker) -> None:
    topic = shared.topic()
    sink = Producer(shared.bootstrap, transactional_id="refused")
    for source, words in [
        (Consumer(shared.bootstrap, topic), "group"),
        (Consumer(shared.bootstrap, topic, "g"), "enable_auto_commit=False"),
        (
            Consumer(
                shared.bootstrap,
                topic,
                "g",
                enable_auto_commit=False,
                isolation_level="read_uncommitted",
            ),
            "read_uncommitted",
        ),
    ]:
        with source, pytest.raises(InvalidConfiguration, match=words):
            exactly_once(source, sink, lambda _: None)
    with (
        Consumer(shared.bootstrap, topic, "g", enable_auto_commit=False) as source,
        pytest.raises(InvalidConfiguration, match="transactional_id"),
    ):
        exactly_once(source, Producer(shared.bootstrap), lambda _: None)
