"""Retention of the partitions that this broker leads.

First a WAL entry moves the log start. When it is durable, a commit removes the segments below it
from the table. If the process dies

- before the entry is durable: nothing has happened;
- after it: the next leader begins the log at the new start; the next retention removes the
  segments;
- with the commit's outcome unknown: the same; segments already removed are not found again.

A fenced broker cannot move the log start. Its late commit is right: it removes only segments below
a durable log start, and a log start never goes back. If the table refuses the commit (E3),
retention reads the table again.

The other order would let a reader above the log start find a hole.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence

from tidelog.broker.append.appender import Appender
from tidelog.broker.clean.metrics import CleanerMetrics
from tidelog.broker.partitions.partitions import Partition, PartitionRegistry
from tidelog.broker.settings.settings import TopicConfig
from tidelog.broker.tables.table_source import table_up_to
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
"""Partitions of a topic that one commit may remove segments from."""
_ATTEMPTS_MAX = 3


class LogRetention:
    """Moves log starts and removes the segments below them from the tables."""

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
        """Apply retention once to all partitions.

        A failure is logged; the next run tries the topic again.
        """
        topics: dict[TopicId, list[Partition]] = {}
        for partition in self._partitions:
            if not partition.is_internal and partition.fault is None:
                topics.setdefault(partition.log.partition.topic_id, []).append(partition)
        for topic_id, partitions in topics.items():
            for first in range(0, len(partitions), COMMIT_PARTITIONS_MAX):
                some = partitions[first : first + COMMIT_PARTITIONS_MAX]
                # Planning has no other await: yield to other tasks here.
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
        for log in (partition.log for partition in partitions):
            if log.table_next:
                table = await table_up_to(self._tables, log.partition, log.table_next)
        held = self._held(partitions)
        if table is not None and self._planned(topic_id, held, table):
            # Another broker may have compacted a log since: the present table tells its size.
            table = await self._tables.refresh(topic_id)
            held = self._held(held)
        await self._move_log_starts(topic_id, held, table)
        if table is not None:
            await self._remove_segments(topic_id, held)

    def _held(self, partitions: Sequence[Partition]) -> list[Partition]:
        """Those of the partitions that this broker still leads."""
        return [each for each in partitions if self._partitions.get(each.log.partition) is each]

    async def _move_log_starts(
        self, topic_id: TopicId, partitions: Sequence[Partition], table: TableState | None
    ) -> None:
        moving = [
            self._appender.delete_records(partition, log_start)
            for partition, log_start in self._planned(topic_id, partitions, table)
        ]
        if moving:
            await all_results(moving)
            self._crash_points.hit(CrashPoint.LOG_START_MOVED)
            self._metrics.log_starts_moved += len(moving)

    def _planned(
        self, topic_id: TopicId, partitions: Sequence[Partition], table: TableState | None
    ) -> list[tuple[Partition, Offset]]:
        """The partitions whose log starts move, and where to, by this table."""
        if not partitions:
            # The topic may be deleted: it has no settings then.
            return []
        config = self._topic_config(topic_id)
        if "delete" not in config.items_of("cleanup.policy"):
            return []
        policy = RetentionPolicy(config.integer("retention.ms"), config.integer("retention.bytes"))
        now_ms = self._clock.time_ms()
        planned = []
        for partition in partitions:
            log = partition.log
            if table is not None and ends_below(table, log):
                # Records between the table's end and the WAL would look like offsets without one.
                continue
            log_start = log_start_after(
                runs_of(log, table), policy, log.log_start, log.last_stable_offset, now_ms
            )
            if log_start > log.log_start:
                planned.append((partition, Offset(log_start)))
        return planned

    async def _remove_segments(self, topic_id: TopicId, partitions: Sequence[Partition]) -> None:
        """Remove segments below the log starts, also those that DeleteRecords moved."""
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


def ends_below(table: TableState, log: PartitionLog) -> bool:
    """Whether the table lacks records that were rolled: another process has committed them, and
    this one has read the table before."""
    return table.partition(log.partition.partition).next_offset < log.table_next


def runs_of(log: PartitionLog, table: TableState | None) -> Iterator[RetentionRun]:
    """The parts of a partition, ascending: its segments, then its slots in the WAL."""
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
