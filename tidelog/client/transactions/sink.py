"""The commit of an exactly-once sink (rule H7), which may be repeated any number of times.

    purpose = StagedFor("orders-to-billing", query_id, batch_id)
    staged = await stage(store, clock, entropy, purpose, rows)      # each task (wal.write.staging)
    await commit(client, clock, entropy, SinkBatch(*purpose, objects))   # once all have staged

A batch takes effect once, whole, in all of its topics, together with its number. Repeated,
concurrent and crashed calls do not change that. A call does three steps:

1. InitProducerId fences every earlier call and waits until its transaction is decided.

2. The group named after the transactional id holds the last committed batch number and its query
id. If the number is at or above this batch's, the batch is done. Another query id is an error.

3. One transaction: adopts, the batch's number as an offset of the group, the end.

| The process dies | Effect |
|---|---|
| in step 1 or 2 | none |
| in step 3, before the end is decided | the next call, or the timeout, aborts the transaction |
| in step 3, after that | the next call finds the number in step 2 |

The call retries after a lost answer. The broker recognises adopts by the staged objects' ids and
the end by its epoch; the offset is the same. A delayed call after a later one has an old epoch, and
the brokers refuse its requests.

The sink needs version 2 of transactions (KIP-890): a request that arrives after the end of its
transaction has a spent epoch. In version 1 it could begin, and end, another transaction.
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from uuid import UUID

from tidelog.client.errors import RequestFailed, RequestRefused, check_read
from tidelog.client.groups.admin import Place
from tidelog.client.patience import Patience
from tidelog.client.pool import Client, CoordinatorKind
from tidelog.client.transactions.errors import MustAbort, ProducerFenced
from tidelog.client.transactions.producer import TransactionalProducer
from tidelog.client.transactions.settings import TransactionalProducerSettings, TransactionVersion
from tidelog.clock import Clock
from tidelog.crash_points import NO_CRASH_POINTS, CrashPoint, CrashPoints
from tidelog.entropy import Entropy
from tidelog.errors import Refused
from tidelog.protocol.error_codes import ErrorCode
from tidelog.protocol.schemas.group_offsets import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)

PROGRESS = Place("__consumer_offsets", 0)
"""The partition under which a sink's group stores its number: it exists for every batch."""
ADOPTS_AT_ONCE_MAX = 16
NO_BATCH = -1


class SinkCommitted(enum.Enum):
    """The result of a commit call."""

    NOW = "the batch was committed by this call"
    BEFORE = "the batch was committed before"


class ForeignQuery(Refused):
    """Another query uses the transactional id. Nothing was committed."""

    def __init__(self, transactional_id: str, theirs: str, ours: str, batch_id: int) -> None:
        super().__init__(
            f"transactional id {transactional_id} belongs to query {theirs}, which has committed"
            f" batch {batch_id}; this is query {ours}: give each query an id of its own, or delete"
            f" the group {transactional_id} if that query is over"
        )


@dataclass(frozen=True, slots=True)
class SinkProgress:
    """The progress of a sink."""

    batch_id: int
    """The last committed batch."""
    query_id: str


@dataclass(frozen=True, slots=True)
class SinkBatch:
    """A batch to commit.

    `staged` lists the staged objects of each partition, in record order.
    """

    transactional_id: str
    query_id: str
    batch_id: int
    staged: Mapping[Place, Sequence[UUID]]

    def __post_init__(self) -> None:
        if not self.transactional_id or not self.query_id or self.batch_id < 0:
            raise ValueError("a batch needs a transactional id, a query id and a number from 0 on")


async def commit(
    client: Client,
    clock: Clock,
    entropy: Entropy,
    batch: SinkBatch,
    settings: TransactionalProducerSettings | None = None,
    crash_points: CrashPoints = NO_CRASH_POINTS,
) -> SinkCommitted:
    """Commit a batch, unless it was committed before. On return the batch is visible everywhere.

    `crash_points` let tests stop the process at a given step.

    Raises:
        ForeignQuery: another query uses the transactional id.
        ProducerFenced: a later call has begun, for this batch or a later one.
        MustAbort: nothing was committed; its cause tells whether to stage again.
        RequestFailed, RequestRefused: no answer in time; the batch may have been committed.
    In each case a retry is safe.
    """
    settings = replace(settings or TransactionalProducerSettings(), version=TransactionVersion.V2)
    producer = TransactionalProducer(client, clock, entropy, batch.transactional_id, settings)
    await producer.init_transactions()
    crash_points.hit(CrashPoint.SINK_FENCED)
    patience = Patience(clock, entropy, settings.retries, settings.api_timeout_ms)
    progress = await read_progress(client, batch.transactional_id, patience)
    if progress is not None:
        if progress.query_id != batch.query_id:
            raise ForeignQuery(
                batch.transactional_id, progress.query_id, batch.query_id, progress.batch_id
            )
        if progress.batch_id >= batch.batch_id:
            crash_points.hit(CrashPoint.SINK_FOUND)
            return SinkCommitted.BEFORE
    producer.begin()
    try:
        await _adopt_all(producer, batch)
        crash_points.hit(CrashPoint.SINK_ADOPTED)
        await producer.send_offsets(
            batch.transactional_id, {PROGRESS: batch.batch_id}, metadata=batch.query_id
        )
        crash_points.hit(CrashPoint.SINK_NUMBERED)
        await producer.commit()
    except MustAbort:
        await _give_up(producer)
        raise
    crash_points.hit(CrashPoint.SINK_COMMITTED)
    return SinkCommitted.NOW


async def read_progress(
    client: Client, transactional_id: str, patience: Patience
) -> SinkProgress | None:
    """The progress of a sink, from its group's stable offset; None before the first commit.

    Waits for an open transaction of the sink.

    Raises RequestFailed, RequestRefused: no answer in time.
    """
    topic = OffsetFetchRequestTopics(name=PROGRESS.topic, partition_indexes=[PROGRESS.partition])
    group = OffsetFetchRequestGroup(group_id=transactional_id, topics=[topic])
    request = OffsetFetchRequest(groups=[group], require_stable=True)
    while True:
        try:
            response = await client.request_to_coordinator(
                CoordinatorKind.GROUP, transactional_id, request, version_max=_BY_NAME_MAX
            )
            subject = f"progress of {transactional_id}"
            for found in response.groups:
                check_read(subject, found.error_code)
                for each in (p for t in found.topics for p in t.partitions):
                    check_read(subject, each.error_code)
                    if each.committed_offset != NO_BATCH:
                        return SinkProgress(each.committed_offset, each.metadata or "")
            return None
        except RequestFailed as failure:
            await patience.wait(failure)
        except RequestRefused as refusal:
            if not (refusal.retriable or refusal.code == ErrorCode.UNSTABLE_OFFSET_COMMIT):
                raise
            await patience.wait(refusal)


_BY_NAME_MAX = 9
"""The last version of OffsetFetch that names topics."""


async def _adopt_all(producer: TransactionalProducer, batch: SinkBatch) -> None:
    at_once = asyncio.Semaphore(ADOPTS_AT_ONCE_MAX)

    async def adopt(place: Place, staged_ids: Sequence[UUID]) -> None:
        async with at_once:
            await producer.adopt(*place, staged_ids)

    outcomes = await asyncio.gather(
        *(adopt(place, ids) for place, ids in batch.staged.items() if ids), return_exceptions=True
    )
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            raise outcome


async def _give_up(producer: TransactionalProducer) -> None:
    """Abort now, instead of leaving it to the timeout or the next call."""
    try:
        await producer.abort()
    except (ProducerFenced, RequestFailed, RequestRefused):
        return
