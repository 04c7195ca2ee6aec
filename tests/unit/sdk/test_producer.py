"""A producer against a broker: deliveries, transactions, lost answers."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import Any

import confluent_kafka
import pytest

from tidelog.errors import Refused
from tidelog.records.partitioner import partition_of
from tidelog.sdk.admin import Admin
from tidelog.sdk.errors import (
    AbortableError,
    CommitOutcomeUnknown,
    DeliveryError,
    ProducerFencedError,
    RetriableError,
)
from tidelog.sdk.producer import Delivery, Producer
from tidelog.sdk.serializers import NotSerializable
from tidelog.testing.broker import Broker


def values(broker: Broker, topic: str) -> list[bytes]:
    return [message.value for message in broker.read(topic)]


def interrupted() -> None:
    """In the place of a call that Ctrl-C ends."""
    raise KeyboardInterrupt


def lose_commit(producer: Producer, broker: Broker, topic: str) -> None:
    """The broker is killed before the commit; the message is durable."""
    with producer.transaction(commit_timeout=0):
        producer.send(topic, "first")
        producer.flush(30)
        broker.kill()


def abort(producer: Producer, topic: str) -> None:
    with producer.transaction():
        producer.send(topic, "dropped")
        producer.flush(30)
        raise KeyError


def send_too_much(producer: Producer, topic: str) -> None:
    with producer.transaction():
        producer.send(topic, "fits")
        producer.send(topic, b"x" * 5000)


def send_again(producer: Producer, topic: str) -> None:
    with producer.transaction():
        producer.send(topic, "fits again")


def test_an_offset_that_the_broker_does_not_tell_is_none_of_a_message(shared: Broker) -> None:
    topic = shared.topic()
    with Producer(shared.bootstrap, acks=0) as producer:
        deliveries = [producer.send(topic, "v") for _ in range(2)]
        assert [each.result(30) for each in deliveries] == [(0, -1), (0, -1)]


def test_messages_are_read_as_sent(shared: Broker) -> None:
    topic = shared.topic()
    with Producer(shared.bootstrap, value_serializer="json") as producer:
        first = producer.send(topic, {"miles": 719}, "N14228", {"carrier": "UA", "raw": b"\0"})
        second = producer.send(topic, None, "N14228", timestamp=1234)
        assert first.result(30) == (0, 0)
        assert second.result(30) == (0, 1)
    full, tombstone = shared.read(topic, value_deserializer="json", key_deserializer="string")
    assert (full.key, full.value) == ("N14228", {"miles": 719})
    assert full.headers == (("carrier", b"UA"), ("raw", b"\0"))
    assert (tombstone.value, tombstone.timestamp, tombstone.offset) == (None, 1234, 1)


def test_a_time_that_librdkafka_would_replace_is_refused(shared: Broker) -> None:
    topic = shared.topic()
    with Producer(shared.bootstrap) as producer:
        with pytest.raises(Refused, match="nothing was sent"):
            producer.send(topic, "a", timestamp=0)
        producer.send(topic, "b", timestamp=1)
    assert [(each.value, each.timestamp) for each in shared.read(topic)] == [(b"b", 1)]


def test_what_no_message_may_have_is_refused_before_it_is_sent(shared: Broker) -> None:
    topic, no_utf8 = shared.topic(), "\ud800"
    with Producer(shared.bootstrap) as producer:
        with pytest.raises(Refused, match=r"timestamp=-5 .* nothing was sent"):
            producer.send(topic, "a", timestamp=-5)
        for headers in ({"name": no_utf8}, {no_utf8: "value"}):
            with pytest.raises(NotSerializable, match="no UTF-8"):
                producer.send(topic, "a", headers=headers)
        with pytest.raises(NotSerializable, match="no UTF-8"):
            producer.send(topic + no_utf8, "a")
        unnamed: Any = {5: "value"}
        with pytest.raises(NotSerializable, match="name of a header is text, not int"):
            producer.send(topic, "a", headers=unnamed)
        fields: list[dict[str, Any]] = [
            {"topic": None},
            {"headers": {"name": 5}},
            {"partition": 2**31},
            {"timestamp": 2**63},
        ]
        for each in fields:
            with pytest.raises(NotSerializable, match="a message has no such topic, key"):
                producer.send(**{"topic": topic, "value": "a"} | each)
    assert values(shared, topic) == []


def test_keys_go_to_the_java_clients_partitions(shared: Broker) -> None:
    topic = shared.topic(7)
    keys = [b"key-%d" % number for number in range(200)]
    with Producer(shared.bootstrap) as producer:
        for key in keys:
            producer.send(topic, b"", key)
    found = {message.key: message.partition for message in shared.read(topic)}
    assert found == {key: partition_of(key, 7) for key in keys}


def test_a_failed_delivery_is_told_by_result_and_by_flush(shared: Broker) -> None:
    topic = shared.topic(max_message_bytes=1000)
    producer = Producer(shared.bootstrap)
    delivery = producer.send(topic, b"x" * 5000)
    with pytest.raises(DeliveryError, match="MSG_SIZE_TOO_LARGE"):
        delivery.result(30)
    with pytest.raises(DeliveryError, match="MSG_SIZE_TOO_LARGE"):
        producer.flush(30)
    producer.flush(30)
    producer.close()
    with pytest.raises(Refused, match="closed"):
        producer.send(topic, b"")


class Client:
    """A client of librdkafka, as a test changes it."""

    def __init__(self, client: confluent_kafka.Producer) -> None:
        self._client: Any = client

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def __len__(self) -> int:
        return len(self._client)


class Answered(Client):
    """All reports are there when it is asked for them."""

    def poll(self, seconds: float) -> None:
        while len(self._client) > 0:
            self._client.poll(30)


@pytest.mark.parametrize("told", [lambda _, sent: sent.result(0), lambda each, _: each.flush(0)])
def test_without_a_wait_the_reports_that_are_there_are_looked_for(
    shared: Broker, monkeypatch: pytest.MonkeyPatch, told: Callable[[Producer, Delivery], object]
) -> None:
    with Producer(shared.bootstrap) as producer:
        monkeypatch.setattr(producer._sender, "client", Answered(producer._sender.client))
        delivery = producer.send(shared.topic(), "durable")
        told(producer, delivery)
        assert delivery.is_done


def test_the_failures_of_an_interrupted_close_are_told_by_the_next_one(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = broker.topic()
    broker.kill()
    producer = Producer(broker.bootstrap, delivery_timeout_ms=1000, request_timeout_ms=500)
    producer.send(topic, "late")
    with monkeypatch.context() as patch:
        patch.setattr(producer, "flush", interrupted)
        with pytest.raises(KeyboardInterrupt):
            producer.close()
    with pytest.raises(DeliveryError, match="_MSG_TIMED_OUT"):
        producer.close()
    producer.close()


class Closing(Client):
    """Tells when its close begins."""

    def __init__(self, client: confluent_kafka.Producer) -> None:
        super().__init__(client)
        self.begun = Event()

    def close(self) -> None:
        self.begun.set()
        self._client.close()


def test_a_flush_beside_an_interrupted_close_ends_with_the_messages(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = broker.topic()
    broker.kill()
    producer = Producer(broker.bootstrap, delivery_timeout_ms=1000, request_timeout_ms=500)
    producer.send(topic, "late")
    client, flush = Closing(producer._sender.client), producer.flush
    monkeypatch.setattr(producer._sender, "client", client)
    monkeypatch.setattr(producer, "flush", interrupted)
    with ThreadPoolExecutor(1) as threads:
        closing = threads.submit(producer.close)
        assert client.begun.wait(30)
        with pytest.raises(DeliveryError, match="_MSG_TIMED_OUT"):
            flush(30)
        with pytest.raises(KeyboardInterrupt):
            closing.result(30)


def test_a_flush_goes_on_if_ctrl_c_keeps_librdkafka_open(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = broker.topic()
    broker.kill()
    producer = Producer(broker.bootstrap, delivery_timeout_ms=1000, request_timeout_ms=500)
    producer.send(topic, "late")
    client, flush = producer._sender.client, producer.flush

    class Open(Client):
        def close(self) -> None:
            raise KeyboardInterrupt

    monkeypatch.setattr(producer._sender, "client", Open(client))
    monkeypatch.setattr(producer, "flush", lambda: None)
    with pytest.raises(KeyboardInterrupt):
        producer.close()
    with pytest.raises(DeliveryError, match="_MSG_TIMED_OUT"):
        flush(10)
    client.close()


class Reopened(Client):
    """Ctrl-C ends its first close before the work."""

    _closes = 0

    def close(self) -> None:
        self._closes += 1
        if self._closes == 1:
            raise KeyboardInterrupt
        self._client.close()


def test_a_close_ends_the_work_of_one_that_was_interrupted(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = broker.topic()
    broker.kill()
    producer = Producer(broker.bootstrap, delivery_timeout_ms=1000, request_timeout_ms=500)
    producer.send(topic, "late")
    client = producer._sender.client
    monkeypatch.setattr(producer._sender, "client", Reopened(client))
    with monkeypatch.context() as patch:
        patch.setattr(producer, "flush", interrupted)
        with pytest.raises(KeyboardInterrupt):
            producer.close()
    with pytest.raises(DeliveryError, match="_MSG_TIMED_OUT"):
        producer.close()
    with pytest.raises(RuntimeError, match="closed"):
        client.poll(0)


def test_a_close_beside_another_one_waits_for_the_messages(shared: Broker) -> None:
    producer = Producer(shared.bootstrap, linger_ms=500)
    delivery = producer.send(shared.topic(), "durable")
    # Another thread's close has begun.
    producer._sender.is_closed = True
    producer.close()
    assert delivery.is_done


def test_a_signals_handler_may_close_within_a_close(
    shared: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    producer = Producer(shared.bootstrap)

    class Handled(Client):
        def close(self) -> None:
            producer.close()
            self._client.close()

    monkeypatch.setattr(producer._sender, "client", Handled(producer._sender.client))
    producer.close()


class Dropping(Client):
    """Ctrl-C ends its close, and confluent-kafka drops the messages with librdkafka's client."""

    _is_dropped = False

    def close(self) -> None:
        if not self._is_dropped:
            self._is_dropped = True
            raise KeyboardInterrupt

    def __len__(self) -> int:
        return 0 if self._is_dropped else super().__len__()


