"""The commit of an exactly-once sink (rule H7), which may be repeated as often as one likes.

    purpose = StagedFor("orders-to-billing", query_id, batch_id)
    staged = await stage(store, clock, entropy, purpose, rows)      # each task (wal.write.staging)
    await commit(client, clock, entropy, SinkBatch(*purpose, objects))   # once all have staged

A batch takes effect once, whole, in all of its topics, together with its number, however many calls
are made for it, one after the other or at once, and wherever they die. In this order:

1. InitProducerId fences every earlier call, alive or dead, and waits until its transaction is
   decided.
2. The group named after the transactional id has the number of the batch that was committed last,
   with the query's id. At or above ours: it is done. Another query's: an error.
3. One transaction: adopts, the batch's number as an offset of the group, the end.

If this process dies in 1 or 2, nothing has happened. In 3 the transaction is aborted by the next
call, or by its timeout, unless its end was decided: then the next call finds the number in step 2.
An answer that is lost is asked for again: adopts are recognised by the staged objects' ids, the
offset is the same, the end is recognised by its epoch. A call that wakes up behind a later one has
an old epoch, and nothing that it sends is taken.

The second version of transactions is needed (KIP-890): a request that arrives behind the end of its
transaction has an epoch that is spent. Under the first it could begin, and end, another one.
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
"""Where a sink's group keeps its number: a partition that is there whatever topics a batch has."""
ADOPTS_AT_ONCE_MAX = 16
NO_BATCH = -1


class SinkCommitted(enum.Enum):
    """What a call has found or done."""

    NOW = "the batch was committed by this call"
    BEFORE = "the batch was committed before"


class ForeignQuery(Refused):
    """The transactional id is another query's; nothing was committed."""

    def __init__(self, transactional_id: str, theirs: str, ours: str, batch_id: int) -> None:
        super().__init__(
            f"transactional id {transactional_id} belongs to query {theirs}, which has committed"
            f" batch {batch_id}; this is query {ours}: give each query an id of its own, or delete"
            f" the group {transactional_id} if that query is over"
        )


@dataclass(frozen=True, slots=True)
class SinkProgress:
    """How far a sink has come."""

    batch_id: int
    """The last batch that was committed."""
    query_id: str


@dataclass(frozen=True, slots=True)
class SinkBatch:
    """A batch to be committed. `staged`: the staged objects of each partition, in the order in
    which their records are to be there."""

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
    """Commit a batch, unless that was done. When it returns, the batch is visible everywhere.
    `crash_points`: for tests that let the process die at a given moment.

    Raises:
        ForeignQuery: another query uses the transactional id.
        ProducerFenced: another call has begun since, for this batch or a later one.
        MustAbort: nothing was committed; its cause says whether staging again is the remedy.
        RequestFailed, RequestRefused: nobody answered in time; the batch may have been committed.
    In each case the same call may be made again.
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
    """How far a sink has come, by its group's stable offset: a transaction that is open there is
    waited for. None if it has committed nothing yet.

    Raises RequestFailed, RequestRefused: there is no answer in time.
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
    """Abort, so that nobody has to wait for the timeout. The next call does it otherwise."""
    try:
        await producer.abort()
    except (ProducerFenced, RequestFailed, RequestRefused):
        return
