"""kill -9 while a coordinator's state is snapshotted. Its successor knows the same state, from the
snapshot or from the log."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.integration.test_transaction_crashes import (
    GROUP,
    OUT,
    PARTITIONS,
    SOURCE,
    Server,
    await_decisions,
    check,
    read,
    transact,
)
from tidelog.client.operations import ProducerIdentity
from tidelog.client.pool import Client
from tidelog.client.transactions.producer import TransactionalProducer
from tidelog.client.transactions.settings import TransactionalProducerSettings, TransactionVersion
from tidelog.clock import SystemClock
from tidelog.entropy import SystemEntropy
from tidelog.network import SocketNetwork

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

SETTINGS = {
    "offsets.topic.num.partitions": 2,
    "transaction.state.log.num.partitions": 2,
    "coordinator.snapshot.interval.records": 1,
}


async def take_over(listen: str) -> ProducerIdentity:
    """Initialise the producer again, so that its next epoch shows the state of the successor."""
    host, port = listen.split(":")
    clock = SystemClock()
    async with Client(SocketNetwork(), clock, [(host, int(port))]) as client:
        settings = TransactionalProducerSettings()
        producer = TransactionalProducer(client, clock, SystemEntropy(), "worker", settings)
        await producer.init_transactions()
        return producer.identity


@pytest.mark.parametrize("point", ["snapshot captured", "snapshot written"])
@pytest.mark.parametrize("hit", [1, 2, 4])
def test_a_state_survives_a_death_while_it_is_snapshotted(
    tmp_path: Path, point: str, hit: int
) -> None:
    server = Server(tmp_path, f"{point}:{hit}", SETTINGS)
    try:
        admin = AdminClient({"bootstrap.servers": server.broker.kafka})
        topics = [NewTopic(OUT, PARTITIONS), NewTopic(SOURCE, 1)]

        async def story() -> list[int]:
            async with server.kept_alive():
                for created in admin.create_topics(topics).values():
                    await asyncio.to_thread(created.result, 60)
                return await transact(server, TransactionVersion.V2)

        committed = asyncio.run(story())
        assert server.deaths == 1, "the crash point was not hit"
        assert committed == [each for each in range(committed[-1] + 1) if each % 3 != 2]
        with server._start(None) as survivor:
            await_decisions(survivor.kafka)
            check(read(survivor.kafka, "read_committed"), committed)
            consumer = Consumer({"bootstrap.servers": survivor.kafka, "group.id": GROUP})
            (place,) = consumer.committed([TopicPartition(SOURCE, 0)], 60)
            consumer.close()
            assert place.offset == committed[-1] + 1
            before = asyncio.run(take_over(server.listen))
        with server._start(None):
            # The same producer id with the next epoch: the successor knows the transactional id.
            after = asyncio.run(take_over(server.listen))
            assert after == ProducerIdentity(before.producer_id, before.producer_epoch + 1)
        states = list((tmp_path / "bucket" / "state").glob("*/*/*.parquet"))
        assert {state.parts[-3] for state in states} == {
            "__consumer_offsets",
            "__transaction_state",
        }
    finally:
        server.broker.kill()
