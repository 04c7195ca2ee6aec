"""A worker that moves records from one topic to two others in transactions. It aborts every third
one on purpose. It is a separate process, which a test may kill at any moment.

    python -m tests.compat.kit.transform_worker LIBRARY BOOTSTRAP NAME SOURCE LEFT RIGHT

It reports its steps on standard output, a word a line: ready, sent, offsets, committed, aborted.
`NAME` is its transactional id, its group and its member of that group. An error that the library
calls abortable aborts the transaction; any other one ends the process. The library
`confluent-kafka-consumer` is confluent-kafka in a group of the consumer protocol (KIP-848). The
variable CLIENT_PROPERTIES may name a file with more properties of confluent-kafka, as NAME=VALUE.
"""

from __future__ import annotations

import asyncio
import faulthandler
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, NoReturn

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka import TopicPartition as AioTopicPartition
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from kafka import KafkaConsumer, KafkaProducer
from kafka import TopicPartition as PyTopicPartition
from kafka.structs import OffsetAndMetadata

BATCH_RECORDS_MAX = 5
ABORTED_EVERY = 3
SESSION_TIMEOUT_MS = 10_000
CALL_SECONDS, CALLS_MAX = 20.0, 6
STUCK_SECONDS = 60.0
"""librdkafka 2.16 may wait for ever, in spite of timeouts: for a coordinator whose broker was away
(its #5511), and for a consumer after a fatal error. Then the process ends, and its successor
continues."""
MEMBERSHIP_LOST = (
    KafkaError.UNKNOWN_MEMBER_ID,
    KafkaError.ILLEGAL_GENERATION,
    KafkaError.FENCED_INSTANCE_ID,
    KafkaError.REBALANCE_IN_PROGRESS,
)


class Job(NamedTuple):
    """The broker, the name, the input and the outputs of a worker."""

    bootstrap: str
    name: str
    source: str
    left: str
    right: str


def say(word: str) -> None:
    """Print a word for the watching test."""
    print(word, flush=True)


class SliceTurns:
    """The number of a transaction, and its intended outcome."""

    def __init__(self) -> None:
        self._number = 0

    def next(self) -> bool:
        """Begin the next transaction. Returns whether it is to be committed."""
        self._number += 1
        return self._number % ABORTED_EVERY != 0

    def output(self, value: bytes, *, commits: bool) -> bytes:
        """The derived record: the input, the number of the attempt, and the intended outcome."""
        fate = "committed" if commits else "aborted"
        return b"%s:%d.%d:%s" % (value, os.getpid(), self._number, fate.encode())


def more_properties() -> dict[str, str | int]:
    """The client's properties of the file that the environment names."""
    path = os.environ.get("CLIENT_PROPERTIES")
    lines = Path(path).read_text().splitlines() if path else []
    return {name: value for name, _, value in (line.partition("=") for line in lines)}


def derived(job: Job, value: bytes) -> Iterator[tuple[str, int]]:
    """The partitions of a record's outputs: both topics have two."""
    number = int(value)
    yield job.left, number % 2
    yield job.right, number // 2 % 2


# confluent-kafka.


def confluent(job: Job, member: dict[str, str | int]) -> NoReturn:
    """A worker on librdkafka. `member`: how the consumer is a member of its group."""
    more = more_properties()
    consumer = Consumer(
        {
            "bootstrap.servers": job.bootstrap,
            "group.id": job.name,
            **member,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "reconnect.backoff.max.ms": 500,
            # Otherwise librdkafka 2.16 may wait for ever for a coordinator that was away (its
            # #5511).
            "metadata.recovery.strategy": "none",
            **more,
        }
    )
    producer = Producer(
        {
            "bootstrap.servers": job.bootstrap,
            "transactional.id": job.name,
            "linger.ms": 0,
            "reconnect.backoff.max.ms": 500,
            "metadata.recovery.strategy": "none",
            **more,
        }
    )
    producer.init_transactions(60)
    consumer.subscribe([job.source])
    say("ready")
    turns = SliceTurns()
    while True:
        faulthandler.dump_traceback_later(STUCK_SECONDS, exit=True)
        found = consumer.consume(BATCH_RECORDS_MAX, timeout=0.2)
        for fault in (m.error() for m in found):
            # The error of a message never says that it is fatal, except by its code. The consumer
            # is silent from then on.
            if fault is not None and fault.code() == KafkaError._FATAL:
                raise KafkaException(fault)
        values = [(m.topic(), m.partition(), m.offset(), m.value()) for m in found if not m.error()]
        if not values:
            continue
        commits = turns.next()
        try:
            producer.begin_transaction()
            for _, _, _, value in values:
                for topic, partition in derived(job, value):
                    output = turns.output(value, commits=commits)
                    producer.produce(topic, output, partition=partition)
            producer.flush(60)
            say("sent")
            producer.send_offsets_to_transaction(
                [TopicPartition(t, p, o + 1) for t, p, o, _ in last_of_each(values)],
                consumer.consumer_group_metadata(),
                CALL_SECONDS,
            )
            say("offsets")
            if commits:
                _repeat(producer.commit_transaction)
                say("committed")
                continue
        except KafkaException as error:
            if not error.args[0].txn_requires_abort():
                raise
            print(f"aborting: {error}", file=sys.stderr, flush=True)
            if error.args[0].code() in MEMBERSHIP_LOST:
                # A seek in a partition that is no longer assigned may wait for ever.
                _repeat(producer.abort_transaction)
                raise
        _repeat(producer.abort_transaction)
        say("aborted")
        for place in first_of_each(values):
            consumer.seek(TopicPartition(*place[:3]))


