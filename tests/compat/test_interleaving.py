"""Foreign readers agree with a model of the log, and the last stable offset is exact at every step.
Two transactional producers, one of each version of the protocol, and a plain one write to one
partition in any order. A flush moves decided records into the table now and then."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from aiokafka import AIOKafkaConsumer
from aiokafka import TopicPartition as AioTopicPartition
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from kafka import KafkaConsumer
from kafka import TopicPartition as PyTopicPartition

from tests.compat.kit.broker_view import with_client
from tests.compat.kit.clients import java_client
from tidelog.client.admin.flush import flush_topic
from tidelog.client.operations import LATEST, IsolationLevel, list_offsets
from tidelog.client.pool import Client
from tidelog.client.transactions.producer import TransactionalProducer
from tidelog.client.transactions.settings import TransactionalProducerSettings, TransactionVersion
from tidelog.clock import SystemClock
from tidelog.entropy import SeededEntropy
from tidelog.localstack.broker_process import BrokerProcess
from tidelog.records.records import NewRecord

pytestmark = pytest.mark.compat

STEPS = 60
SEEDS = (1, 2, 3)
FLUSHED_AFTER = (STEPS // 3, STEPS // 2)
SECONDS_MAX = 120.0
PLAIN = "plain"


class LogModel:
    """The records of a partition, and those that a read_committed reader sees."""

    def __init__(self) -> None:
        self.end = 0
        self._records: list[tuple[int, str, bytes]] = []
        self._open: dict[str, int] = {}
        self._aborted: list[tuple[str, int, int]] = []

    def append(self, producer: str, value: bytes) -> None:
        if producer != PLAIN:
            self._open.setdefault(producer, self.end)
        self._records.append((self.end, producer, value))
        self.end += 1

    def finish(self, producer: str, *, commit: bool) -> None:
        """A marker takes one offset in each partition to which the transaction has written."""
        first = self._open.pop(producer, None)
        if first is None:
            return
        if not commit:
            self._aborted.append((producer, first, self.end))
        self.end += 1

    @property
    def last_stable_offset(self) -> int:
        return min(self._open.values(), default=self.end)

    def visible(self) -> list[tuple[int, bytes]]:
        """Offsets and values for read_committed readers."""
        return [
            (offset, value)
            for offset, producer, value in self._records
            if offset < self.last_stable_offset
            and not any(p == producer and a <= offset < b for p, a, b in self._aborted)
        ]


class FirstVersion:
    """confluent-kafka's producer."""

    name = "first"

    def __init__(self, bootstrap: str, topic: str) -> None:
        self._topic = topic
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "transactional.id": f"{topic}.first",
                "linger.ms": 0,
            }
        )
        self._producer.init_transactions(SECONDS_MAX)

    async def begin(self) -> None:
        self._producer.begin_transaction()

    async def send(self, value: bytes) -> None:
        self._producer.produce(self._topic, value, partition=0)
        assert self._producer.flush(SECONDS_MAX) == 0

    async def finish(self, *, commit: bool) -> None:
        if commit:
            self._producer.commit_transaction(SECONDS_MAX)
        else:
            self._producer.abort_transaction(SECONDS_MAX)


class SecondVersion:
    """Tidelog's own producer under Transactions V2."""

    name = "second"

    def __init__(self, client: Client, topic: str) -> None:
        self._topic = topic
        self.producer = TransactionalProducer(
            client,
            SystemClock(),
            SeededEntropy(0),
            f"{topic}.second",
            TransactionalProducerSettings(version=TransactionVersion.V2),
        )

    async def begin(self) -> None:
        self.producer.begin()

    async def send(self, value: bytes) -> None:
        await self.producer.send(self._topic, 0, [NewRecord(value)])

    async def finish(self, *, commit: bool) -> None:
        await (self.producer.commit() if commit else self.producer.abort())


