"""A consumer against a broker: groups, commits, ends."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace

import confluent_kafka
import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from tests.unit.sdk.replaced_clients import replaced
from tidelog.errors import Refused
from tidelog.sdk.admin import Admin
from tidelog.sdk.consumer import Consumer
from tidelog.sdk.errors import KafkaRequestError, RetriableError
from tidelog.sdk.producer import Producer
from tidelog.sdk.serializers import NotDeserializable
from tidelog.testing.broker import Broker


def member(broker: Broker, topic: str, group: str, **settings: object) -> Consumer:
    return Consumer(broker.bootstrap, topic, group, auto_offset_reset="earliest", **settings)


def test_a_group_resumes_at_its_committed_offset(shared: Broker) -> None:
    topic, group = shared.topic(), shared.group()
    shared.produce(topic, [b"%d" % number for number in range(10)])
    with member(shared, topic, group, enable_auto_commit=False) as consumer:
        first = list(itertools.islice(consumer, 4))
        consumer.commit()
        next(iter(consumer))
    assert [message.value for message in first] == [b"0", b"1", b"2", b"3"]
    assert Admin(shared.bootstrap).group_offsets(group) == {(topic, 0): 4}
    with member(shared, topic, group) as consumer:
        assert next(iter(consumer)).value == b"4"


def test_a_consumer_that_waits_says_why_under_default_logging(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with (
        Broker(auto_create_topics_enable=False) as broker,
        member(broker, "absent", broker.group()) as consumer,
    ):
        while not (waits := [each for each in caplog.records if "waits" in each.msg]):
            assert consumer.poll(0.1) is None
    assert logging.lastResort is not None
    shown = logging.lastResort.format(waits[0])
    assert shown.startswith("consumer waits: topic absent: ")
    assert "UNKNOWN_TOPIC_OR_PART" in shown


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_message_that_was_perhaps_not_processed_is_not_committed(
    shared: Broker, protocol: str
) -> None:
    topic, group = shared.topic(), shared.group()
    shared.produce(topic, [b"%d" % number for number in range(5)])

    def fail_at_two() -> None:
        with member(shared, topic, group, group_protocol=protocol) as consumer:
            for message in consumer:
                if message.value == b"2":
                    raise ValueError("2")

    with pytest.raises(ValueError, match="2"):
        fail_at_two()
    assert Admin(shared.bootstrap).group_offsets(group) == {(topic, 0): 2}


def test_a_fenced_member_is_told_of_its_group_and_of_the_remedy(shared: Broker) -> None:
    topic, group = shared.topic(), shared.group()
    shared.produce(topic, ["a"])
    settings = {"group_instance_id": "planes-1", "heartbeat_interval_ms": 100}
    with member(shared, topic, group, **settings) as old:
        assert old.poll(30) is not None
        with member(shared, topic, group, **settings) as new:
            new.poll(1)
            with pytest.raises(KafkaRequestError, match="Static consumer fenced") as fenced:
                old.poll(30)
    said = str(fenced.value)
    assert said.startswith(f"group {group}: ")
    assert "close this consumer and make a new one" in said


def test_two_members_share_the_partitions(shared: Broker) -> None:
    topic, group = shared.topic(2), shared.group()
    with member(shared, topic, group) as one, member(shared, topic, group) as two:
        found: dict[str, set[int]] = {"one": set(), "two": set()}
        number = 0
        while not (found["one"] and found["two"]):
            with Producer(shared.bootstrap) as producer:
                for partition in range(2):
                    producer.send(topic, b"%d" % number, partition=partition)
            number += 1
            for name, consumer in (("one", one), ("two", two)):
                found[name] |= {message.partition for message in consumer.batch(timeout=0.2)}
    assert set(Admin(shared.bootstrap).group_offsets(group)) == {(topic, 0), (topic, 1)}


def test_without_a_group_all_partitions_are_read_to_their_ends(shared: Broker) -> None:
    topic = shared.topic(3)
    shared.produce(topic, [b"%d" % number for number in range(30)])
    with Consumer(shared.bootstrap, topic, auto_offset_reset="earliest") as consumer:
        assert sorted(int(message.value) for message in consumer.to_end()) == list(range(30))
        assert list(consumer.to_end()) == []
        shared.produce(topic, [b"30"])
        assert [message.value for message in consumer.to_end()] == [b"30"]
        with pytest.raises(Refused, match="group="):
            consumer.commit()


class AtOnce:
    """A client of librdkafka that gives out a partition's messages and its end in one piece."""

    def __init__(self, configuration: dict[str, object]) -> None:
        self._client = confluent_kafka.Consumer(configuration)
        self._held: list[confluent_kafka.Message] = []

    def __getattr__(self, name: str) -> object:
        return getattr(self._client, name)

    def poll(self, timeout: float) -> confluent_kafka.Message | None:
        fetched = self._client.poll(timeout)
        if fetched is None:
            return None
        self._held.append(fetched)
        return self._held.pop(0) if fetched.error() is not None else None

    def consume(self, count: int, timeout: float) -> list[confluent_kafka.Message]:
        held, self._held = self._held[:count], self._held[count:]
        return held