@pytest.mark.parametrize("again", [Producer.flush, Producer.close])
def test_messages_that_an_interrupted_close_has_dropped_are_told(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, again: Callable[[Producer], None]
) -> None:
    topic = broker.topic()
    broker.kill()
    producer = Producer(broker.bootstrap)
    producer.send(topic, "dropped")
    monkeypatch.setattr(producer._sender, "client", Dropping(producer._sender.client))
    with monkeypatch.context() as patch:
        patch.setattr(producer, "flush", interrupted)
        with pytest.raises(KeyboardInterrupt):
            producer.close()
    with pytest.raises(DeliveryError, match="may be in its topic"):
        again(producer)


class Interrupted(Client):
    """Ctrl-C comes as the report of its first message does, and confluent-kafka drops both."""

    def __init__(self, configuration: dict[str, Any]) -> None:
        super().__init__(confluent_kafka.Producer(configuration))
        self._reports = 0

    def produce(self, *arguments: Any, **options: Any) -> None:
        *message, delivery = arguments

        def report(*outcome: Any) -> None:
            self._reports += 1
            if self._reports > 1:
                delivery(*outcome)

        self._client.produce(*message, report, **options)

    def poll(self, seconds: float) -> None:
        self._client.poll(seconds)
        if self._reports == 1:
            self._reports = 2
            raise SystemError("returned NULL without setting an exception")