class Interleaving:
    """Steps of three producers in a random order. After each step, both ends of the partition agree
    with the model."""

    def __init__(self, client: Client, bootstrap: str, topic: str, seed: int) -> None:
        self.model = LogModel()
        self._client = client
        self._topic = topic
        self._chance = random.Random(seed)
        self._second = SecondVersion(client, topic)
        self._producers: list[FirstVersion | SecondVersion] = [
            FirstVersion(bootstrap, topic),
            self._second,
        ]
        self._plain = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0})
        self._begun: list[FirstVersion | SecondVersion] = []

    async def run(self) -> None:
        """Transactions may be open at the end."""
        await self._second.producer.init_transactions()
        for step in range(STEPS):
            one = self._chance.choice([None, *self._producers, *self._producers])
            await self._step(one, b"%d" % step)
            if step in FLUSHED_AFTER:
                await self.flush()

    async def end_all(self) -> None:
        """End the open transactions, and write one more record, at which the readers stop."""
        while self._begun:
            await self._finish(self._begun[0])
        await self._step(None, b"last")

    async def flush(self) -> None:
        """Flush: from here on readers get decided records from the table, and later ones from the
        WAL."""
        [found] = await flush_topic(self._client, self._topic, int(SECONDS_MAX * 1000))
        assert found.refusal is None
        stable, end = self.model.last_stable_offset, self.model.end
        assert (found.table_next, found.high_watermark) == (stable, end)
        assert found.held_at == (stable if self._begun else None)

    async def _step(self, one: FirstVersion | SecondVersion | None, value: bytes) -> None:
        if one is None:
            self._plain.produce(self._topic, value, partition=0)
            assert self._plain.flush(SECONDS_MAX) == 0
            self.model.append(PLAIN, value)
        elif one not in self._begun or self._chance.random() < 0.6:
            if one not in self._begun:
                await one.begin()
                self._begun.append(one)
            await one.send(value)
            self.model.append(one.name, value)
        else:
            await self._finish(one)
        await self._check_ends(value)

    async def _finish(self, one: FirstVersion | SecondVersion) -> None:
        commit = self._chance.random() < 0.5
        await one.finish(commit=commit)
        self._begun.remove(one)
        self.model.finish(one.name, commit=commit)

    async def _check_ends(self, value: bytes) -> None:
        place = self._client, self._topic, 0, LATEST
        stable = await list_offsets(*place, IsolationLevel.READ_COMMITTED)
        end = await list_offsets(*place, IsolationLevel.READ_UNCOMMITTED)
        assert (stable.offset, end.offset) == (self.model.last_stable_offset, self.model.end), value


Seen = list[tuple[int, bytes]]


def read_with_confluent(bootstrap: str, topic: str) -> Seen:
    """Read up to the end that the client reports."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "unused",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
        }
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    seen: Seen = []
    while True:
        message = consumer.poll(SECONDS_MAX)
        assert message is not None
        if message.error():
            consumer.close()
            return seen
        seen.append((message.offset(), message.value()))


def read_with_kafka_python(bootstrap: str, topic: str) -> Seen:
    """Read up to the last stable offset."""
    consumer = KafkaConsumer(
        bootstrap_servers=bootstrap, isolation_level="read_committed", enable_auto_commit=False
    )
    place = PyTopicPartition(topic, 0)
    consumer.assign([place])
    consumer.seek(place, 0)
    [end] = consumer.end_offsets([place]).values()
    seen: Seen = []
    while consumer.position(place) < end:
        polled = consumer.poll(timeout_ms=1000)
        seen += [(m.offset, m.value) for each in polled.values() for m in each]
    consumer.close()
    return seen


def read_with_aiokafka(bootstrap: str, topic: str) -> Seen:
    """Read up to the last stable offset."""

    async def run() -> Seen:
        consumer = AIOKafkaConsumer(
            bootstrap_servers=bootstrap, isolation_level="read_committed", enable_auto_commit=False
        )
        await consumer.start()
        try:
            place = AioTopicPartition(topic, 0)
            consumer.assign([place])
            consumer.seek(place, 0)
            [end] = (await consumer.end_offsets([place])).values()
            seen: Seen = []
            while await consumer.position(place) < end:
                polled = await consumer.getmany(timeout_ms=1000)
                seen += [(m.offset, m.value) for each in polled.values() for m in each]
            return seen
        finally:
            await consumer.stop()

    return asyncio.run(run())


READERS: tuple[Callable[[str, str], Seen], ...] = (
    read_with_confluent,
    read_with_kafka_python,
    read_with_aiokafka,
)


@pytest.mark.parametrize("seed", SEEDS)
def test_readers_agree_with_the_log_in_any_order_of_ends_of_transactions(
    broker: BrokerProcess, kafka_lib: Path, seed: int
) -> None:
    topic = f"interleaved-{seed}"
    admin = AdminClient({"bootstrap.servers": broker.kafka})
    admin.create_topics([NewTopic(topic, num_partitions=1)])[topic].result(30)

    def check_readers(model: LogModel) -> None:
        expected = model.visible()
        assert expected
        for reader in READERS:
            assert reader(broker.kafka, topic) == expected, reader.__name__
        java = java_client(kafka_lib).consume(broker.kafka, topic, 1, len(expected))
        assert [(each.offset, each.value) for each in java] == expected

    async def story(client: Client) -> None:
        interleaving = Interleaving(client, broker.kafka, topic, seed)
        await interleaving.run()
        await asyncio.to_thread(check_readers, interleaving.model)
        await interleaving.end_all()
        await asyncio.to_thread(check_readers, interleaving.model)
        await interleaving.flush()
        await asyncio.to_thread(check_readers, interleaving.model)

    with_client(broker.kafka, story)