def test_messages_that_arrive_with_the_end_are_given_out_first(
    shared: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = shared.topic()
    shared.produce(topic, [b"%d" % number for number in range(5)])
    replaced(monkeypatch, "consumer", AtOnce)
    with Consumer(shared.bootstrap, topic, auto_offset_reset="earliest") as consumer:
        assert [int(message.value) for message in consumer.to_end()] == list(range(5))


def test_a_consumer_begins_with_records_produced_after_it_by_default(shared: Broker) -> None:
    topic = shared.topic()
    shared.produce(topic, ["before"])
    with Consumer(shared.bootstrap, topic) as consumer:
        shared.produce(topic, ["after"])
        assert next(iter(consumer)).value == b"after"


def test_uncommitted_records_are_not_shown(shared: Broker) -> None:
    topic = shared.topic()
    producer = Producer(shared.bootstrap, transactional_id="hidden")
    with producer, producer.transaction():
        producer.send(topic, "open")
        producer.flush(30)
        assert shared.read(topic) == []
        seen = shared.read(topic, isolation_level="read_uncommitted")
        assert [message.value for message in seen] == [b"open"]
    assert [message.value for message in shared.read(topic)] == [b"open"]


def test_a_value_that_does_not_decode_names_its_place_and_is_passed_over(shared: Broker) -> None:
    topic = shared.topic()
    shared.produce(topic, ["{", "7"])
    with Consumer(
        shared.bootstrap, topic, auto_offset_reset="earliest", value_deserializer="json"
    ) as consumer:
        with pytest.raises(NotDeserializable, match=f"value of {topic}-0 at offset 0"):
            next(iter(consumer))
        assert next(iter(consumer)).value == 7


def test_messages_of_a_batch_before_one_that_does_not_decode_are_given_out(
    shared: Broker,
) -> None:
    topic, group = shared.topic(), shared.group()
    shared.produce(topic, ["1", "2", "{", "4"])
    found: list[object] = []
    failures = 0
    with member(shared, topic, group, value_deserializer="json") as consumer:
        while len(found) < 3:
            try:
                found += [message.value for message in consumer.batch()]
            except NotDeserializable:
                failures += 1
                assert found == [1, 2]
    assert (found, failures) == ([1, 2, 4], 1)
    assert Admin(shared.bootstrap).group_offsets(group) == {(topic, 0): 4}


def test_a_consumer_outlives_a_kill_and_restart_of_the_broker(broker: Broker) -> None:
    topic = broker.topic()
    broker.produce(topic, ["before"])
    with member(broker, topic, "survivors") as consumer:
        messages = iter(consumer)
        assert next(messages).value == b"before"
        broker.restart()
        broker.produce(topic, ["after"])
        assert next(messages).value == b"after"


def test_an_unknown_topic_is_named() -> None:
    with (
        Broker(auto_create_topics_enable=False) as broker,
        pytest.raises(KafkaRequestError, match=r"topic nothing: .*create it first"),
    ):
        Consumer(broker.bootstrap, "nothing", allow_auto_create_topics=False)


class FailingOnce(AtOnce):
    """A client of librdkafka that gives out an error between two messages."""

    def poll(self, timeout: float) -> confluent_kafka.Message | None:
        while len(self._held) < 2:
            fetched = self._client.poll(timeout)
            if fetched is not None:
                self._held.append(fetched)
        error = KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)
        self._held.insert(1, confluent_kafka.Message(topic="closed", error=error))
        return self._held.pop(0)


