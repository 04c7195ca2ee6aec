"""A whole broker in the test's event loop: real data path, memory store, direct calls."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar
from uuid import UUID

from tidelog.broker.broker import Broker
from tidelog.broker.environment import BrokerEnvironment
from tidelog.broker.handlers.data.fetch import fetch
from tidelog.broker.handlers.data.offsets import list_offsets
from tidelog.broker.handlers.data.produce import produce
from tidelog.broker.handlers.request_context import RequestContext
from tidelog.broker.options import BrokerOptions
from tidelog.broker.running import RunningBroker
from tidelog.broker.settings.settings import BrokerSettings
from tidelog.broker.telemetry.metrics import BrokerMetrics
from tidelog.clock import Clock, SystemClock
from tidelog.coordinator.cluster.records.process_identity import ProcessIdentity
from tidelog.coordinator.cluster.records.records import TopicCreated, TopicDeleted
from tidelog.crash_points import NO_CRASH_POINTS
from tidelog.entropy import SeededEntropy
from tidelog.identifiers import BrokerId
from tidelog.network import SocketNetwork
from tidelog.protocol.schemas.fetch import (
    FetchablePartitionResponse,
    FetchPartition,
    FetchRequest,
    FetchTopic,
)
from tidelog.protocol.schemas.offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from tidelog.protocol.schemas.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    TopicProduceData,
)
from tidelog.records.batch import iterate_batches
from tidelog.records.buffers import Buffer
from tidelog.records.records import NewRecord, Record, decode_records, encode_batch
from tidelog.storage.object_store import ObjectStore
from tidelog.workers.offload import InlineOffload, Offload

T = TypeVar("T")
TOPIC = "flights"
PATIENT = {"broker_session_timeout_ms": 120_000, "auto_leader_rebalance_enable": False}
"""No broker loses its lease because the machine is busy. Brokers learn at once that another process
is dead. No partition moves unless a test moves it."""


class World:
    """A bucket on which brokers run, one after the other or several at once."""

    def __init__(self, store: ObjectStore, **settings: object) -> None:
        self.store = store
        self.settings = BrokerSettings.of(**(PATIENT | settings))
        self.offload: Offload = InlineOffload()
        self.rolling: Offload | None = None
        self.large_batches: Offload | None = None
        self.background: Offload | None = None
        self.crash_points = NO_CRASH_POINTS
        self.broker_id = BrokerId(0)
        self.clocks: dict[int, Clock] = {}
        """Clocks by broker, for machines whose time is wrong."""
        self.starts = 0
        self.sees_processes = True
        """Whether processes know which others run. If not, they take all others for dead."""
        self._running: set[int] = set()

    @asynccontextmanager
    async def broker(
        self, broker_id: int | None = None, *, politely: bool = True
    ) -> AsyncIterator[OneBroker]:
        """A running broker. If `politely` is false, it is cut off at the end like a killed
        process."""
        self.starts += 1
        number = self.starts
        options = BrokerOptions(
            settings=self.settings,
            broker_id=self.broker_id if broker_id is None else BrokerId(broker_id),
            listen=None if "listeners" in self.settings.origins else ("127.0.0.1", 0),
            process=ProcessIdentity("host", "boot", "namespace", number, number),
            is_running=lambda other: self.sees_processes and other.pid in self._running,
        )
        world = BrokerEnvironment.of(
            self.store,
            self.clocks.get(options.broker_id, SystemClock()),
            SeededEntropy(self.starts),
            SocketNetwork(),
            self.offload,
            rolling=self.rolling,
            large_batches=self.large_batches,
            background=self.background,
            crash_points=self.crash_points,
        )
        broker = Broker(options, world, BrokerMetrics())
        run = asyncio.create_task(broker.run())
        await broker.ready.wait()
        running = broker.running
        if running is None:
            await run
            raise AssertionError("the broker has ended without a reason")
        self._running.add(number)
        try:
            yield OneBroker(broker, running, run)
        finally:
            self._running.discard(number)
            if politely and not run.done():
                broker.stop()
                await run
            else:
                run.cancel()
                await asyncio.gather(run, return_exceptions=True)


class OneBroker:
    """A broker, and short methods for requests to it."""

    def __init__(self, life: Broker, broker: RunningBroker, run: asyncio.Task[None]) -> None:
        self.life = life
        self.broker = broker
        self.run = run

    def context(self, version: int) -> RequestContext:
        return RequestContext(version, 1, "test", "127.0.0.1", 1)

    async def create_topic(self, name: str = TOPIC, partitions: int = 1, **configs: str) -> UUID:
        epoch = self.broker.membership.incarnation.epoch
        topic_id = self.broker.environment.entropy.uuid()
        overrides = {key.replace("_", "."): value for key, value in configs.items()}
        record = TopicCreated(topic_id, name, (epoch,) * partitions, overrides)
        await self.broker.membership.metadata.append(epoch, lambda _: (record,))
        return topic_id

    async def delete_topic(self, topic_id: UUID) -> None:
        epoch = self.broker.membership.incarnation.epoch
        await self.broker.membership.metadata.append(epoch, lambda _: (TopicDeleted(topic_id),))

    async def produce(
        self,
        records: Buffer,
        partition: int = 0,
        *,
        acks: int = -1,
        topic: str = TOPIC,
        timeout_ms: int = 5000,
        version: int = 9,
    ) -> PartitionProduceResponse:
        """Produce one batch to one partition."""
        request = produce_request(topic, partition, records, acks, timeout_ms)
        response = await produce(self.broker.services.data, request, self.context(version))
        assert response is not None
        return response.responses[0].partition_responses[0]

    async def send(self, records: Buffer, partition: int = 0, *, timeout_ms: int = 5000) -> None:
        """Produce one batch to one partition with acks=0."""
        request = produce_request(TOPIC, partition, records, 0, timeout_ms)
        assert await produce(self.broker.services.data, request, self.context(9)) is None

    async def fetch(
        self,
        offset: int = 0,
        partition: int = 0,
        *,
        topic: str = TOPIC,
        wait_ms: int = 0,
        bytes_min: int = 1,
        bytes_max: int = 1 << 20,
        committed: bool = False,
    ) -> FetchablePartitionResponse:
        """Fetch one partition without a session."""
        request = FetchRequest(
            max_wait_ms=wait_ms,
            min_bytes=bytes_min,
            max_bytes=bytes_max,
            isolation_level=int(committed),
            topics=[
                FetchTopic(
                    topic=topic,
                    partitions=[
                        FetchPartition(
                            partition=partition,
                            fetch_offset=offset,
                            partition_max_bytes=bytes_max,
                        )
                    ],
                )
            ],
        )
        response = await fetch(self.broker.services.data, request, self.context(12))
        return response.responses[0].partitions[0]

    async def read_all(self, partition: int = 0, topic: str = TOPIC) -> list[Record]:
        """Every record from the log's start on."""
        offset = (await self.offsets(-2, partition, topic=topic)).offset
        found: list[Record] = []
        while True:
            answer = await self.fetch(offset, partition, topic=topic)
            assert answer.error_code == 0, answer
            if not answer.records:
                return found
            data = b"".join(answer.records)
            found += [record for record in decode_records(data) if record.offset >= offset]
            offset = max(header.last_offset for _, header in iterate_batches(data)) + 1

    async def offsets(
        self,
        timestamp: int,
        partition: int = 0,
        *,
        topic: str = TOPIC,
        committed: bool = False,
        version: int = 9,
    ) -> ListOffsetsPartitionResponse:
        """ListOffsets for one partition."""
        request = ListOffsetsRequest(
            isolation_level=int(committed),
            topics=[
                ListOffsetsTopic(
                    name=topic,
                    partitions=[
                        ListOffsetsPartition(partition_index=partition, timestamp=timestamp)
                    ],
                )
            ],
        )
        response = await list_offsets(self.broker.services.data, request, self.context(version))
        return response.topics[0].partitions[0]


