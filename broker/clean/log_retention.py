"""Retention, applied to the partitions that this broker leads.

First the log start moves, by an entry of the WAL; when that is durable, a commit removes the
segments below from the table. If the process dies

- before the entry is durable: nothing has happened;
- behind it: the log begins later for whoever leads the partition next; the segments below it are in
  the table still, and the next time that retention is applied they are removed;
- with the commit's outcome unknown: the same; what is removed already is not there to be removed.

A fenced broker cannot move the log start. Its late commit removes only what lies below one that was
durable, and a log start never goes back: so it is right. Where it is refused (E3), what is there
then is looked at again.

The other order would let a reader above the log start find a hole.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence

from tidelog.broker.append.appender import Appender
from tidelog.broker.clean.metrics import CleanerMetrics
from tidelog.broker.partitions.partitions import Partition, PartitionRegistry
from tidelog.broker.settings.settings import TopicConfig
from tidelog.broker.tables.tables import NoTable, Tables
from tidelog.clock import Clock
from tidelog.concurrency import all_results
from tidelog.crash_points import CrashPoint, CrashPoints
from tidelog.errors import TidelogError
from tidelog.identifiers import Offset, TopicId
from tidelog.records.batch import NO_TIMESTAMP
from tidelog.storage.clean.retention import (
    RetentionPolicy,
    RetentionRun,
    log_start_after,
    run_of,
    segments_below,
)
from tidelog.storage.table.table_change import PartitionChange
from tidelog.storage.table.table_log import TableCommitted
from tidelog.storage.table.table_state import TableState
from tidelog.wal.log.partition_log import PartitionLog

logger = logging.getLogger(__name__)

COMMIT_PARTITIONS_MAX = 64
"""Partitions of a topic that lose segments in one commit."""
_ATTEMPTS_MAX = 3


class LogRetention:
    """Moves log starts and removes what lies below them from the tables."""

    def __init__(
        self,
        partitions: PartitionRegistry,
        tables: Tables,
        appender: Appender,
        clock: Clock,
        topic_config: Callable[[TopicId], TopicConfig],
        crash_points: CrashPoints,
        metrics: CleanerMetrics,
    ) -> None:
        self._partitions = partitions
        self._tables = tables
        self._appender = appender
        self._clock = clock
        self._topic_config = topic_config
        self._crash_points = crash_points
        self._metrics = metrics

    async def apply(self) -> None:
        """Once, to all partitions. What fails is logged, and done the next time."""
        topics: dict[TopicId, list[Partition]] = {}
        for partition in self._partitions:
            if not partition.is_internal and partition.fault is None:
                topics.setdefault(partition.log.partition.topic_id, []).append(partition)
        for topic_id, partitions in topics.items():
            for first in range(0, len(partitions), COMMIT_PARTITIONS_MAX):
                some = partitions[first : first + COMMIT_PARTITIONS_MAX]
                # Planning waits for nothing: others may go on in between.
                await self._clock.sleep(0)
                try:
                    await self._apply_to(topic_id, some)
                except NoTable:
                    # The topic was deleted meanwhile.
                    break
                except TidelogError as error:
                    self._metrics.failures += 1
                    logger.warning(
                        "retention could not be applied; it will be tried again",
                        extra={"topic": some[0].topic_name, "why": str(error)},
                    )

    async def _apply_to(self, topic_id: TopicId, partitions: Sequence[Partition]) -> None:
        table = None
        if any(partition.log.table_next for partition in partitions):
            table = await self._tables.open(topic_id)
        held = [p for p in partitions if self._partitions.get(p.log.partition) is p]
        if not held:
            return
        await self._move_log_starts(topic_id, held, table)
        if table is not None:
            await self._remove_segments(topic_id, held)

    async def _move_log_starts(
        self, topic_id: TopicId, partitions: Sequence[Partition], table: TableState | None
    ) -> None:
        config = self._topic_config(topic_id)
        if "delete" not in config.items_of("cleanup.policy"):
            return
        policy = RetentionPolicy(config.integer("retention.ms"), config.integer("retention.bytes"))
        now_ms = self._clock.time_ms()
        moving = []
        for partition in partitions:
            log = partition.log
            log_start = log_start_after(
                runs_of(log, table), policy, log.log_start, log.last_stable_offset, now_ms
            )
            if log_start > log.log_start:
                moving.append(self._appender.delete_records(partition, Offset(log_start)))
        if moving:
            await all_results(moving)
            self._crash_points.hit(CrashPoint.LOG_START_MOVED)
            self._metrics.log_starts_moved += len(moving)

    async def _remove_segments(self, topic_id: TopicId, partitions: Sequence[Partition]) -> None:
        """Remove what lies below the log starts, whoever moved them."""
        for _ in range(_ATTEMPTS_MAX):
            table = await self._tables.open(topic_id)
            changes = tuple(_removals(table, partitions))
            if not changes:
                return
            removed = [name for change in changes for name in change.removed]
            sizes = {
                stored.segment.name: stored.segment.size_bytes
                for change in changes
                for stored in table.partition(change.partition).segments[: len(change.removed)]
            }
            result = await self._tables.commit(topic_id, changes)
            if isinstance(result, TableCommitted):
                self._crash_points.hit(CrashPoint.SEGMENTS_REPLACED)
                self._metrics.segments_expired += len(removed)
                self._metrics.expired_bytes += sum(sizes.values())
                logger.info(
                    "segments below the log start were removed",
                    extra={"topic": partitions[0].topic_name, "segments": len(removed)},
                )
                return
            self._metrics.refusals += 1


def runs_of(log: PartitionLog, table: TableState | None) -> Iterator[RetentionRun]:
    """All that a partition holds, ascending: its segments, then its slots in the WAL."""
    table_next = log.table_next
    if table is not None:
        part = table.partition(log.partition.partition)
        table_next = max(table_next, part.next_offset)
        yield from map(run_of, part.segments)
    for extent in log.extents.from_offset(table_next):
        latest = None if extent.max_timestamp == NO_TIMESTAMP else extent.max_timestamp
        yield RetentionRun(
            max(extent.base_offset, table_next), extent.last_offset, latest, extent.length
        )


def _removals(table: TableState, partitions: Sequence[Partition]) -> Iterator[PartitionChange]:
    for partition in partitions:
        number = partition.log.partition.partition
        removed = segments_below(table.partition(number).segments, partition.log.log_start)
        if removed:
            yield PartitionChange(partition=number, removed=removed)