def test_an_error_between_messages_is_raised_and_they_are_given_out(
    shared: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = shared.topic()
    shared.produce(topic, ["a", "b"])
    replaced(monkeypatch, "consumer", FailingOnce)
    with Consumer(shared.bootstrap, topic, auto_offset_reset="earliest") as consumer:
        with pytest.raises(KafkaRequestError, match="topic closed"):
            consumer.poll(5)
        assert [message.value for message in consumer.batch(timeout=5)] == [b"a", b"b"]


class Interrupted:
    """A client of librdkafka. Ctrl-C comes while it waits, and drops the message that it gets."""

    def __init__(self, configuration: dict[str, object]) -> None:
        self._client = confluent_kafka.Consumer(configuration)
        self.is_interrupted = False

    def __getattr__(self, name: str) -> object:
        return getattr(self._client, name)

    def poll(self, timeout: float) -> confluent_kafka.Message | None:
        if self.is_interrupted and timeout == 0:
            return None
        fetched = self._client.poll(timeout)
        if fetched is not None and self.is_interrupted:
            self.is_interrupted = False
            raise KeyboardInterrupt
        return fetched


@pytest.mark.parametrize("group", ["interrupted", None])
def test_a_message_that_comes_with_ctrl_c_is_given_out_by_the_next_call(
    shared: Broker, monkeypatch: pytest.MonkeyPatch, group: str | None
) -> None:
    topic = shared.topic(2)
    shared.produce(topic, ["first", "", "last"], keys=["a", "b", "a"])
    clients = replaced(monkeypatch, "consumer", Interrupted)
    settings = {"auto_offset_reset": "earliest", "max_poll_records": 1}
    with Consumer(shared.bootstrap, topic, group, **settings) as consumer:
        found = []
        while len(found) < 3:
            clients[0].is_interrupted = True
            with pytest.raises(KeyboardInterrupt):
                consumer.poll(30)
            message = consumer.poll(30)
            assert message is not None
            found.append(message.value)
        assert sorted(found) == [b"", b"first", b"last"]


class InterruptedInABatch:
    """A client of librdkafka whose next batch Ctrl-C takes away: confluent-kafka drops it."""

    def __init__(self, configuration: dict[str, object]) -> None:
        self._client = confluent_kafka.Consumer(configuration)
        self.dropped = 0

    def __getattr__(self, name: str) -> object:
        return getattr(self._client, name)

    def consume(self, count: int, timeout: float) -> list[confluent_kafka.Message]:
        if not self.dropped:
            return self._client.consume(count, timeout)
        while self.dropped:
            # Ends of partitions come between.
            self.dropped -= sum(each.error() is None for each in self._client.consume(1, 30))
        raise KeyboardInterrupt


@pytest.mark.parametrize("group", ["interrupted-in-a-batch", None])
def test_a_batch_that_ctrl_c_takes_away_is_given_out_by_the_next_call(
    shared: Broker, monkeypatch: pytest.MonkeyPatch, group: str | None
) -> None:
    topic = shared.topic(2)
    clients = replaced(monkeypatch, "consumer", InterruptedInABatch)
    settings = {"auto_offset_reset": "earliest", "fetch_max_wait_ms": 10}
    with Consumer(shared.bootstrap, topic, group, **settings) as consumer:
        # The first batch of the partitions, and a later one.
        for sent in ([b"a", b"b", b"c", b"d"], [b"e", b"f", b"g", b"h"]):
            shared.produce(topic, sent, keys=["a", "b", "a", "b"])
            clients[0].dropped = len(sent) - 1
            with pytest.raises(KeyboardInterrupt):
                consumer.poll(30)
            found = []
            while len(found) < len(sent):
                batch = consumer.batch(timeout=30)
                assert batch, f"only {found} of {sent} are given out"
                found += [message.value for message in batch]
            assert sorted(found) == sent


class AtTheEnd(InterruptedInABatch):
    """Tells when it has come to the end of a partition."""

    def __init__(self, configuration: dict[str, object]) -> None:
        super().__init__(configuration | {"enable.partition.eof": True})
        self.is_at_end = False

    def poll(self, timeout: float) -> confluent_kafka.Message | None:
        fetched = self._client.poll(timeout)
        self.is_at_end |= fetched is not None and fetched.error() is not None
        return fetched


def test_a_batch_that_ctrl_c_takes_away_from_a_new_group_at_the_end_is_given_out(
    shared: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = shared.topic()
    shared.produce(topic, ["before"])
    clients = replaced(monkeypatch, "consumer", AtTheEnd)
    with Consumer(shared.bootstrap, topic, "new-at-the-end") as consumer:
        while not clients[0].is_at_end:
            assert consumer.poll(0.1) is None
        shared.produce(topic, ["a", "b", "c"])
        clients[0].dropped = 2
        with pytest.raises(KeyboardInterrupt):
            consumer.poll(30)
        for sent in (b"a", b"b", b"c"):
            message = consumer.poll(30)
            assert message is not None
            assert message.value == sent


def test_a_closed_consumer_refuses_every_use(shared: Broker) -> None:
    topic = shared.topic()
    shared.produce(topic, ["a", "b"])
    alone = Consumer(shared.bootstrap, topic, auto_offset_reset="earliest")
    joined = member(shared, topic, shared.group(), enable_auto_commit=False)
    uses: list[Callable[[], object]] = [
        alone.find_ends,
        lambda: next(alone.to_end()),
        joined.commit,
        joined.rewind,
        joined.seek_to_committed,
        joined.transaction_offsets,
    ]
    for consumer in (alone, joined):
        messages = iter(consumer)
        assert next(messages).value == b"a"
        uses += [
            partial(next, messages),
            partial(consumer.poll, 0),
            partial(consumer.batch, timeout=0),
        ]
        consumer.close()
    for use in uses:
        with pytest.raises(Refused, match="the consumer is closed"):
            use()
    alone.close()


class ClosedBeside:
    """A client of librdkafka. Another thread closes its consumer while that polls."""

    consumer: Consumer

    def __init__(self, configuration: dict[str, object]) -> None:
        self._client = confluent_kafka.Consumer(configuration)

    def __getattr__(self, name: str) -> object:
        return getattr(self._client, name)

    def poll(self, timeout: float) -> confluent_kafka.Message | None:
        if timeout == 0:
            return self._client.poll(0)
        fetched = self._client.poll(0)
        self.consumer.close()
        return fetched


class ClosedBefore(ClosedBeside):
    """As between two polls."""

    def poll(self, timeout: float) -> confluent_kafka.Message | None:
        self.consumer.close()
        return self._client.poll(timeout)


@pytest.mark.parametrize("client", [ClosedBeside, ClosedBefore])
def test_a_close_of_another_thread_ends_a_poll(
    shared: Broker, monkeypatch: pytest.MonkeyPatch, client: type[ClosedBeside]
) -> None:
    clients = replaced(monkeypatch, "consumer", client)
    consumer = Consumer(shared.bootstrap, shared.topic())
    clients[0].consumer = consumer
    assert consumer.poll(30) is None
    with pytest.raises(Refused, match="the consumer is closed"):
        consumer.poll(30)


class LateLeader(AtOnce):
    """A client of librdkafka. The broker that it asks first knows a topic earlier than the
    others."""

    def __init__(self, configuration: dict[str, object], lags: int) -> None:
        super().__init__(configuration)
        self._lags = lags
        self.is_closed = False

    def close(self) -> None:
        self.is_closed = True
        self._client.close()

    def offsets_for_times(self, wanted: list[TopicPartition], timeout: float) -> list[object]:
        self._lags -= 1
        if self._lags >= 0 and self._lags % 2 == 0:
            raise KafkaException(KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART))
        if self._lags >= 0:
            error = KafkaError(KafkaError.NOT_LEADER_FOR_PARTITION)
            return [
                SimpleNamespace(topic=w.topic, partition=w.partition, error=error) for w in wanted
            ]
        return list(self._client.offsets_for_times(wanted, timeout))


def test_a_new_topic_that_its_leader_does_not_know_yet_is_asked_for_again(
    shared: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = shared.topic()
    shared.produce(topic, ["a"])
    replaced(monkeypatch, "consumer", lambda settings: LateLeader(settings, 4))
    with Consumer(shared.bootstrap, topic, auto_offset_reset="earliest") as consumer:
        assert [message.value for message in consumer.to_end()] == [b"a"]
    made = replaced(monkeypatch, "consumer", lambda settings: LateLeader(settings, 1_000_000))
    with pytest.raises(KafkaRequestError, match=f"offsets of {topic}: "):
        Consumer(shared.bootstrap, topic, max_block_ms=100)
    assert made[0].is_closed


def test_a_consumer_without_a_group_needs_no_right_to_a_group() -> None:
    """librdkafka looks for the coordinator of a group nevertheless."""
    with Broker(authorizer_class_name="acl", allow_everyone_if_no_acl_found=True) as closed:
        topic = closed.topic()
        closed.produce(topic, ["a", "b"])
        forbidden = AclBinding(
            ResourceType.GROUP,
            "*",
            ResourcePatternType.LITERAL,
            "User:ANONYMOUS",
            "*",
            AclOperation.ALL,
            AclPermissionType.DENY,
        )
        admin = AdminClient({"bootstrap.servers": closed.bootstrap})
        for done in admin.create_acls([forbidden]).values():
            done.result()
        with Consumer(closed.bootstrap, topic, auto_offset_reset="earliest") as consumer:
            assert [message.value for message in consumer.to_end()] == [b"a", b"b"]
        with (
            Consumer(closed.bootstrap, topic, "planes") as member,
            pytest.raises(KafkaRequestError, match="GROUP_AUTHORIZATION_FAILED"),
        ):
            member.poll(30)


class Rebalanced:
    """A client of librdkafka that serves a revocation together with the messages before it."""

    def __init__(self) -> None:
        self._assigned = [TopicPartition("flights", 0), TopicPartition("flights", 1)]
        self._held = [
            confluent_kafka.Message("flights", partition, offset, b"", b"%d" % partition)
            for offset in range(2)
            for partition in range(2)
        ]

    def subscribe(self, _: object, on_revoke: Callable[..., None], on_lost: object) -> None:
        self._revoked = on_revoke

    def poll(self, _: float) -> confluent_kafka.Message | None:
        return self._held.pop(0) if self._held else None

    def consume(self, _count: int, _timeout: float) -> list[confluent_kafka.Message]:
        if self._held:
            # As the real client, which gives the partition up once its callback has returned.
            self._revoked(self, self._assigned[:1])
            del self._assigned[0]
        found, self._held = self._held, []
        return found

    def assignment(self) -> list[TopicPartition]:
        return list(self._assigned)

    def consumer_group_metadata(self) -> None:
        return None

    def close(self) -> None:
        return None


def test_messages_before_a_revocation_are_left_to_the_next_owner(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else a transaction of the next generation could commit offsets that another member has."""
    monkeypatch.setattr("tidelog.sdk.consumer.made", lambda *_: Rebalanced())
    with Consumer("absent:9092", "flights", "planes", enable_auto_commit=False) as consumer:
        assert [(m.partition, m.offset) for m in consumer.batch(timeout=0.1)] == [(1, 0), (1, 1)]
        offsets, _ = consumer.transaction_offsets()
        assert [(each.partition, each.offset) for each in offsets] == [(1, 2)]


class Unsought:
    """A client of librdkafka whose first seeks are not answered in time."""

    def __init__(self, committed: int, failures: int) -> None:
        self._committed = committed
        self._position = 0
        self._failures = failures

    def subscribe(self, _: object, on_revoke: object, on_lost: object) -> None:
        return None

    def poll(self, _: float) -> confluent_kafka.Message | None:
        self._position += 1
        return confluent_kafka.Message("flights", 0, self._position - 1, b"", b"")

    def consume(self, _count: int, _timeout: float) -> list[confluent_kafka.Message]:
        return []

    def assignment(self) -> list[TopicPartition]:
        return [TopicPartition("flights", 0)]

    def committed(self, _wanted: object, _timeout: float) -> list[TopicPartition]:
        return [TopicPartition("flights", 0, self._committed)]

    def seek(self, wanted: TopicPartition) -> None:
        self._failures -= 1
        if self._failures >= 0:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
        self._position = wanted.offset

    def consumer_group_metadata(self) -> None:
        return None

    def close(self) -> None:
        return None


@pytest.mark.parametrize("committed", [0, -1001])
@pytest.mark.parametrize("failures", [0, 1])
def test_messages_without_a_rewind_are_given_out_after_the_next_start(
    monkeypatch: pytest.MonkeyPatch, committed: int, failures: int
) -> None:
    """Else the next transaction of `exactly_once` would commit offsets behind them.

    Without a failure no rewind runs, as if the task was cancelled before it.
    """
    monkeypatch.setattr("tidelog.sdk.consumer.made", lambda *_: Unsought(committed, failures))
    with Consumer(
        "absent:9092", "flights", "planes", enable_auto_commit=False, max_block_ms=0
    ) as consumer:
        assert [message.offset for message in consumer.batch()] == [0]
        if failures:
            with pytest.raises(RetriableError):
                consumer.rewind()
        consumer.seek_to_committed()
        assert [message.offset for message in consumer.batch()] == [0]
        offsets, _ = consumer.transaction_offsets()
        assert [each.offset for each in offsets] == [1]


class Moved(Unsought):
    """A client of librdkafka of a group whose coordinator moves: some answers say so."""

    def __init__(self, code: int) -> None:
        super().__init__(committed=0, failures=0)
        self._code = code
        self.refusals = 0

    def committed(self, wanted: object, timeout: float) -> list[TopicPartition]:
        self._refuse()
        return super().committed(wanted, timeout)

    def commit(self, *, offsets: list[TopicPartition], asynchronous: bool) -> list[TopicPartition]:
        self._refuse()
        return offsets

    def _refuse(self) -> None:
        self.refusals -= 1
        if self.refusals >= 0:
            raise KafkaException(KafkaError(self._code))


@pytest.mark.parametrize(
    "code",
    [
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.NOT_COORDINATOR,
    ],
)
def test_a_groups_coordinator_that_moves_is_asked_again(
    monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    client = Moved(code)
    monkeypatch.setattr("tidelog.sdk.consumer.made", lambda *_: client)
    with Consumer("absent:9092", "flights", "planes", enable_auto_commit=False) as consumer:
        assert [message.offset for message in consumer.batch()] == [0]
        client.refusals = 3
        consumer.commit()
        client.refusals = 3
        consumer.seek_to_committed()
        assert [message.offset for message in consumer.batch()] == [0]
    settings = {"enable_auto_commit": False, "max_block_ms": 0}
    with Consumer("absent:9092", "flights", "planes", **settings) as consumer:
        consumer.batch()
        client.refusals = 3
        with pytest.raises(RetriableError, match="commit of group planes"):
            consumer.commit()