def _repeat(call: Callable[[float], None]) -> None:
    """Repeat the call as long as the library says that it may be repeated."""
    for remaining in reversed(range(CALLS_MAX)):
        try:
            return call(CALL_SECONDS)
        except KafkaException as error:
            if not (remaining and error.args[0].retriable()):
                raise
    raise AssertionError("the last call returns or raises")


Place = tuple[str, int, int, bytes]


def last_of_each(found: Sequence[Place]) -> list[Place]:
    """The last record of each partition."""
    return list({each[:2]: each for each in found}.values())


def first_of_each(found: Sequence[Place]) -> list[Place]:
    """The first record of each partition."""
    return list({each[:2]: each for each in reversed(found)}.values())


# kafka-python.


def kafka_python(job: Job) -> NoReturn:
    """A worker on kafka-python, which calls no error abortable."""
    consumer = KafkaConsumer(
        job.source,
        bootstrap_servers=job.bootstrap,
        group_id=job.name,
        group_instance_id=job.name,
        session_timeout_ms=SESSION_TIMEOUT_MS,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        isolation_level="read_committed",
        reconnect_backoff_max_ms=500,
    )
    producer = KafkaProducer(
        bootstrap_servers=job.bootstrap, transactional_id=job.name, reconnect_backoff_max_ms=500
    )
    producer.init_transactions()
    say("ready")
    turns = SliceTurns()
    while True:
        polled = consumer.poll(timeout_ms=200, max_records=BATCH_RECORDS_MAX)
        found = [
            (m.topic, m.partition, m.offset, m.value) for each in polled.values() for m in each
        ]
        if not found:
            continue
        commits = turns.next()
        producer.begin_transaction()
        sent = [
            producer.send(topic, turns.output(value, commits=commits), partition=partition)
            for _, _, _, value in found
            for topic, partition in derived(job, value)
        ]
        producer.flush()
        for future in sent:
            future.get(60)
        say("sent")
        producer.send_offsets_to_transaction(
            {
                PyTopicPartition(t, p): OffsetAndMetadata(o + 1, "", -1)
                for t, p, o, _ in last_of_each(found)
            },
            consumer.group_metadata(),
        )
        say("offsets")
        if commits:
            producer.commit_transaction()
            say("committed")
        else:
            producer.abort_transaction()
            say("aborted")
            for t, p, o, _ in first_of_each(found):
                consumer.seek(PyTopicPartition(t, p), o)


# aiokafka.


async def aiokafka(job: Job) -> NoReturn:
    """A worker on aiokafka, which calls no error abortable."""
    consumer = AIOKafkaConsumer(
        job.source,
        bootstrap_servers=job.bootstrap,
        group_id=job.name,
        group_instance_id=job.name,
        session_timeout_ms=SESSION_TIMEOUT_MS,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        isolation_level="read_committed",
    )
    producer = AIOKafkaProducer(bootstrap_servers=job.bootstrap, transactional_id=job.name)
    await producer.start()
    await consumer.start()
    say("ready")
    turns = SliceTurns()
    while True:
        polled = await consumer.getmany(timeout_ms=200, max_records=BATCH_RECORDS_MAX)
        found = [
            (m.topic, m.partition, m.offset, m.value) for each in polled.values() for m in each
        ]
        if not found:
            continue
        commits = turns.next()
        await producer.begin_transaction()
        sent = [
            await producer.send(topic, turns.output(value, commits=commits), partition=partition)
            for _, _, _, value in found
            for topic, partition in derived(job, value)
        ]
        await asyncio.gather(*sent)
        say("sent")
        await producer.send_offsets_to_transaction(
            {AioTopicPartition(t, p): o + 1 for t, p, o, _ in last_of_each(found)}, job.name
        )
        say("offsets")
        if commits:
            await producer.commit_transaction()
            say("committed")
        else:
            await producer.abort_transaction()
            say("aborted")
            for t, p, o, _ in first_of_each(found):
                consumer.seek(AioTopicPartition(t, p), o)


def main(library: str, *arguments: str) -> NoReturn:
    """Run until killed."""
    job = Job(*arguments)
    match library:
        case "confluent-kafka":
            named = {"group.instance.id": job.name, "session.timeout.ms": SESSION_TIMEOUT_MS}
            confluent(job, named)
        case "confluent-kafka-consumer":
            confluent(job, {"group.protocol": "consumer"})
        case "kafka-python":
            kafka_python(job)
        case "aiokafka":
            asyncio.run(aiokafka(job))
    raise SystemExit(f"no such library: {library}")


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except BaseException:  # noqa: BLE001 - whatever it is, the process ends
        traceback.print_exc()
        # librdkafka may wait for ever for a group that the consumer has lost.
        os._exit(1)
