"""Fifty wrong uses: each is refused with a message that names the mistake and the remedy."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import datetime
from typing import Any, NamedTuple, cast

import pyarrow as pa
import pytest

from tidelog import Admin, Consumer, Producer, Table, aio, exactly_once
from tidelog.errors import TidelogError
from tidelog.sdk.serializers import ArrowSerializer
from tidelog.testing import Broker

NOWHERE = "127.0.0.1:1"


class Wrong(NamedTuple):
    """A wrong use of a broker with the topic `topic`."""

    use: Callable[[Broker], object]
    mistake: str
    remedy: str


def producer(**settings: Any) -> Callable[[Broker], object]:
    return lambda broker: Producer(NOWHERE, **settings)


def consumer(group: str | None = "g", **settings: Any) -> Callable[[Broker], object]:
    return lambda broker: Consumer(NOWHERE, "topic", group, **settings)


def send(value: Any, **settings: Any) -> Callable[[Broker], object]:
    return lambda broker: Producer(broker.bootstrap, **settings).send("topic", value)


def table(**selection: Any) -> Callable[[Broker], object]:
    return lambda broker: Table(broker.store, "topic").to_arrow(**selection)


def with_producer(use: Callable[[Producer], object], **settings: Any) -> Callable[[Broker], object]:
    def run(broker: Broker) -> None:
        with Producer(broker.bootstrap, **settings) as made:
            use(made)

    return run


def with_consumer(
    use: Callable[[Consumer], object], group: str | None = "g", **settings: Any
) -> Callable[[Broker], object]:
    def run(broker: Broker) -> None:
        with Consumer(broker.bootstrap, "topic", group, **settings) as made:
            use(made)

    return run


def with_both(source: dict[str, Any], sink: dict[str, Any]) -> Callable[[Broker], object]:
    def run(broker: Broker) -> None:
        with (
            Consumer(broker.bootstrap, "topic", **source) as reader,
            Producer(broker.bootstrap, **sink) as writer,
        ):
            exactly_once(reader, writer, lambda _: None)

    return run


def transform_to(result: Any) -> Callable[[Broker], object]:
    def run(broker: Broker) -> None:
        broker.produce("topic", ["a"])
        source = {"group": "transform", "auto_offset_reset": "earliest"}
        with (
            Consumer(broker.bootstrap, "topic", enable_auto_commit=False, **source) as reader,
            Producer(broker.bootstrap, transactional_id="transform") as writer,
        ):
            exactly_once(reader, writer, lambda _: result)

    return run


def send_after_close(broker: Broker) -> None:
    made = Producer(broker.bootstrap)
    made.close()
    made.send("topic", "a")


def poll_after_close(broker: Broker) -> None:
    made = Consumer(broker.bootstrap, "topic", "g")
    made.close()
    made.poll(0)


def nest(made: Producer) -> None:
    with made.transaction(), made.transaction():
        pass


def two_loops(broker: Broker) -> None:
    made = aio.Producer(broker.bootstrap)

    async def use() -> None:
        await made.send("topic", "a")
        await made.flush(30)

    asyncio.run(use())
    asyncio.run(use())


def read_before_start(broker: Broker) -> None:
    async def use() -> None:
        aio.Consumer(broker.bootstrap, "topic").transaction_offsets()

    asyncio.run(use())


ROWS = ArrowSerializer(pa.schema([pa.field("n", pa.int64())]))
STEADY = {"group": "g", "enable_auto_commit": False}

WRONG_USES = {
    "no address": Wrong(lambda _: Producer(""), "bootstrap", "give the address of a broker"),
    "a URL as address": Wrong(lambda _: Admin("http://h:9092"), "is a URL", "give HOST:PORT"),
    "bootstrap twice": Wrong(producer(bootstrap_servers="h"), "bootstrap", "first argument"),
    "a mistyped setting": Wrong(producer(linger_mss=5), "linger.mss", "did you mean linger.ms"),
    "a setting twice": Wrong(
        producer(**{"linger_ms": 5, "queue.buffering.max.ms": 6}), "given twice", "linger.ms"
    ),
    "None as a value": Wrong(producer(linger_ms=None), "linger.ms=None", "leave the setting out"),
    "words as a number": Wrong(producer(linger_ms="soon"), "linger.ms", "whole number"),
    "no truth value": Wrong(consumer(enable_auto_commit="yes"), "'yes'", "true nor false"),
    "a negative wait": Wrong(producer(max_block_ms=-1), "max.block.ms=-1", "negative"),
    "acks=1 with idempotence": Wrong(
        producer(acks=1, enable_idempotence=True), "acks=1", "acks must be all"
    ),
    "acks=0 in transactions": Wrong(
        producer(acks=0, transactional_id="t"), "acks=0", "acks must be all"
    ),
    "no retries with idempotence": Wrong(
        producer(retries=0, enable_idempotence=True), "retries=0", "above 0"
    ),
    "too many in flight": Wrong(
        producer(max_in_flight_requests_per_connection=6), "at most 5", "lower it"
    ),
    "no idempotence in transactions": Wrong(
        producer(transactional_id="t", enable_idempotence=False),
        "enable.idempotence=false",
        "leave enable.idempotence out",
    ),
    "an empty transactional id": Wrong(producer(transactional_id=""), "is empty", "name it"),
    "a transaction's timeout alone": Wrong(
        producer(transaction_timeout_ms=5), "transaction.timeout.ms", "transactional.id"
    ),
    "messages outlast their transaction": Wrong(
        producer(transactional_id="t", transaction_timeout_ms=40_000, delivery_timeout_ms=50_000),
        "is above",
        "must not outlast",
    ),
    "too short a delivery": Wrong(
        producer(delivery_timeout_ms=100), "delivery.timeout.ms=100", "raise it or lower"
    ),
    "a consumer's setting": Wrong(producer(group_id="g"), "group.id", "setting of consumers"),
    "a producer's setting": Wrong(consumer(linger_ms=5), "linger.ms", "setting of producers"),
    "a producer's setting for an admin": Wrong(
        lambda _: Admin(NOWHERE, acks="all"), "acks", "no setting of an Admin"
    ),
    "the group as a setting": Wrong(consumer(group_id="g"), "group.id", 'group="..."'),
    "an empty group": Wrong(consumer(""), "an empty name is no group", "leave it out"),
    "no topic": Wrong(lambda _: Consumer(NOWHERE, []), "topics", "name at least one"),
    "an empty topic": Wrong(lambda _: Consumer(NOWHERE, ""), "topics", "name at least one"),
    "commits without a group": Wrong(
        consumer(None, enable_auto_commit=True), "without a group", 'give group="..."'
    ),
    "a group's setting alone": Wrong(
        consumer(None, session_timeout_ms=9000), "session.timeout.ms", 'give group="..."'
    ),
    "a classic setting in the new protocol": Wrong(
        consumer(group_protocol="consumer", session_timeout_ms=9000),
        "of the classic protocol",
        "the broker decides it",
    ),
    "an unknown protocol": Wrong(consumer(group_protocol="new"), "'new'", "classic, consumer"),
    "heartbeats too rare": Wrong(
        consumer(heartbeat_interval_ms=45_000), "heartbeat.interval.ms=45000", "must be below"
    ),
    "polls too frequent": Wrong(
        consumer(max_poll_interval_ms=1000), "max.poll.interval.ms=1000", "must be at least"
    ),
    "too many records a poll": Wrong(
        consumer(max_poll_records=0), "max.poll.records=0", "1 to 1000000"
    ),
    "an unknown isolation": Wrong(
        consumer(isolation_level="commited"), "'commited'", "read_committed"
    ),
    "an unknown start": Wrong(consumer(auto_offset_reset="begin"), "'begin'", "earliest"),
    "no start without a group": Wrong(
        consumer(None, auto_offset_reset="none"), "auto.offset.reset=none", "take earliest"
    ),
    "offsets stored by hand": Wrong(
        consumer(enable_auto_offset_store=True), "enable.auto.offset.store", "set by Consumer"
    ),
    "an unknown serializer": Wrong(producer(value_serializer="yaml"), "yaml", "json"),
    "a number as serializer": Wrong(producer(key_serializer=5), "int", "callable"),
    "a value without serializer": Wrong(send({"a": 1}), "dict", 'value_serializer="json"'),
    "no JSON": Wrong(send({1, 2}, value_serializer="json"), "set is no JSON", "serializable"),
    "rows of another schema": Wrong(
        send({"n": "x"}, value_serializer=ROWS), "do not fit the schema", "x"
    ),
    "headers without values": Wrong(
        with_producer(lambda made: made.send("topic", "a", headers=cast(Any, [5]))),
        "not [5]",
        "pairs (name, value)",
    ),
    "a header alone": Wrong(
        with_producer(lambda made: made.send("topic", "a", headers=cast(Any, 5))),
        "not 5",
        "a mapping of names to values",
    ),
    "a date as timestamp": Wrong(
        with_producer(
            lambda made: made.send("topic", "a", timestamp=cast(Any, datetime(2024, 1, 1)))  # noqa: DTZ001
        ),
        "not datetime.datetime(2024",
        "int(time.timestamp() * 1000)",
    ),
    "a text as timestamp": Wrong(
        with_producer(lambda made: made.send("topic", "a", timestamp=cast(Any, "a"))),
        "not 'a'",
        "milliseconds since 1970",
    ),
    "a send after close": Wrong(send_after_close, "the producer is closed", "make a new one"),
    "a transaction without its id": Wrong(
        with_producer(lambda made: made.transaction()), "no transactional.id", "make it with"
    ),
    "a send outside of the transaction": Wrong(
        with_producer(lambda made: made.send("topic", "a"), transactional_id="outside"),
        "transactional.id=outside",
        "with producer.transaction()",
    ),
    "a transaction in a transaction": Wrong(
        with_producer(nest, transactional_id="nest"), "a transaction is open", "one at a time"
    ),
    "a commit without a group": Wrong(
        with_consumer(lambda made: made.commit(), None), "without a group", 'give group="..."'
    ),
    "to the end in a group": Wrong(
        with_consumer(lambda made: list(made.to_end())), "to_end", "leave the group out"
    ),
    "a poll after close": Wrong(poll_after_close, "is closed", "make a new one"),
    "exactly once without a group": Wrong(
        with_both({}, {"transactional_id": "e"}), "needs a group", 'give group="..."'
    ),
    "exactly once with commits": Wrong(
        with_both({"group": "g"}, {"transactional_id": "e"}),
        "must not commit by itself",
        "enable_auto_commit=False",
    ),
    "exactly once without transactions": Wrong(
        with_both(STEADY, {}), "the sink needs", "transactional_id"
    ),
    "exactly once of aborted messages": Wrong(
        with_both(STEADY | {"isolation_level": "read_uncommitted"}, {"transactional_id": "e"}),
        "would pass on what is aborted",
        "leave it out",
    ),
    "a tuple of transform": Wrong(
        transform_to(("upper", "A")), "str is no NewMessage", "return NewMessage(topic"
    ),
    "a number of transform": Wrong(
        transform_to([5]), "int is no NewMessage", "a list of them, or None"
    ),
    "an absent topic": Wrong(
        lambda broker: Consumer(broker.bootstrap, "absent", allow_auto_create_topics=False),
        "absent",
        "create it first",
    ),
    "a topic twice": Wrong(
        lambda broker: Admin(broker.bootstrap).create_topic("topic"), "topic", "already exists"
    ),
    "a mistyped topic setting": Wrong(
        lambda broker: Admin(broker.bootstrap).set_configs("topic", {"retention.mz": 1}),
        "retention.mz",
        "retention.ms",
    ),
    "fewer partitions": Wrong(
        lambda broker: Admin(broker.bootstrap).add_partitions("topic", 1),
        "partitions of topic topic",
        "only added",
    ),
    "a table of an absent topic": Wrong(
        lambda broker: Table(broker.store, "absent").to_arrow(), "absent", "topics"
    ),
    "a table of no store": Wrong(
        lambda _: Table("/some/folder", "topic").to_arrow(), "/some/folder", "file://"
    ),
    "an unknown column": Wrong(table(columns=["valu"]), "'valu'", "there are partition, offset"),
    "an unknown selection": Wrong(table(colums=["value"]), "colums", "there are columns"),
    "a range that ends before it begins": Wrong(
        table(offsets=(5, 1)), "5 is above 1", "(first, end)"
    ),
    "a partition that is not there": Wrong(table(partitions=[7]), "no partition 7", "only 2"),
    "a time without a zone": Wrong(
        table(since=datetime(2024, 1, 1)),  # noqa: DTZ001
        "no time zone",
        "datetime.UTC",
    ),
    "a producer in two loops": Wrong(two_loops, "another event loop", "make one in each"),
    "a consumer that has not started": Wrong(read_before_start, "not started", "async with"),
}


@pytest.fixture(scope="module")
def broker() -> Any:
    with Broker() as made:
        Admin(made.bootstrap).create_topic("topic", partitions=2)
        yield made


def test_fifty_wrong_uses_are_tried() -> None:
    assert len(WRONG_USES) >= 50


@pytest.mark.parametrize("wrong", WRONG_USES.values(), ids=WRONG_USES)
def test_a_wrong_use_is_named_with_its_remedy(broker: Broker, wrong: Wrong) -> None:
    with pytest.raises(TidelogError) as raised:
        wrong.use(broker)
    said = str(raised.value)
    assert wrong.mistake in said
    assert wrong.remedy in said