@pytest.mark.parametrize("transactional_id", [None, "interrupted"])
def test_a_delivery_whose_report_ctrl_c_has_taken_away_is_not_waited_for(
    shared: Broker, monkeypatch: pytest.MonkeyPatch, transactional_id: str | None
) -> None:
    monkeypatch.setattr("tidelog.sdk.sender.made", lambda _, given: Interrupted(given))
    topic = shared.topic()
    settings = {} if transactional_id is None else {"transactional_id": transactional_id}
    with Producer(shared.bootstrap, **settings) as producer:
        block = contextlib.nullcontext() if transactional_id is None else producer.transaction()
        with block:
            first = producer.send(topic, "first")
            with pytest.raises(KeyboardInterrupt):
                first.result(30)
            with pytest.raises(DeliveryError, match="may be in its topic"):
                first.result(30)
            with pytest.raises(DeliveryError, match="may be in its topic"):
                producer.flush(30)
            assert producer.send(topic, "second").result(30) == (0, 1)
    assert values(shared, topic) == [b"first", b"second"]


def test_a_transaction_commits_or_is_aborted_by_an_exception(shared: Broker) -> None:
    topic, other = shared.topic(), shared.topic()
    with Producer(shared.bootstrap, transactional_id="commits") as producer:
        with producer.transaction():
            producer.send(topic, "kept")
            producer.send(other, "kept too")
        with pytest.raises(KeyError):
            abort(producer, topic)
        with producer.transaction():
            producer.send(topic, "kept again")
    assert values(shared, topic) == [b"kept", b"kept again"]
    assert values(shared, other) == [b"kept too"]
    assert Admin(shared.bootstrap).transactions()["commits"] == "CompleteCommit"


