"""Rolls decided records from the WAL into the tables, partition by partition. `run` is its task.

A roll builds a segment and stores it (`segment_builder`), then commits it to the topic's table
(E1), and only then forgets the extents below (`PartitionLog.advance_table`). If the process dies

- before the commit: the table is as it was; a stored segment is garbage;
- after the commit: the next owner of the partition asks the table for its end (`recovered`),
  whatever the partition's image says, and forgets the extents below (E4);
- with an unknown outcome of the commit: the same. If the process lives, it rolls the partition
  again later from the table's present end. That commit finds the table advanced, or as it was.

A late commit of a fenced broker is refused, since the new owner has advanced the table; or it is
right, since both roll the same history. Then the new owner is refused once, and continues from the
table's end (E2).

A corrupt object stops only the roll of its partition. Store errors are retried.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NoReturn

from tidelog.broker.partitions.partitions import Partition, PartitionRegistry
from tidelog.broker.roll.agenda import RollAgenda, RollTurns, wait_for
from tidelog.broker.roll.metrics import RollMetrics
from tidelog.broker.roll.queue import RollQueue, end_of
from tidelog.broker.roll.segment_builder import SegmentBuilder
from tidelog.broker.roll.source import (
    GATHERED_BYTES_MAX,
    GATHERED_EXTENTS_MAX,
)
from tidelog.broker.settings.settings import BrokerSettings, TopicConfig
from tidelog.broker.tables.table_source import table_up_to
from tidelog.broker.tables.tables import NoTable, Tables
from tidelog.clock import Clock
from tidelog.errors import CorruptObject, MissingObject, TidelogError, UnsupportedFormat
from tidelog.identifiers import TopicId
from tidelog.storage.object_store import StoreError
from tidelog.storage.table.table_change import PartitionChange
from tidelog.storage.table.table_log import SegmentsTooOld, TableCommitted, log_prefix
from tidelog.storage.table.table_state import CommitRefusal, TableState
from tidelog.wal.roll.pace import RollPriority, priority_of
from tidelog.wal.roll.roll_plan import Roll, RollReason, read_together
from tidelog.workers.offload import WorkerLost

logger = logging.getLogger(__name__)

SWEEP_SECONDS = 1.0
"""The time between two looks for due partitions while records arrive."""
BETWEEN_ROUNDS_SECONDS = 0.01
"""The pause before a round that must follow at once."""
COMMIT_PARTITIONS_MAX = 64
"""Partitions of a topic that advance in one commit."""
COMMIT_GRACE_SHARE_MAX = 1 / 8
"""The part of the grace that a segment waits at most for others of its commit.

