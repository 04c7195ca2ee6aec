"""Takes what is decided from the WAL into the table, partition by partition. `run` is its task.

A roll is: build a segment and store it (`segment_builder`), commit it to the topic's table (E1),
and only then forget the extents below (`PartitionLog.advance_table`). If the process dies

- before the commit: the table is as it was; a segment that is stored is garbage;
- behind it: whoever opens the partition next asks the table where it ends (`recovered`), whatever
  the partition's image says, and forgets the extents below (E4);
- with the commit's outcome unknown: the same. While the process lives the partition is rolled again
  later, from what the table says by then: the commit finds it gone on, or as it was.

A fenced broker that commits late is refused, since the new owner's table has gone on, or right,
since both have rolled the same history; the new owner is refused once and goes on from there (E2).

What is corrupt stops the roll of its partition alone. Store errors are tried again.
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
from tidelog.broker.roll.queue import RollQueue
from tidelog.broker.roll.segment_builder import SegmentBuilder
from tidelog.broker.roll.source import (
    GATHERED_BYTES_MAX,
    GATHERED_EXTENTS_MAX,
)
from tidelog.broker.roll.table_ends import end_of, learn_table_end
from tidelog.broker.settings.settings import BrokerSettings, TopicConfig
from tidelog.broker.tables.tables import NoTable, Tables
from tidelog.clock import Clock
from tidelog.errors import CorruptObject, MissingObject, TidelogError, UnsupportedFormat
from tidelog.identifiers import TopicId
from tidelog.offload import WorkerLost
from tidelog.storage.object_store import StoreError
from tidelog.storage.table.table_change import PartitionChange
from tidelog.storage.table.table_log import SegmentsTooOld, TableCommitted, log_prefix
from tidelog.storage.table.table_state import CommitRefusal, TableState
from tidelog.wal.roll.roll_pace import Haste, haste_of
from tidelog.wal.roll.roll_plan import Roll, RollReason, read_together

logger = logging.getLogger(__name__)

SWEEP_SECONDS = 1.0
"""How often it is looked for what is to be rolled, while records come."""
BETWEEN_ROUNDS_SECONDS = 0.01
"""Between one round and another that is to follow at once."""
COMMIT_PARTITIONS_MAX = 64
"""Partitions of a topic that go on in one commit."""
COMMIT_GRACE_SHARE_MAX = 1 / 8
"""A segment waits no longer before others are begun: at half of the grace it is too old."""


@dataclass(slots=True)
class _Built:
    """A change that is ready to be committed."""

    partition: Partition
    change: PartitionChange
    base_offset: int
    next_offset: int
    built_at: float
    began_at: float | None
    """When the roll began whose last segment this is; None for the others."""


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
        """Something of the partition has become durable."""
        if not partition.is_internal:
            self._queue.note(partition.log.partition)

    def flush(self, partition: Partition) -> asyncio.Future[None]:
        """Have all that is decided now rolled; done when the table has it.

        CorruptObject, UnsupportedFormat: it cannot be rolled. PartitionError: it is not here any
        more, or the broker has ended. Errors of the store do not end the wait: `hindrance` names
        them.
        """
        return self._queue.wait(partition)

    def hindrance(self, partition: Partition) -> TidelogError | None:
        """Why the partition was not rolled when that was tried last."""
        return self._queue.hindrance(partition.log.partition)

    def faults(self) -> list[TidelogError]:
        """What is corrupt and stops rolls. May be called from any thread."""
        return self._queue.faults()

    def partitions_changed(self) -> None:
        """Topics or partitions have come or gone."""
        if self._queue.has_waiting:
            self._queue.news.set()

    # What is due.

    async def run(self) -> NoReturn:
        """Roll what is due until cancelled."""
        queue = self._queue
        while True:
            await wait_for(queue.news, queue.seconds_to_next_look)
            queue.news.clear()
            if not queue.asked.is_set():
                await wait_for(queue.asked, SWEEP_SECONDS)
            while await self._roll_due():
                await self._clock.sleep(BETWEEN_ROUNDS_SECONDS)

    async def _roll_due(self) -> bool:
        """One round; whether another one is to follow at once."""
        topics: dict[tuple[TopicId, Haste], list[Roll]] = {}
        for roll in await self._agenda.begin():
            topics.setdefault((roll.partition.topic_id, haste_of(roll)), []).append(roll)
        was_hasty = False
        for (topic_id, haste), rolls in topics.items():
            if was_hasty and haste is Haste.NONE:
                # What is left may take its time.
                await self._agenda.look_again()
            was_hasty = haste is not Haste.NONE
            started_at, paused = self._clock.monotonic(), self._agenda.paused_seconds
            await self._roll_topic(topic_id, rolls)
            paused = self._agenda.paused_seconds - paused
            self.metrics.seconds += self._clock.monotonic() - started_at - paused
            if self._is_called_away(haste):
                # Who waits comes first; what is left is found again. Who has come since this round
                # began waits for all that were asked for in it, and for a segment of what is due:
                # else those that ask again and again would be the only ones to be served.
                return True
        return self._agenda.has_looked_again

    # Rolling.

    async def _roll_topic(self, topic_id: TopicId, rolls: Sequence[Roll]) -> None:
        """Those that somebody waits for, or others, which end early when the roller is called
        away."""
        built: list[_Built] = []
        grace_seconds = self._settings().integer("log.delete.grace.ms") / 1000
        wait_seconds_max = grace_seconds * COMMIT_GRACE_SHARE_MAX
        try:
            for together in read_together(rolls, GATHERED_BYTES_MAX, GATHERED_EXTENTS_MAX):
                if len(together) > 1:
                    await self._builder.gather(each.log for each in self._present(together))
                for roll in together:
                    self._agenda.strike(roll.partition)
                    if built and self._clock.monotonic() > built[0].built_at + wait_seconds_max:
                        await self._commit(topic_id, built)
                    # Asked for each time: it is another object when much was committed by others.
                    state = await self._tables.open(topic_id)
                    partition = self._partitions.get(roll.partition)
                    if partition is not None and self._is_sound(partition, state):
                        self.metrics.rolls[roll.reason] += 1
                        await self._roll(partition, roll, built)
                    if self._is_called_away(haste_of(roll)):
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
            self._builder.let_go()
            for roll in rolls:
                self._agenda.strike(roll.partition)

    def _is_called_away(self, haste: Haste) -> bool:
        """Whether others are to come before what is in such haste."""
        return haste is not Haste.ASKED and self._agenda.is_called_away

    def _present(self, rolls: Sequence[Roll]) -> list[Partition]:
        found = [self._partitions.get(roll.partition) for roll in rolls]
        return [partition for partition in found if partition is not None]

    async def _roll(self, partition: Partition, roll: Roll, built: list[_Built]) -> None:
        """Roll one partition, segment by segment, until called away. The last segment is left in
        `built`, to be committed with those of others."""
        log, place = partition.log, partition.log.partition
        began_at, upper = self._clock.monotonic(), log.last_stable_offset
        turns = RollTurns(
            self._agenda, lambda: self._may_roll(partition) and log.table_next < upper
        )
        is_begun = False
        while await turns.next():
            if is_begun and self._is_called_away(haste_of(roll)):
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
        # What has come meanwhile is younger than this roll.
        self._queue.date(place, began_at)

    def _is_carried_over(self, partition: Partition, reason: RollReason, upper: int) -> bool:
        """Whether what is left of a large partition waits until there is more of it."""
        if reason in (RollReason.REQUEST, RollReason.AGE):
            return False
        left = partition.log.extents.bytes_below(upper)
        return left < self._settings().integer("roll.min.bytes")

    async def _build(
        self, partition: Partition, upper: int, turns: RollTurns
    ) -> PartitionChange | None:
        """A stored segment of the partition, or None where that is not to be had now."""
        log, topic_id = partition.log, partition.log.partition.topic_id
        try:
            raw_bytes_max = self._topic_config(topic_id).integer("segment.bytes")
            return await self._builder.build(log, upper, raw_bytes_max, turns)
        except MissingObject as error:
            # F4: it may be needless, since the table has gone on, or have been moved.
            before, state = log.table_next, await self._tables.refresh(topic_id)
            fault = learn_table_end(self._queue, partition, state)
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
        """Commit what is built, all of it in one version; those that are refused are left for the
        next look, and so are all but the youngest where they are too old together. `built` is empty
        then. NoTable, StoreError, CorruptObject."""
        pending = [each for each in built if self._is_here(each.partition)]
        built.clear()
        while pending:
            try:
                result = await self._tables.commit(topic_id, tuple(each.change for each in pending))
            except SegmentsTooOld:
                if len(pending) == 1:
                    raise
                # Each time that they are built together they would be too old again.
                pending = pending[-1:]
                self._queue.news.set()
                continue
            if isinstance(result, TableCommitted):
                self.metrics.commits += 1
                for each in pending:
                    self._rolled(each, result.version)
                return
            self.metrics.refusals += 1
            state = await self._tables.open(topic_id)
            pending = [each for each in pending if self._stands(each, state, result)]

    def _stands(self, built: _Built, state: TableState, refusal: CommitRefusal) -> bool:
        """Whether a change that was refused together with others is right for itself. What the
        table has is dropped, and the partition goes on from there (E2)."""
        if end_of(built.partition, state) != built.base_offset:
            self._is_sound(built.partition, state)
            self._queue.news.set()
            return False
        if refusal.partition != built.change.partition:
            return True
        # The table is where it should be, and the change is refused all the same.
        why = f"partition {refusal.partition} cannot go on: {refusal.reason}"
        self._queue.stop([built.partition], CorruptObject(log_prefix(state.topic_id), why))
        return False

    def _rolled(self, built: _Built, version: int) -> None:
        """A commit is durable: draw its consequences."""
        built.partition.log.advance_table(built.next_offset)
        self._queue.rolled(built.partition)
        if built.began_at is not None:
            # Not before it is durable: what could not be committed is as old, and as urgent, as it
            # was.
            self._queue.date(built.partition.log.partition, built.began_at)
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
        """Whether it is still led by this broker and in order."""
        return partition.fault is None and (
            self._partitions.get(partition.log.partition) is partition
        )

    def _may_roll(self, partition: Partition) -> bool:
        return self._is_here(partition) and not self._queue.is_paused(partition.log.partition)

    def _is_sound(self, partition: Partition, state: TableState) -> bool:
        """Whether table and log fit together; the log learns where the table ends."""
        fault = learn_table_end(self._queue, partition, state)
        if fault is not None:
            self._queue.stop([partition], fault)
        return fault is None
