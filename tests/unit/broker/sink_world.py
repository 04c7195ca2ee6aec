"""An exactly-once sink on a whole broker: tasks stage in the bucket, commits go over sockets."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from uuid import UUID

import pyarrow as pa

from tests.unit.broker.one_broker import TOPIC, OneBroker, World
from tests.unit.broker.transactional_client import SECOND, TransactionalClient, loaded
from tidelog.broker.coordinate.transaction_admission import Wanted
from tidelog.client.groups.admin import Place
from tidelog.client.pool import Client
from tidelog.client.transactions.producer import TransactionalProducer
from tidelog.client.transactions.settings import TransactionalProducerSettings, TransactionVersion
from tidelog.client.transactions.sink import SinkBatch, SinkCommitted, commit
from tidelog.clock import Clock, SystemClock
from tidelog.coordinator.transaction.commands import Identity
from tidelog.crash_points import NO_CRASH_POINTS, CrashPoints
from tidelog.entropy import SeededEntropy
from tidelog.identifiers import ProducerEpoch, ProducerId, TopicPartition
from tidelog.network import SocketNetwork
from tidelog.protocol.error_codes import ErrorCode
from tidelog.records.compression import Compression
from tidelog.records.row_columns import HEADERS_TYPE, TIMESTAMP_TYPE
from tidelog.storage.object_store import ObjectStore
from tidelog.storage.stores.memory import MemoryStore
from tidelog.wal.format.staged_format import StagedFor
from tidelog.wal.write.staging import stage

SETTINGS = {
    "offsets_topic_num_partitions": 1,
    "transaction_state_log_num_partitions": 1,
    "group_initial_rebalance_delay_ms": 0,
}
SINK, QUERY = "pipeline", "query-1"
FAST = TransactionalProducerSettings(delivery_timeout_ms=15_000, api_timeout_ms=15_000)
NOW, BEFORE = SinkCommitted.NOW, SinkCommitted.BEFORE


class ShiftedClock(SystemClock):
    """The clock of another machine."""

    def __init__(self, shift_ms: int = 0) -> None:
        super().__init__()
        self.shift_ms = shift_ms

    def time_ms(self) -> int:
        return super().time_ms() + self.shift_ms


def world(store: ObjectStore | None = None, **settings: object) -> World:
    return World(store or MemoryStore(SystemClock()), **{**SETTINGS, **settings})


def rows_of(*values: bytes) -> pa.RecordBatch:
    """Rows with these values, dated from 1000 on."""
    number = len(values)
    return pa.RecordBatch.from_arrays(
        [
            pa.array([(1000 + n) * 1000 for n in range(number)], TIMESTAMP_TYPE),
            pa.array([0] * number, pa.int32()),
            pa.array([b"k%d" % n for n in range(number)], pa.binary()),
            pa.array(values, pa.binary()),
            pa.array([None] * number, HEADERS_TYPE),
        ],
        names=["timestamp", "timestamp_type", "key", "value", "headers"],
    )


class Sink:
    """A query that writes to a topic, through the broker that each call names."""

    def __init__(self, here: World, seed: int = 1) -> None:
        self.here = here
        self.entropy = SeededEntropy(seed)

    async def stage(
        self,
        topic_id: UUID,
        batch_id: int,
        values: dict[int, Sequence[bytes]],
        *,
        sink: str = SINK,
        clock: Clock | None = None,
        compression: Compression = Compression.ZSTD,
        batch_bytes: int = 1 << 19,
    ) -> UUID:
        """Stage one task's rows, by partition."""
        rows = {TopicPartition(topic_id, n): [rows_of(*each)] for n, each in values.items()}
        found = await stage(
            self.here.store,
            clock or SystemClock(),
            self.entropy,
            StagedFor(sink, QUERY, batch_id),
            rows,
            compression=compression,
            batch_bytes=batch_bytes,
        )
        assert found is not None
        return found.staged_id

    async def commit(
        self,
        one: OneBroker,
        batch_id: int,
        staged: dict[int, Sequence[UUID]],
        *,
        query: str = QUERY,
        sink: str = SINK,
        crash_points: CrashPoints = NO_CRASH_POINTS,
    ) -> SinkCommitted:
        """Make one commit call."""
        batch = SinkBatch(sink, query, batch_id, {Place(TOPIC, n): s for n, s in staged.items()})
        async with client_of(one) as client:
            return await commit(client, SystemClock(), self.entropy, batch, FAST, crash_points)

    async def adoptable(self, one: OneBroker) -> tuple[UUID, Wanted, TransactionalClient]:
        """A staged record of a new topic, the transaction that may adopt it, and its client."""
        await loaded(one)
        staged = await self.stage(await one.create_topic(), 0, {0: [b"a"]})
        client = TransactionalClient(one, SINK)
        assert await client.init() is ErrorCode.NONE
        who = Identity(ProducerId(client.producer_id), ProducerEpoch(client.epoch))
        return staged, Wanted(SINK, who, SECOND), client

    @asynccontextmanager
    async def producer(self, one: OneBroker) -> AsyncIterator[TransactionalProducer]:
        """The producer of a commit call, for calls that stop halfway."""
        settings = TransactionalProducerSettings(
            delivery_timeout_ms=15_000, api_timeout_ms=15_000, version=TransactionVersion.V2
        )
        async with client_of(one) as client:
            producer = TransactionalProducer(client, SystemClock(), self.entropy, SINK, settings)
            await producer.init_transactions()
            producer.begin()
            yield producer


@asynccontextmanager
async def client_of(one: OneBroker) -> AsyncIterator[Client]:
    async with Client(SocketNetwork(), SystemClock(), [one.broker.membership.advertised]) as client:
        yield client