At half of the grace it would be too old.
"""


@dataclass(slots=True)
class _Built:
    """A change that is ready for its commit."""

    partition: Partition
    change: PartitionChange
    base_offset: int
    next_offset: int
    built_at: float
    began_at: float | None
    """The start of the roll, if this is its last segment; else None."""


class Roller:
    """Rolls the partitions that this broker leads, one at a time."""

    def __init__(
        self,
        partitions: PartitionRegistry,
        queue: RollQueue,
        tables: Tables,
        builder: SegmentBuilder,
        clock: Clock,
        settings: Callable[[], BrokerSettings],
        topic_config: Callable[[TopicId], TopicConfig],
        metrics: RollMetrics,
    ) -> None:
        self._partitions = partitions
        self._queue = queue
        self._tables = tables
        self._builder = builder
        self._clock = clock
        self._settings = settings
        self._topic_config = topic_config
        self._agenda = RollAgenda(queue, partitions, clock, settings, topic_config, metrics)
        self.metrics = metrics

    def note(self, partition: Partition) -> None:
        """Enter a partition whose records have become durable."""
        if not partition.is_internal:
            self._queue.note(partition.log.partition)

    def flush(self, partition: Partition) -> asyncio.Future[None]:
        """Roll all records that are decided now; the future is done when the table has them.

        It fails with CorruptObject or UnsupportedFormat if the partition cannot be rolled. It fails
        with PartitionError if this broker no longer leads the partition or has ended. Store errors
        do not end the wait: `failure_of` names them.
        """
        return self._queue.wait(partition)

    def failure_of(self, partition: Partition) -> TidelogError | None:
        """The error of the last attempt to roll the partition, if it failed."""
        return self._queue.failure_of(partition.log.partition)

    def faults(self) -> list[TidelogError]:
        """The corrupt objects that stop rolls. Callable from any thread."""
        return self._queue.faults()

    def partitions_changed(self) -> None:
        """Apply the creation or removal of topics or partitions.

        No client waits any more for a partition that has gone, and its fault has gone with it.
        """
        if self._queue.has_waiting or self._queue.has_stopped:
            self._queue.news.set()

    # Planning.

    async def run(self) -> NoReturn:
        """Roll due partitions until cancelled. Then waiters get an error, later ones too."""
        queue = self._queue
        try:
            while True:
                await wait_for(queue.news, queue.seconds_to_next_look)
                queue.news.clear()
                if not queue.asked.is_set():
                    await wait_for(queue.asked, SWEEP_SECONDS)
                while await self._roll_due():
                    await self._clock.sleep(BETWEEN_ROUNDS_SECONDS)
        finally:
            queue.close()

    async def _roll_due(self) -> bool:
        """Roll one round; return whether another one must follow at once."""
        topics: dict[tuple[TopicId, RollPriority], list[Roll]] = {}
        for roll in await self._agenda.begin():
            topics.setdefault((roll.partition.topic_id, priority_of(roll)), []).append(roll)
        was_urgent = False
        for (topic_id, priority), rolls in topics.items():
            if was_urgent and priority is RollPriority.BACKGROUND:
                # The remaining rolls are not urgent, and others may have come due.
                await self._agenda.plan_again()
            was_urgent = priority is not RollPriority.BACKGROUND
            started_at, paused = self._clock.monotonic(), self._agenda.paused_seconds
            await self._roll_topic(topic_id, rolls)
            paused = self._agenda.paused_seconds - paused
            self.metrics.seconds += self._clock.monotonic() - started_at - paused
            if self._is_preempted(priority):
                # Rolls that clients wait for come first; the next look finds the rest again. A
                # client that asks during this round waits for all requested rolls of the round,
                # and for one segment of a due roll. Otherwise clients that keep asking would be
                # the only ones served.
                return True
        return self._agenda.has_planned_again

    # Rolling.

    async def _roll_topic(self, topic_id: TopicId, rolls: Sequence[Roll]) -> None:
        """Roll a topic's partitions; a roll that no client waits for yields to more urgent ones."""
        built: list[_Built] = []
        grace_seconds = self._settings().integer("log.delete.grace.ms") / 1000
        wait_seconds_max = grace_seconds * COMMIT_GRACE_SHARE_MAX
        try:
            for together in read_together(rolls, GATHERED_BYTES_MAX, GATHERED_EXTENTS_MAX):
                if len(together) > 1:
                    await self._builder.gather(each.log for each in self._present(together))
                for roll in together:
                    self._agenda.finish(roll.partition)
                    if built and self._clock.monotonic() > built[0].built_at + wait_seconds_max:
                        await self._commit(topic_id, built)
                    partition = self._partitions.get(roll.partition)
                    if partition is None:
                        continue
                    table_next = partition.log.table_next
                    # Asked for anew each time: a refresh in between may have replaced the state.
                    state = await table_up_to(self._tables, roll.partition, table_next)
                    if self._is_here(partition) and self._is_sound(partition, state):
                        self.metrics.rolls[roll.reason.value] += 1
                        await self._roll(partition, roll, built)
                    if self._is_preempted(priority_of(roll)):
                        await self._commit(topic_id, built)
                        return
            await self._commit(topic_id, built)
        except NoTable:
            for roll in rolls:
                self._queue.forget(roll.partition)
        except (CorruptObject, UnsupportedFormat) as error:
            self._queue.stop(self._present(rolls), error)
        except StoreError as error:
            self.metrics.failures += self._queue.pause(self._present(rolls), error)
        finally:
            self._builder.release()
            for roll in rolls:
                self._agenda.finish(roll.partition)

    def _is_preempted(self, priority: RollPriority) -> bool:
        """True if a roll of this priority should yield to others."""
        return priority is not RollPriority.REQUESTED and self._agenda.is_preempted

    def _present(self, rolls: Sequence[Roll]) -> list[Partition]:
        found = [self._partitions.get(roll.partition) for roll in rolls]
        return [partition for partition in found if partition is not None]

    async def _roll(self, partition: Partition, roll: Roll, built: list[_Built]) -> None:
        """Roll one partition, segment by segment, until a more urgent roll interrupts.

        The last segment stays in `built`, to be committed with those of others.
        """
        log, place = partition.log, partition.log.partition
        began_at, upper = self._clock.monotonic(), log.last_stable_offset
        turns = RollTurns(
            self._agenda, lambda: self._may_roll(partition) and log.table_next < upper
        )
        is_begun = False
        while await turns.next():
            if is_begun and self._is_preempted(priority_of(roll)):
                return
            is_begun = True
            change = await self._build(partition, upper, turns)
            if change is None or change.advance is None:
                return
            is_last = change.advance.next_offset >= upper
            dated = began_at if is_last else None
            built.append(_Built(partition, change, *change.advance, self._clock.monotonic(), dated))
            if not is_last or len(built) >= COMMIT_PARTITIONS_MAX:
                await self._commit(place.topic_id, built)
            if is_last:
                return
            if self._is_carried_over(partition, roll.reason, upper):
                break
        else:
            # The table may have the records by another broker: the next look tells those who wait.
            self._queue.news.set()
        # Records that arrived meanwhile are younger than this roll.
        self._queue.set_waiting_since(place, began_at)

    def _is_carried_over(self, partition: Partition, reason: RollReason, upper: int) -> bool:
        """Whether the rest of a large partition waits until it has grown."""
        if reason in (RollReason.REQUEST, RollReason.AGE):
            return False
        left = partition.log.extents.bytes_below(upper)
        return left < self._settings().integer("roll.min.bytes")

    async def _build(
        self, partition: Partition, upper: int, turns: RollTurns
    ) -> PartitionChange | None:
        """The change with a newly stored segment; None if the partition cannot be rolled now."""
        log, topic_id = partition.log, partition.log.partition.topic_id
        try:
            raw_bytes_max = self._topic_config(topic_id).integer("segment.bytes")
            return await self._builder.build(log, upper, raw_bytes_max, turns)
        except MissingObject as error:
            # F4: the table may have advanced, so the object is needless, or batches have moved.
            # `retry_if_superseded` does not fit: the agenda decides anew whether and when this
            # partition rolls, and its queue remembers a lost object.
            before, state = log.table_next, await self._tables.refresh(topic_id)
            fault = self._queue.advance_to_table(partition, state)
            has_changed = log.table_next > before or error.key not in log.extents.keys
            if fault is None and has_changed:
                self._queue.news.set()
            else:
                self._queue.stop([partition], fault or error)
        except CorruptObject as error:
            self._queue.stop([partition], error)
        except (StoreError, WorkerLost) as error:
            self.metrics.failures += self._queue.pause([partition], error)
        return None

    async def _commit(self, topic_id: TopicId, built: list[_Built]) -> None:
        """Commit the built changes in one version, and empty `built`.

        The next look finds refused changes again. If the segments are too old, only the youngest
        change is committed. Raises NoTable, StoreError and CorruptObject.
        """
        pending = [each for each in built if self._is_here(each.partition)]
        built.clear()
        while pending:
            try:
                result = await self._tables.commit(topic_id, tuple(each.change for each in pending))
            except SegmentsTooOld:
                if len(pending) == 1:
                    raise
                # If all were built together again, they would be too old again.
                pending = pending[-1:]
                self._queue.news.set()
                continue
            if isinstance(result, TableCommitted):
                self.metrics.commits += 1
                self.metrics.succeeded_at = self._clock.time_ms() / 1000
                for each in pending:
                    self._rolled(each, result.version)
                return
            self.metrics.refusals += 1
            # The table may have been opened anew while the commit waited for its answer.
            state = await self._tables.refresh(topic_id)
            pending = [each for each in pending if self._is_still_valid(each, state, result)]

    def _is_still_valid(self, built: _Built, state: TableState, refusal: CommitRefusal) -> bool:
        """Whether a change that was refused together with others is valid by itself.

        If the table has its records already, the partition continues from the table's end (E2).
        """
        if end_of(built.partition, state) != built.base_offset:
            self._is_sound(built.partition, state)
            self._queue.news.set()
            return False
        if refusal.partition != built.change.partition:
            return True
        # The table is at the expected offset, and still refuses the change.
        why = f"partition {refusal.partition} cannot continue: {refusal.reason}"
        self._queue.stop([built.partition], CorruptObject(log_prefix(state.topic_id), why))
        return False

    def _rolled(self, built: _Built, version: int) -> None:
        """Apply the effects of a durable commit."""
        built.partition.log.advance_table(built.next_offset)
        self._queue.rolled(built.partition)
        if built.began_at is not None:
            # Not before the commit is durable: after a failed one the records are as old and urgent
            # as before.
            self._queue.set_waiting_since(built.partition.log.partition, built.began_at)
        logger.info(
            "a partition was rolled",
            extra={
                "partition": str(built.partition),
                "next_offset": built.next_offset,
                "version": version,
                "segments": [segment.path for segment in built.change.appended],
            },
        )

    def _is_here(self, partition: Partition) -> bool:
        """Whether this broker still leads the partition, and the partition has no fault."""
        return partition.fault is None and (
            self._partitions.get(partition.log.partition) is partition
        )

    def _may_roll(self, partition: Partition) -> bool:
        return self._is_here(partition) and not self._queue.is_paused(partition.log.partition)

    def _is_sound(self, partition: Partition, state: TableState) -> bool:
        """Whether table and log agree; the log advances to the table's end."""
        fault = self._queue.advance_to_table(partition, state)
        if fault is not None:
            self._queue.stop([partition], fault)
        return fault is None