def test_a_block_whose_producer_was_closed_does_not_end_as_if_it_was_committed(
    shared: Broker,
) -> None:
    topic = shared.topic()
    producer = Producer(shared.bootstrap, transactional_id="closed-within")

    def close_within() -> None:
        with producer.transaction():
            producer.send(topic, "dropped")
            producer.close()

    with pytest.raises(AbortableError, match="none of it is visible"):
        close_within()
    assert values(shared, topic) == []


def test_a_failed_send_lets_nothing_of_its_transaction_be_seen(shared: Broker) -> None:
    topic = shared.topic(max_message_bytes=1000)
    with Producer(shared.bootstrap, transactional_id="fails") as producer:
        with pytest.raises(AbortableError):
            send_too_much(producer, topic)
        # librdkafka takes up a new epoch only when the broker has refused the next sequence.
        with pytest.raises(AbortableError):
            send_again(producer, topic)
        send_again(producer, topic)
    assert values(shared, topic) == [b"fits again"]


def test_the_older_of_two_producers_is_fenced_and_stays_fenced(shared: Broker) -> None:
    topic = shared.topic()
    old = Producer(shared.bootstrap, transactional_id="same")
    with old.transaction():
        old.send(topic, "old")
    new = Producer(shared.bootstrap, transactional_id="same")
    new.init_transactions()
    with pytest.raises(ProducerFencedError), old.transaction():
        old.send(topic, "zombie")
    with pytest.raises(ProducerFencedError), old.transaction():
        pass
    with new.transaction():
        new.send(topic, "new")
    old.close()
    new.close()
    assert values(shared, topic) == [b"old", b"new"]


def test_a_producer_that_is_fenced_while_it_waits_raises_the_fence(shared: Broker) -> None:
    topic = shared.topic()

    def send(producer: Producer) -> None:
        with producer.transaction():
            for _ in range(3):
                with contextlib.suppress(DeliveryError):
                    producer.send(topic, "zombie").result(30)

    old = Producer(shared.bootstrap, transactional_id="fenced-waiting")
    with old.transaction():
        old.send(topic, "old")
    with Producer(shared.bootstrap, transactional_id="fenced-waiting") as new:
        new.init_transactions()
        with pytest.raises(ProducerFencedError):
            send(old)
    old.close()
    assert values(shared, topic) == [b"old"]


