"""The exactly-once sink for batches and streams: tasks stage, the driver commits (rules H7 to H9).

Each task stores its rows as finished batches in the bucket and sends the objects' ids to the
driver. The driver's commit lets the partitions adopt them, in one transaction with the batch's
number. `tidelog.client.transactions.sink` explains why a commit may be repeated, and its crash
cases.

The transactional id and the number identify a batch. The query's id detects another query with the
same transactional id:

- A stream's batches have a number and a query id from Spark, kept in its checkpoint.
- A batch write has neither. Spark cannot tell that a restarted job repeats an earlier write. So the
  job passes the number in the option `batchId`. All batch writes of a transactional id count as one
  query.

| Event | Effect |
|---|---|
| a task dies | nothing refers to its staged objects, so the collector deletes them |
| a task runs twice | the driver has the ids of one run; the collector deletes the other's objects |
| the driver dies before the commit | as if all tasks had died |
| the driver dies in or after the commit | the batch is committed once, now or by the next call |
| another driver takes over | its first commit fences the replaced driver |
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, TypeVar
from uuid import UUID

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from tidelog.client.errors import RequestFailed, RequestRefused
from tidelog.client.groups.admin import Place
from tidelog.client.metadata import TopicMetadata
from tidelog.client.patience import Patience
from tidelog.client.pool import Client
from tidelog.client.security import security_of
from tidelog.client.settings import ClientSettings
from tidelog.client.transactions.settings import TransactionalProducerSettings
from tidelog.client.transactions.sink import SinkBatch, SinkCommitted, commit
from tidelog.clock import SystemClock
from tidelog.crash_points import NO_CRASH_POINTS, CrashPoint, CrashPoints
from tidelog.entropy import SystemEntropy
from tidelog.errors import InvalidConfiguration, TidelogError
from tidelog.identifiers import TopicPartition
from tidelog.network import SocketNetwork
from tidelog.protocol.error_codes import ErrorCode
from tidelog.records.compression import Compression
from tidelog.references import resolved_values
from tidelog.spark_source.options.brokers import BOOTSTRAP
from tidelog.spark_source.plain_errors import plain_errors
from tidelog.spark_source.session import Session
from tidelog.spark_source.sink.sink_options import WriteOptions
from tidelog.spark_source.sink.sink_rows import (
    PartitionRows,
    by_partition,
    refuse_rows_of_table,
    sink_rows,
)
from tidelog.storage.object_store import AccessDenied
from tidelog.storage.stores.location import open_store
from tidelog.wal.format.staged_format import StagedFor
from tidelog.wal.write.staging import stage

T = TypeVar("T")

STAGED_BYTES: Final = 64 * 1024 * 1024
"""Bytes of rows in Arrow's form at which a task stages them, to bound its memory."""
_QUERY_ID: Final = "sql.streaming.queryId"
_BATCH_ID: Final = "streaming.sql.batchId"


class SinkError(TidelogError):
    """Spark's messages are not of one batch. Nothing was committed."""


@dataclass
class StagedMessage(WriterCommitMessage):
    """The objects that a task has staged."""

    purpose: StagedFor
    objects: list[tuple[UUID, list[Place]]] = field(default_factory=list)
    """In row order, with the partitions that each holds."""


