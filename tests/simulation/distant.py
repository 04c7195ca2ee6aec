"""A broker on a store with slow PUTs, in virtual time, and clients that pace themselves."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar
from uuid import UUID

from tests.simulation.actors.kafka_client import KafkaLogClient
from tests.simulation.cluster import Environment, SimulatedCluster, broker_host
from tests.simulation.tidelog_system import PORT, serving
from tests.simulation.world.loop import SimulatedLoop
from tests.simulation.world.network import NetworkSettings, SimulatedNetwork
from tests.simulation.world.store import SimulatedStore, StoreSettings
from tidelog.broker.settings.settings import BrokerSettings
from tidelog.client.settings import ClientSettings
from tidelog.client.transport import BrokerConnection
from tidelog.protocol.error_codes import ErrorCode
from tidelog.protocol.frames import new_scratch
from tidelog.protocol.schemas.cluster.metadata import MetadataRequest
from tidelog.protocol.schemas.coordinators import FindCoordinatorRequest
from tidelog.protocol.schemas.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from tidelog.protocol.schemas.transactions import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    EndTxnRequest,
    InitProducerIdRequest,
)
from tidelog.records.records import NewRecord, encode_batch

T = TypeVar("T")

TOPIC = "paced"
GET_SECONDS = 0.03
NETWORK_SECONDS = 0.0005
TICK_SECONDS = 0.001
FIRST_VERSION = 11
"""The lowest version of produce requests in the first version of transactions."""


@dataclass(frozen=True, slots=True)
class Pace:
    """A producer's load and configuration."""

    records_a_second: float
    partitions: int
    seconds: float
    linger_seconds: float = 0.005
    requests_in_flight_max: int = 5
    partitions_a_request: int | None = None
    """The partitions in one request: some clients send one, others (None) all that are ready."""


@dataclass(slots=True)
class Paced:
    """The measured result of a paced producer."""

    latencies: list[float] = field(default_factory=list)
    """From a record's creation to its acknowledgement, ascending."""
    wal_puts: int = 0
    requests: int = 0
    seconds: float = 0.0

    def percentile(self, share: float) -> float:
        """The latency below which this share is."""
        return self.latencies[min(len(self.latencies) - 1, int(share * len(self.latencies)))]


class PacedProducer:
    """An idempotent producer, with batches and requests like those of Kafka's own client."""

    def __init__(
        self, environment: Environment, connection: BrokerConnection, topic_id: UUID, pace: Pace
    ) -> None:
        self._clock = environment.process.clock
        self._connection = connection
        self._topic_id = topic_id
        self._pace = pace
        self._waiting: dict[int, list[float]] = {}
        """By partition, the creation times of its waiting records. Partitions are in the order of
        their first records."""
        self._sequences: dict[int, int] = {}
        self._identity = (-1, -1)
        self._in_flight: set[asyncio.Task[None]] = set()
        self.paced = Paced()

    async def run(self) -> Paced:
        """Send records for the pace's time, and wait until all are acknowledged."""
        answer = await self._connection.request(
            InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000)
        )
        self._identity = answer.producer_id, answer.producer_epoch
        pace = self._pace
        started = self._clock.monotonic()
        number = 0
        while (now := self._clock.monotonic()) < started + pace.seconds:
            while (due := started + number / pace.records_a_second) <= now:
                self._waiting.setdefault(number % pace.partitions, []).append(due)
                number += 1
            self._send_ready(now)
            await self._clock.sleep(TICK_SECONDS)
        while self._waiting or self._in_flight:
            self._send_ready(self._clock.monotonic())
            await self._clock.sleep(TICK_SECONDS)
        self.paced.seconds = pace.seconds
        self.paced.latencies.sort()
        return self.paced

    def _send_ready(self, now: float) -> None:
        pace = self._pace
        ready = deque(p for p, at in self._waiting.items() if at[0] + pace.linger_seconds <= now)
        while ready and len(self._in_flight) < pace.requests_in_flight_max:
            number = pace.partitions_a_request or len(ready)
            taken = [ready.popleft() for _ in range(min(number, len(ready)))]
            task = asyncio.create_task(self._send({p: self._waiting.pop(p) for p in taken}))
            self._in_flight.add(task)
            task.add_done_callback(self._in_flight.discard)

    async def _send(self, records: Mapping[int, list[float]]) -> None:
        self.paced.requests += 1
        batches = [self._batch(p, len(created)) for p, created in records.items()]
        request = ProduceRequest(
            acks=-1,
            timeout_ms=30_000,
            topic_data=[
                TopicProduceData(name=TOPIC, topic_id=self._topic_id, partition_data=batches)
            ],
        )
        answer = await self._connection.request(request)
        for partition in answer.responses[0].partition_responses:
            assert partition.error_code == 0, ErrorCode(partition.error_code).name
        now = self._clock.monotonic()
        for created in records.values():
            self.paced.latencies += [now - at for at in created]

    def _batch(self, partition: int, count: int) -> PartitionProduceData:
        sequence = self._sequences.get(partition, 0)
        self._sequences[partition] = sequence + count
        now_ms = self._clock.time_ms()
        producer_id, epoch = self._identity
        data = encode_batch(
            [NewRecord(b"x" * 100, timestamp=now_ms)] * count,
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=sequence,
        )
        return PartitionProduceData(index=partition, records=data)


