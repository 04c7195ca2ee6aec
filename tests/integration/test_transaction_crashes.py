"""kill -9 between any two steps of a transaction: all of it shows, or none of it, in every
partition.

The broker writes one WAL object for each entry (`wal.object.max.bytes`) and makes one upload at a
time. So decision, markers and completion lie in slots of their own, and the process dies between
two of them.
"""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from confluent_kafka import Consumer, IsolationLevel, KafkaError, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

from tidelog.client.groups.admin import Place
from tidelog.client.pool import Client
from tidelog.client.transactions.errors import MustAbort, ProducerFenced
from tidelog.client.transactions.producer import TransactionalProducer
from tidelog.client.transactions.settings import TransactionalProducerSettings, TransactionVersion
from tidelog.clock import SystemClock
from tidelog.entropy import SystemEntropy
from tidelog.errors import Refused, TidelogError
from tidelog.localstack.broker_process import BrokerProcess
from tidelog.localstack.ports import free_ports
from tidelog.network import SocketNetwork
from tidelog.records.records import NewRecord

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

OUT, SOURCE, GROUP = "out", "source", "progress"
PARTITIONS = 3
TRANSACTIONS, TRANSACTIONS_MAX = 8, 400
SETTINGS = {
    "wal.object.max.bytes": 1,
    "wal.uploads.in.flight.max": 1,
    "offsets.topic.num.partitions": 2,
    "transaction.state.log.num.partitions": 2,
}


class Server:
    """The present broker. Within `restarting`, a new one starts on its bucket and port when it has
    died."""

    def __init__(self, folder: Path, crash: str, settings: Mapping[str, object] = SETTINGS) -> None:
        self.folder = folder
        self.settings = settings
        self.listen = f"127.0.0.1:{free_ports(1)[0]}"
        self.deaths = 0
        """Deaths after which a new broker has started."""
        self.broker = self._start(crash)
        self._is_over = False

    def _start(self, crash: str | None) -> BrokerProcess:
        return BrokerProcess.start(
            f"file://{self.folder / 'bucket'}",
            self.folder / "broker.log",
            listen=self.listen,
            settings=self.settings,
            crash_points=crash,
        )

    @asynccontextmanager
    async def kept_alive(self) -> AsyncIterator[None]:
        """Within this block a new broker starts whenever one has died. Afterwards none is left."""
        keeping = asyncio.create_task(self._keep_alive())
        try:
            yield
        finally:
            self._is_over = True
            self.broker.kill()
            await keeping

    async def _keep_alive(self) -> None:
        while True:
            code = await asyncio.to_thread(self.broker.process.wait)
            if self._is_over:
                return
            assert code == -signal.SIGKILL, f"the broker ended by itself: {code}"
            self.broker.wait_for_death(1)
            self.broker = await asyncio.to_thread(self._start, None)
            self.deaths += 1
            if self._is_over:
                self.broker.kill()
                return


async def transact(server: Server, version: TransactionVersion) -> list[int]:
    """Run transactions over all partitions and a group's offset, until the broker has died among
    them. Every third one is aborted. A failed transaction is repeated. Returns the numbers of the
    committed ones."""
    host, port = server.listen.split(":")
    settings = TransactionalProducerSettings(version=version)
    committed = []
    clock, entropy = SystemClock(), SystemEntropy()
    async with Client(SocketNetwork(), clock, [(host, int(port))]) as client:
        producer = TransactionalProducer(client, clock, entropy, "worker", settings)
        await producer.init_transactions()
        for number in range(TRANSACTIONS_MAX):
            if number >= TRANSACTIONS and server.deaths:
                break
            done = False
            while not done:
                try:
                    done = await attempt(producer, number)
                except ProducerFenced:
                    # The new coordinator aborted the transaction that was open when the old one
                    # died.
                    producer = TransactionalProducer(client, clock, entropy, "worker", settings)
                    await producer.init_transactions()
            if number % 3 != 2:
                committed.append(number)
    return committed