class BatchWriter(DataSourceArrowWriter):
    """The writer of one batch write."""

    def __init__(self, options: WriteOptions, *, overwrite: bool) -> None:
        self._options = options
        query_id, batch_id = options.for_batch(overwrite=overwrite)
        self._purpose = StagedFor(options.transactional_id, query_id, batch_id)

    @plain_errors()
    def write(self, iterator: Iterator[pa.RecordBatch]) -> StagedMessage:
        """In a task: stage its rows."""
        return stage_rows(self._options, self._purpose, iterator)

    @plain_errors()
    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """In the driver: make the rows visible, unless the same number was committed before."""
        commit_staged(self._options, self._purpose, messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Do nothing: nothing refers to the staged objects, so the collector deletes them."""


class StreamWriter(DataSourceStreamArrowWriter):
    """The writer of a streaming query's batches."""

    def __init__(
        self,
        options: WriteOptions,
        *,
        overwrite: bool,
        crash_points: CrashPoints = NO_CRASH_POINTS,
    ) -> None:
        """`crash_points` let tests stop tasks and commits at a given moment."""
        self._options = options
        self._crash_points = crash_points
        options.check_stream(overwrite=overwrite)

    @plain_errors()
    def write(self, iterator: Iterator[pa.RecordBatch]) -> StagedMessage:
        """In a task: stage its rows.

        Only a task's properties name the query. They also name the batch.
        """
        context = TaskContext.get()
        query_id = context and context.getLocalProperty(_QUERY_ID)
        batch_id = context and context.getLocalProperty(_BATCH_ID)
        if not query_id or not batch_id:
            raise SinkError("Spark does not say of which query and batch the task is")
        purpose = StagedFor(self._options.transactional_id, query_id, int(batch_id))
        message = stage_rows(self._options, purpose, iterator)
        if message.objects:
            self._crash_points.hit(CrashPoint.SINK_STAGED)
        return message

    @plain_errors()
    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """In the driver: make the batch visible, unless it was committed before."""
        found = next((m for m in messages if isinstance(m, StagedMessage)), None)
        # Without a task there are no rows, and a commit would have no effect.
        if found is not None:
            purpose = found.purpose._replace(batch_id=batchId)
            commit_staged(self._options, purpose, messages, self._crash_points)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Do nothing: nothing refers to the staged objects, so the collector deletes them."""


def check_target(options: WriteOptions) -> None:
    """In the driver, before any task: the brokers are the bucket's, the option's topic exists.

    Raises InvalidConfiguration, RequestRefused for a missing topic, RequestFailed, StoreError.
    """
    cluster_id: str | None = None
    # A sink needs only the right to write below staged/; then the commit finds the mistake.
    with Session(options.store_url) as session, suppress(AccessDenied):
        cluster_id = session.run(session.bucket.refresh()).cluster_id

    async def look() -> None:
        async with _client(options) as client:
            found = (await _answer(lambda: client.metadata([]))).cluster_id
            if cluster_id not in (None, found):
                raise InvalidConfiguration(
                    f"the store holds cluster {cluster_id}, but {BOOTSTRAP} names brokers of"
                    f" cluster {found}: give the store of these brokers"
                )
            if options.topic is not None:
                await _found_topic(client, options.topic)

    asyncio.run(look())


def stage_rows(
    options: WriteOptions, purpose: StagedFor, batches: Iterable[pa.RecordBatch]
) -> StagedMessage:
    """Store rows in the bucket, grouped by partition, in as few objects as memory allows.

    Raises RefusedRow, StoreError, RequestRefused for a missing topic, RequestFailed.
    """
    with asyncio.Runner() as runner:
        staging = _Staging(options, purpose)
        try:
            for given in batches:
                runner.run(staging.add(given))
            runner.run(staging.flush())
        finally:
            runner.run(staging.close())
    return staging.message


def commit_staged(
    options: WriteOptions,
    purpose: StagedFor,
    messages: Sequence[WriterCommitMessage | None],
    crash_points: CrashPoints = NO_CRASH_POINTS,
) -> SinkCommitted:
    """Commit the tasks' staged objects, unless the batch was committed before. A retry is safe.

    Raises SinkError, and the errors of `tidelog.client.transactions.sink.commit`.
    """
    staged: dict[Place, list[UUID]] = {}
    for message in messages:
        if not isinstance(message, StagedMessage) or message.purpose != purpose:
            found = message.purpose if isinstance(message, StagedMessage) else message
            raise SinkError(f"a task of batch {purpose} says that it has staged {found}")
        for staged_id, places in message.objects:
            for place in places:
                staged.setdefault(place, []).append(staged_id)

    async def committed() -> SinkCommitted:
        batch = SinkBatch(*purpose, staged)
        async with _client(options) as client:
            return await commit(
                client, SystemClock(), SystemEntropy(), batch, crash_points=crash_points
            )

    return asyncio.run(committed())


class _Staging:
    """Collects a task's rows, and stages them when they fill an object."""

    def __init__(self, options: WriteOptions, purpose: StagedFor) -> None:
        self.message = StagedMessage(purpose)
        self._options = options
        self._clock = SystemClock()
        self._entropy = SystemEntropy()
        self._store = open_store(options.store_url, self._clock, self._entropy)
        self._client = _client(options)
        self._topics: dict[str, TopicMetadata] = {}
        self._waiting: dict[Place, list[pa.RecordBatch]] = {}
        self._waiting_bytes = 0
        # A random start, so that tasks with few rows do not all begin with the same partition.
        self._turn = self._entropy.uuid().int & 0xFFFF

    async def add(self, given: pa.RecordBatch) -> None:
        """Add rows; stage the collected rows once they are enough."""
        pieces = max(1, -(-given.nbytes // STAGED_BYTES))
        size = -(-given.num_rows // pieces)
        for start in range(0, given.num_rows, max(1, size)):
            await self._add(given.slice(start, size) if pieces > 1 else given)

    async def _add(self, given: pa.RecordBatch) -> None:
        options = self._options
        if options.is_of_table:
            refuse_rows_of_table(given)
        found = sink_rows(
            given, options.topic, self._clock.time_ms(), include_headers=options.include_headers
        )
        counts = {name: len((await self._topic(name)).partitions) for name in found.topics}
        each: PartitionRows
        for each in by_partition(found, counts, self._turn):
            place = Place(each.topic, each.partition)
            self._waiting.setdefault(place, []).append(each.rows)
        self._turn += given.num_rows
        self._waiting_bytes += found.rows.nbytes
        if self._waiting_bytes >= STAGED_BYTES:
            await self.flush()

    async def flush(self) -> None:
        """Stage the collected rows."""
        places = {
            TopicPartition(self._topics[place.topic].topic_id, place.partition): rows
            for place, rows in self._waiting.items()
        }
        staged = await stage(
            self._store,
            self._clock,
            self._entropy,
            self.message.purpose,
            places,
            compression=Compression.ZSTD,
        )
        if staged is not None:
            self.message.objects.append((staged.staged_id, list(self._waiting)))
        self._waiting.clear()
        self._waiting_bytes = 0

    async def close(self) -> None:
        await self._client.close()
        await self._store.close()

    async def _topic(self, name: str) -> TopicMetadata:
        """A topic, requested once per task: all of its rows use the same partitions."""
        if name not in self._topics:
            self._topics[name] = await _found_topic(self._client, name)
        return self._topics[name]


async def _found_topic(client: Client, name: str) -> TopicMetadata:
    try:
        return await _answer(lambda: client.topic(name))
    except RequestRefused as refusal:
        # A retry may help after a topic's creation; for the sink the name is wrong.
        is_unknown = refusal.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        raise RequestRefused(
            f"topic {name}, which the sink is to write to",
            refusal.code,
            f"tidelog topics create {name} creates it" if is_unknown else None,
        ) from refusal


async def _answer(ask: Callable[[], Awaitable[T]]) -> T:
    """The answer of some broker. RequestFailed if none answers for a transaction's time."""
    clock, settings = SystemClock(), TransactionalProducerSettings()
    patience = Patience(clock, SystemEntropy(), settings.retries, settings.api_timeout_ms)
    while True:
        try:
            return await ask()
        except RequestFailed as failure:
            await patience.wait(failure)


def _client(options: WriteOptions) -> Client:
    settings = ClientSettings(
        client_id=f"tidelog-spark-{options.transactional_id}",
        security=security_of(resolved_values(options.security)),
    )
    return Client(SocketNetwork(), SystemClock(), list(options.bootstrap), settings)