def services_of(running: RunningBroker, handler: Callable[..., Any]) -> Any:
    """The services that this handler takes: those of its package, or all for a handler of the
    routes."""
    rooms = {"cluster", "data", "groups", "transactions"}
    room = handler.__module__.rsplit(".", 2)[-2]
    room = "cluster" if room == "configs" else room
    return getattr(running.services, room) if room in rooms else running.services


def produce_request(
    topic: str, partition: int, records: Buffer | None, acks: int, timeout_ms: int
) -> ProduceRequest:
    """A request with one batch."""
    return ProduceRequest(
        acks=acks,
        timeout_ms=timeout_ms,
        topic_data=[
            TopicProduceData(
                name=topic,
                partition_data=[PartitionProduceData(index=partition, records=records)],
            )
        ],
    )


def batch(*values: bytes | None, **options: int) -> bytearray:
    """A batch of these values. The first timestamp is 1000."""
    records = [
        NewRecord(value, b"k%d" % number, timestamp=1000 + number)
        for number, value in enumerate(values)
    ]
    return encode_batch(records, **options)  # type: ignore[arg-type]


def run(main: Callable[[], Awaitable[T]]) -> T:
    """Run a test's coroutine, bounded in time."""

    async def bounded() -> T:
        async with asyncio.timeout(60):
            return await main()

    return asyncio.run(bounded())


async def until(is_so: Callable[[], object]) -> None:
    """Wait for a condition that other tasks bring about."""
    for _ in range(1_000_000):
        if is_so():
            return
        await asyncio.sleep(0)
    raise AssertionError("the condition did not come about")