async def timed_transactions(
    environment: Environment, connection: BrokerConnection, topic_id: UUID, rounds: int
) -> list[float]:
    """The latency of each commit of a transaction of one record, with a pause of a second between
    them."""
    clock = environment.process.clock
    name = "t"
    await connection.request(FindCoordinatorRequest(coordinator_keys=[name], key_type=1))
    identity = InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=60_000)
    while (answer := await connection.request(identity)).error_code != 0:
        await clock.sleep(0.1)
    took = []
    for sequence in range(rounds):
        added = await connection.request(
            AddPartitionsToTxnRequest(
                v3_and_below_transactional_id=name,
                v3_and_below_producer_id=answer.producer_id,
                v3_and_below_producer_epoch=answer.producer_epoch,
                v3_and_below_topics=[AddPartitionsToTxnTopic(name=TOPIC, partitions=[0])],
            ),
            3,
        )
        result = added.results_by_topic_v3_and_below[0].results_by_partition[0]
        assert result.partition_error_code == 0, result
        data = encode_batch(
            [NewRecord(b"x", timestamp=clock.time_ms())],
            producer_id=answer.producer_id,
            producer_epoch=answer.producer_epoch,
            base_sequence=sequence,
            is_transactional=True,
        )
        produced = await connection.request(
            ProduceRequest(
                transactional_id=name,
                acks=-1,
                timeout_ms=30_000,
                topic_data=[
                    TopicProduceData(
                        name=TOPIC,
                        topic_id=topic_id,
                        partition_data=[PartitionProduceData(index=0, records=data)],
                    )
                ],
            ),
            FIRST_VERSION,
        )
        assert produced.responses[0].partition_responses[0].error_code == 0, produced
        began = clock.monotonic()
        ended = await connection.request(
            EndTxnRequest(
                transactional_id=name,
                producer_id=answer.producer_id,
                producer_epoch=answer.producer_epoch,
                committed=True,
            ),
            3,
        )
        assert ended.error_code == 0, ended
        took.append(clock.monotonic() - began)
        await clock.sleep(1.0)
    return sorted(took)


def on_a_distant_store(
    put_seconds: float,
    partitions: int,
    use: Callable[[Environment, BrokerConnection, UUID], Awaitable[T]],
    **settings: object,
) -> tuple[T, int]:
    """The result of `use` at a broker whose store takes this long, and the number of PUTs of WAL
    objects meanwhile."""
    with SimulatedLoop(1) as loop:
        store = SimulatedStore(
            loop,
            1,
            StoreSettings(
                put_seconds_min=put_seconds,
                put_seconds_max=put_seconds,
                get_seconds_min=GET_SECONDS,
                get_seconds_max=GET_SECONDS,
                slow_probability=0.0,
            ),
        )
        calm = NetworkSettings(NETWORK_SECONDS, NETWORK_SECONDS, slow_probability=0.0)
        network = SimulatedNetwork(loop, 1, calm)
        hosts = [(broker_host(0), PORT)]
        cluster = SimulatedCluster(
            loop,
            1,
            network,
            store,
            serving(BrokerSettings.of(**settings)),
            lambda environment: KafkaLogClient(environment, lambda: hosts),
        )
        cluster.supervising = False
        cluster.start_broker(0)
        found: list[tuple[T, int]] = []

        def wal_objects() -> int:
            return sum(key.startswith("wal/") for key in store.memory._objects)

        async def client(environment: Environment) -> None:
            await environment.process.clock.sleep(10.0)
            await KafkaLogClient(environment, lambda: hosts).create_topic(TOPIC, partitions, {})
            connection = await BrokerConnection.open(
                environment.network,
                hosts[0],
                ClientSettings(outstanding_max=10_000, queued_max=100_000),
                new_scratch(),
            )
            told = await connection.request(MetadataRequest(topics=None))
            topic_id = next(topic.topic_id for topic in told.topics if topic.name == TOPIC)
            before = wal_objects()
            result = await use(environment, connection, topic_id)
            found.append((result, wal_objects() - before))

        async def main() -> None:
            ended = await cluster.start_client("client", client).exited()
            if ended.error is not None:
                raise ended.error

        loop.run(main(), seconds_max=600)
        return found[0]


def paced(put_seconds: float, pace: Pace, **settings: object) -> Paced:
    """The result of a paced producer."""

    async def use(environment: Environment, connection: BrokerConnection, topic_id: UUID) -> Paced:
        return await PacedProducer(environment, connection, topic_id, pace).run()

    result, result_puts = on_a_distant_store(put_seconds, pace.partitions, use, **settings)
    result.wal_puts = result_puts
    return result


def commits(put_seconds: float, rounds: int, **settings: object) -> list[float]:
    """The latencies of this many commits, ascending."""

    async def use(
        environment: Environment, connection: BrokerConnection, topic_id: UUID
    ) -> list[float]:
        return await timed_transactions(environment, connection, topic_id, rounds)

    return on_a_distant_store(put_seconds, 1, use, **settings)[0]
