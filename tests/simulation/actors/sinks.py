"""Drivers of an exactly-once sink: commits that are repeated, run twice at once, die anywhere, and
wake up while a later batch is being committed (rules H7 to H9).

Each of several drivers takes itself for the only one of a query. A batch's contents are decided
before, as in the log of offsets that a streaming query keeps. A driver that commits the batch
stages its rows again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from uuid import UUID

import pyarrow as pa

from tests.simulation.actors.actor import Actor, error_text
from tests.simulation.rules.history import Key, Operation, Outcome, Send
from tests.simulation.values import new_record
from tidelog.client.errors import RequestFailed, RequestRefused
from tidelog.client.groups.admin import Place
from tidelog.client.patience import ClientRetrySettings
from tidelog.client.pool import Client
from tidelog.client.transactions.errors import MustAbort, ProducerFenced
from tidelog.client.transactions.settings import TransactionalProducerSettings
from tidelog.client.transactions.sink import ForeignQuery, SinkBatch, commit
from tidelog.identifiers import TopicPartition
from tidelog.records.row_columns import HEADERS_TYPE, TIMESTAMP_TYPE
from tidelog.storage.object_store import StoreError
from tidelog.wal.format.staged_format import StagedFor
from tidelog.wal.write.staging import stage

SINK, QUERY = "sink", "query"
_ROWS_MAX = 3
"""Rows of a task for one partition."""
_TASK_TWICE_PROBABILITY = 0.2
_STALL_PROBABILITY = 0.2
_STALL_SECONDS_MAX = 25.0
_DEATH_PROBABILITY = 0.25
_DEATH_SECONDS_MAX = 0.6
_OLD_PROBABILITY = 0.3
"""The probability that a driver commits once more the objects that it staged for an earlier
batch."""
_PAUSE_SECONDS_MEAN = 1.0


@dataclass(slots=True)
class QueryLog:
    """The content of each batch of a query. It outlives its drivers."""

    batches: list[Operation] = field(default_factory=list)

    def current(self, actor: Actor) -> int | None:
        """The number of the batch that is to be committed, or None if there is no further batch."""
        if not self.batches or self.batches[-1].outcome is not Outcome.PENDING:
            if actor.stopping.is_set():
                return None
            self._plan(actor)
        return len(self.batches) - 1

    def committed(self, actor: Actor, batch_id: int) -> None:
        """A driver learned that the batch is committed."""
        operation = self.batches[batch_id]
        if operation.outcome is Outcome.PENDING:
            actor.history.ok(operation)

    def _plan(self, actor: Actor) -> None:
        number = len(self.batches)
        sends = [
            Send(key, f"{SINK}/{number}/{key.partition}/{row}")
            for key in actor.settings.sunk
            for row in range(actor.random.randint(0, _ROWS_MAX))
        ]
        operation = actor.history.invoke(SINK, "transaction", sends)
        operation.is_repeated = True
        self.batches.append(operation)


class SinkDriver:
    """One driver, which does not know of the others."""

    def __init__(self, actor: Actor, log: QueryLog) -> None:
        self._actor = actor
        self._log = log
        self._staged: dict[int, SinkBatch] = {}
        """The objects that this driver had staged for earlier batches."""

    async def run(self) -> None:
        """Commit one batch after the other, until the run is ending and all are committed."""
        actor = self._actor
        while (batch_id := self._log.current(actor)) is not None:
            wakes = not actor.stopping.is_set() and actor.random.random() < _OLD_PROBABILITY
            if self._staged and wakes:
                batch_id = actor.random.choice(sorted(self._staged))
            async with actor.kafka() as client:
                try:
                    await self._attempt(client, batch_id)
                except ForeignQuery as error:
                    actor.history.violate(f"{actor.name}: {error}")
                    return
                except (ProducerFenced, MustAbort, RequestFailed, RequestRefused) as error:
                    actor.history.errors[f"sink: {type(error).__name__}"] += 1
                    self._staged.pop(batch_id, None)
                except StoreError as error:
                    actor.history.errors[f"sink: {error_text(error)}"] += 1
            await actor.pause(_PAUSE_SECONDS_MEAN)
            if actor.stopping.is_set():
                await actor.backoff(3)

    async def _attempt(self, client: Client, batch_id: int) -> None:
        actor = self._actor
        batch = self._staged.get(batch_id)
        if batch is None:
            batch = self._staged[batch_id] = await self._stage(client, batch_id)
        if not actor.stopping.is_set() and actor.random.random() < _STALL_PROBABILITY:
            await actor.clock.sleep(actor.random.uniform(0.0, _STALL_SECONDS_MAX))
        settings = TransactionalProducerSettings(
            transaction_timeout_ms=actor.random.choice((3000, 20_000)),
            delivery_timeout_ms=12_000,
            api_timeout_ms=15_000,
            retries=ClientRetrySettings(20, 1000),
        )
        call = asyncio.create_task(
            commit(client, actor.clock, actor.entropy, batch, settings),
            name=f"{actor.name} commits {batch_id}",
        )
        dies = not actor.stopping.is_set() and actor.random.random() < _DEATH_PROBABILITY
        seconds = actor.random.uniform(0.0, _DEATH_SECONDS_MAX) if dies else None
        done, _ = await asyncio.wait({call}, timeout=seconds)
        if not done:
            call.cancel()
            await asyncio.wait({call})
            actor.history.errors["sink: a call died"] += 1
            if call.cancelled():
                return
        actor.history.errors[f"sink: committed {call.result().name.lower()}"] += 1
        self._log.committed(actor, batch_id)

    async def _stage(self, client: Client, batch_id: int) -> SinkBatch:
        """Each task stages its rows of all partitions. Of two attempts one counts."""
        actor = self._actor
        store = actor.bucket().access.store
        topic_id = (await client.topic(actor.settings.sunk[0].topic)).topic_id
        values: dict[Key, list[str]] = {}
        for send in self._log.batches[batch_id].sends:
            values.setdefault(send.key, []).append(send.value)
        staged: dict[Place, list[UUID]] = {}
        for task in range(2):
            rows = {
                TopicPartition(topic_id, key.partition): [_rows(actor, given[task::2])]
                for key, given in values.items()
                if given[task::2]
            }
            attempts = 2 if actor.random.random() < _TASK_TWICE_PROBABILITY else 1
            for _ in range(attempts):
                found = await stage(
                    store,
                    actor.clock,
                    actor.entropy,
                    StagedFor(SINK, QUERY, batch_id),
                    rows,
                    batch_bytes=actor.random.choice((1, 1 << 19)),
                )
            for partition in found.records if found is not None else ():
                assert found is not None
                place = Place(actor.settings.sunk[0].topic, partition.partition)
                staged.setdefault(place, []).append(found.staged_id)
        return SinkBatch(SINK, QUERY, batch_id, staged)


def _rows(actor: Actor, values: Sequence[str]) -> pa.RecordBatch:
    records = [new_record(value, 0, actor.clock.time_ms()) for value in values]
    return pa.RecordBatch.from_arrays(
        [
            pa.array([1000 * record.timestamp for record in records], TIMESTAMP_TYPE),
            pa.array([0] * len(records), pa.int32()),
            pa.array([record.key for record in records], pa.binary()),
            pa.array([record.value for record in records], pa.binary()),
            pa.array([None] * len(records), HEADERS_TYPE),
        ],
        names=["timestamp", "timestamp_type", "key", "value", "headers"],
    )