def test_a_producer_that_could_not_start_closes(broker: Broker) -> None:
    bootstrap = broker.bootstrap
    broker.kill()
    with (
        Producer(bootstrap, transactional_id="unstarted", max_block_ms=0) as producer,
        pytest.raises(RetriableError, match="start"),
    ):
        producer.init_transactions()


class InterruptedStart:
    """A client of librdkafka whose first start Ctrl-C interrupts when it has just been answered."""

    def __init__(self, configuration: dict[str, Any]) -> None:
        self._client = confluent_kafka.Producer(configuration)
        self._starts = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def __len__(self) -> int:
        return len(self._client)

    def init_transactions(self, timeout: float) -> None:
        self._starts += 1
        self._client.init_transactions(30 if self._starts == 1 else timeout)
        if self._starts == 1:
            raise KeyboardInterrupt


def test_a_producer_whose_start_ctrl_c_has_interrupted_goes_on(
    shared: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = shared.topic()
    monkeypatch.setattr("tidelog.sdk.sender.made", lambda _, passed: InterruptedStart(passed))
    with Producer(shared.bootstrap, transactional_id="interrupted-start") as producer:
        with pytest.raises(KeyboardInterrupt):
            producer.init_transactions()
        with producer.transaction():
            producer.send(topic, "kept")
    assert values(shared, topic) == [b"kept"]


def test_transactions_are_used_as_kafka_says(shared: Broker) -> None:
    topic = shared.topic()
    with Producer(shared.bootstrap) as plain, pytest.raises(Refused, match="transactional_id"):
        plain.transaction()
    with Producer(shared.bootstrap, transactional_id="rules") as producer:
        with pytest.raises(Refused, match=r"with producer\.transaction\(\)"):
            producer.send(topic, "outside")
        with (
            producer.transaction(),
            pytest.raises(Refused, match="one at a time"),
            producer.transaction(),
        ):
            pass
    assert values(shared, topic) == []


def test_a_commit_whose_answer_is_lost_is_repeated_and_not_aborted(broker: Broker) -> None:
    topic = broker.topic()
    producer = Producer(broker.bootstrap, transactional_id="lost")
    with pytest.raises(CommitOutcomeUnknown, match="resume_commit"):
        lose_commit(producer, broker, topic)
    broker.start()
    producer.resume_commit()
    with producer.transaction():
        producer.send(topic, "second")
    producer.close()
    assert values(broker, topic) == [b"first", b"second"]


def test_the_next_transaction_repeats_the_commit_first(broker: Broker) -> None:
    topic = broker.topic()
    with Producer(broker.bootstrap, transactional_id="next") as producer:
        with pytest.raises(CommitOutcomeUnknown):
            lose_commit(producer, broker, topic)
        broker.start()
        with producer.transaction():
            producer.send(topic, "second")
    assert values(broker, topic) == [b"first", b"second"]


def test_a_producer_in_doubt_closes_without_its_broker(broker: Broker) -> None:
    topic = broker.topic()
    producer = Producer(broker.bootstrap, transactional_id="doubt")
    with pytest.raises(CommitOutcomeUnknown):
        lose_commit(producer, broker, topic)
    producer.close()


def test_a_transaction_outlives_a_kill_and_restart_of_the_broker(broker: Broker) -> None:
    topic = broker.topic()
    producer = Producer(broker.bootstrap, transactional_id="outlives")
    with producer, producer.transaction():
        producer.send(topic, "before")
        producer.flush(30)
        broker.restart()
        producer.send(topic, "after")
    assert values(broker, topic) == [b"before", b"after"]


def test_without_a_broker_calls_end_at_their_limit(broker: Broker) -> None:
    bootstrap = broker.bootstrap
    broker.kill()
    producer = Producer(bootstrap, transactional_id="nobody", max_block_ms=0)
    with pytest.raises(RetriableError, match="start"):
        producer.init_transactions()
    plain = Producer(bootstrap)
    delivery = plain.send("topic", "")
    with pytest.raises(RetriableError, match="not delivered"):
        delivery.result(0)
