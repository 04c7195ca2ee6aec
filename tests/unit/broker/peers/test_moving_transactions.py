"""Transactions go on while partitions and the coordinators of transactions and groups move between
brokers."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence

import pytest

from tests.unit.broker.one_broker import TOPIC, OneBroker, run, until
from tests.unit.broker.ownership.test_several_brokers import epoch_of, take_over, until_served
from tests.unit.broker.peers.several import Wire, create, new_world, refreshed
from tests.unit.broker.peers.test_transactions_between_brokers import until_stable
from tests.unit.broker.sink_world import client_of
from tests.unit.broker.transactional_client import read
from tidelog.client.errors import RequestFailed, RequestRefused
from tidelog.client.groups.admin import Place
from tidelog.client.transactions.errors import MustAbort
from tidelog.client.transactions.producer import TransactionalProducer
from tidelog.client.transactions.settings import TransactionalProducerSettings, TransactionVersion
from tidelog.clock import SystemClock
from tidelog.coordinator.internal_topics import GROUP_TOPIC, TRANSACTION_TOPIC
from tidelog.entropy import SeededEntropy
from tidelog.identifiers import TopicId, TopicPartition
from tidelog.records.records import NewRecord

PARTITIONS = 3
TRANSACTIONS = 12
Committed = dict[int, list[bytes]]


async def owner_of(brokers: Sequence[OneBroker], place: TopicPartition) -> OneBroker:
    """The broker that leads and serves the partition."""
    await refreshed(*brokers)
    tenure = brokers[0].broker.membership.state().leader(place)
    assert tenure is not None
    (owner,) = [each for each in brokers if epoch_of(each) == tenure.incarnation.epoch]
    await until_served(owner, place.topic_id, place.partition)
    return owner


async def move_until(
    is_over: asyncio.Event,
    brokers: Sequence[OneBroker],
    places: Sequence[TopicPartition],
    chance: random.Random,
) -> int:
    """Move one after the other; return the number of moves."""
    moves = 0
    while not is_over.is_set():
        place = chance.choice(places)
        owner = await owner_of(brokers, place)
        other = chance.choice([each for each in brokers if each is not owner])
        moves += len(await owner.broker.ownership.giving.give({place: epoch_of(other)}))
        await asyncio.sleep(chance.uniform(0, 0.1))
    return moves


async def produce(
    one: OneBroker, name: str, version: TransactionVersion, ended: list[int]
) -> Committed:
    """Transactions over all partitions and a group's offsets; every third one is aborted.

    The numbers of ended ones go to `ended`.
    """
    committed: Committed = {number: [] for number in range(PARTITIONS)}
    settings = TransactionalProducerSettings(version=version)
    async with client_of(one) as client:
        producer = TransactionalProducer(client, SystemClock(), SeededEntropy(name), name, settings)
        await producer.init_transactions()
        transaction = 0
        while transaction < TRANSACTIONS:
            values = [b"%s-%d-%d" % (name.encode(), transaction, n) for n in range(PARTITIONS)]
            producer.begin()
            try:
                await asyncio.gather(
                    *(
                        producer.send(TOPIC, number, [NewRecord(value, timestamp=1000)])
                        for number, value in enumerate(values)
                    )
                )
                await producer.send_offsets(name, {Place(TOPIC, 0): transaction})
                if transaction % 3 == 2:
                    await producer.abort()
                else:
                    await commit(producer)
                    for number, value in enumerate(values):
                        committed[number].append(value)
            except MustAbort:
                await producer.abort()
                continue
            ended.append(transaction)
            transaction += 1
    return committed


async def commit(producer: TransactionalProducer) -> None:
    """Commit, even if the coordinator dies before it answers."""
    while True:
        try:
            return await producer.commit()
        except (RequestFailed, RequestRefused):
            await asyncio.sleep(0.01)


async def check(
    brokers: Sequence[OneBroker], topic_id: TopicId, found: Sequence[Committed]
) -> None:
    """Committed records are seen once and in order, and aborted ones never. All transactions have
    ended."""
    for number in range(PARTITIONS):
        owner = await owner_of(brokers, TopicPartition(topic_id, number))
        end = owner.broker.writes.partitions.named(TOPIC, number).log.next_offset
        await until_stable(owner, number, end)
        values = await read(owner, number)
        for name, committed in zip((b"one", b"two"), found, strict=True):
            seen = [each for each in values if each.startswith(name)]
            assert seen == committed[number]


async def shared(brokers: Sequence[OneBroker]) -> list[tuple[TopicId, int]]:
    """The topics, with their numbers of partitions; each broker leads some of each kind."""
    first, second, third = brokers
    await refreshed(first)
    created = [
        (await create(first, TRANSACTION_TOPIC, first, third, internal=True), 2),
        (await create(first, GROUP_TOPIC, second, third, internal=True), 2),
        (await create(first, TOPIC, *brokers), PARTITIONS),
    ]
    await refreshed(*brokers)
    return created


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("loses_hints", [False, True])
def test_transactions_go_on_while_everything_moves(seed: int, loses_hints: bool) -> None:
    async def story() -> None:
        world = new_world(broker_heartbeat_interval_ms=500)
        async with world.broker(0) as first, world.broker(1) as second, world.broker(2) as third:
            brokers = [first, second, third]
            if loses_hints:
                for each in brokers:
                    Wire(each).cut.add("hints")
            topics = await shared(brokers)
            places = [TopicPartition(each, number) for each, n in topics for number in range(n)]
            is_over = asyncio.Event()
            moving = asyncio.create_task(move_until(is_over, brokers, places, random.Random(seed)))
            found = await asyncio.gather(
                produce(first, "one", TransactionVersion.V1, []),
                produce(second, "two", TransactionVersion.V2, []),
            )
            is_over.set()
            # The number of transactions in this time depends on the machine.
            assert await moving >= 3
            await check(brokers, topics[-1][0], found)

    run(story)


@pytest.mark.parametrize("transactions", [3, 7, 12])
def test_transactions_go_on_when_a_broker_dies(transactions: int) -> None:
    """The dead broker leads a transaction coordinator, a group coordinator and partitions. The two
    other brokers take them over."""

    async def story() -> None:
        world = new_world(broker_heartbeat_interval_ms=500)
        async with world.broker(0) as first, world.broker(1) as second:
            brokers = [first, second]
            async with world.broker(2, politely=False) as dead:
                topics = await shared([*brokers, dead])
                ended: list[int] = []
                producing = asyncio.gather(
                    produce(first, "one", TransactionVersion.V1, ended),
                    produce(second, "two", TransactionVersion.V2, ended),
                )
                await until(lambda: len(ended) >= transactions)
            ones = epoch_of(first)
            await take_over(first, dead, {0: ones, 1: epoch_of(second), 2: ones})
            await check(brokers, topics[-1][0], await producing)

    run(story)