async def attempt(producer: TransactionalProducer, number: int) -> bool:
    """One transaction. Returns False if it must be repeated."""
    producer.begin()
    record = [NewRecord(b"%d" % number, b"k")]
    try:
        for partition in range(PARTITIONS):
            await producer.send(OUT, partition, record)
        await producer.send_offsets(GROUP, {Place(SOURCE, 0): number + 1})
    except MustAbort:
        await until_known(producer.abort)
        return False
    await until_known(producer.abort if number % 3 == 2 else producer.commit)
    return True


async def until_known(end: object) -> None:
    """Commit or abort again until the outcome is known."""
    for _ in range(20):
        try:
            await end()  # type: ignore[operator]
        except (ProducerFenced, MustAbort):
            raise
        except (TidelogError, Refused):
            continue
        return
    raise AssertionError("the outcome of a transaction stayed unknown")


def await_decisions(bootstrap: str) -> None:
    """Wait until the new broker has ended all transactions, including those that the old one
    decided."""
    admin = AdminClient({"bootstrap.servers": bootstrap})

    def ends(isolation: IsolationLevel) -> list[int]:
        asked = {TopicPartition(OUT, each): OffsetSpec.latest() for each in range(PARTITIONS)}
        found = admin.list_offsets(asked, isolation_level=isolation, request_timeout=60)
        return [found[place].result().offset for place in asked]

    for _ in range(10_000):
        if ends(IsolationLevel.READ_COMMITTED) == ends(IsolationLevel.READ_UNCOMMITTED):
            return
    raise AssertionError("the last stable offset does not reach the end")


def read(bootstrap: str, isolation: str) -> dict[int, list[int]]:
    """Each partition's transactions, by an independent reader."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "reader",
            "isolation.level": isolation,
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    consumer.assign([TopicPartition(OUT, each, 0) for each in range(PARTITIONS)])
    found: dict[int, list[int]] = {each: [] for each in range(PARTITIONS)}
    at_end: set[int] = set()
    while len(at_end) < PARTITIONS:
        message = consumer.poll(60)
        assert message is not None, "the end of a partition is not reached"
        if message.error() is None:
            found[message.partition()].append(int(message.value()))
        elif message.error().code() == KafkaError._PARTITION_EOF:
            at_end.add(message.partition())
    consumer.close()
    return found


def check(found: dict[int, list[int]], committed: Sequence[int]) -> None:
    """Each partition has each committed transaction once, and no other."""
    for partition, numbers in found.items():
        assert Counter(numbers) == Counter(committed), f"partition {partition}"
        assert numbers == sorted(numbers)


@pytest.mark.parametrize("version", TransactionVersion)
@pytest.mark.parametrize(
    "crash",
    [
        "prepare durable:1",
        "prepare durable:3",
        "between markers:2",
        "between markers:3",
        "markers durable:1",
        "markers durable:4",
        *(f"slot upload:{number}" for number in (14, 19, 23, 27, 32, 38, 45, 53)),
    ],
)
def test_a_transaction_is_whole_or_not_there(
    tmp_path: Path, crash: str, version: TransactionVersion
) -> None:
    server = Server(tmp_path, crash)
    try:
        admin = AdminClient({"bootstrap.servers": server.broker.kafka})
        topics = [NewTopic(OUT, PARTITIONS), NewTopic(SOURCE, 1)]

        async def story() -> list[int]:
            async with server.kept_alive():
                for created in admin.create_topics(topics).values():
                    await asyncio.to_thread(created.result, 60)
                return await transact(server, version)

        committed = asyncio.run(story())
        assert server.deaths == 1, "the crash point was not hit"
        assert committed == [each for each in range(committed[-1] + 1) if each % 3 != 2]
        with server._start(None) as survivor:
            await_decisions(survivor.kafka)
            check(read(survivor.kafka, "read_committed"), committed)
            everything = read(survivor.kafka, "read_uncommitted")
            assert all(set(numbers) >= {2, 5} for numbers in everything.values())
            consumer = Consumer({"bootstrap.servers": survivor.kafka, "group.id": GROUP})
            place = consumer.committed([TopicPartition(SOURCE, 0)], 60)[0]
            consumer.close()
            assert place.offset == committed[-1] + 1
    finally:
        server.broker.kill()
