"""The log cleaner: applies retention, compacts logs and merges small segments, one at a time.

`run` is its task. It decides from the tables alone (`storage/clean/compaction.py`), so it has no
state to recover. If the process dies

- while it maps keys or writes segments: nothing has happened; the new objects are garbage;
- after a commit: the committed segments say how far they are clean, and the next round continues;
- with the commit's outcome unknown: one of these two.

If a fenced broker commits late, the table refuses the commit (E3), or the commit is right. It drops
only records with a later record of the same key in the same table, and no other writer drops that
one before them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import aclosing
from typing import NamedTuple, NoReturn

from tidelog.broker.clean.log_retention import LogRetention
from tidelog.broker.clean.metrics import CleanerMetrics
from tidelog.broker.partitions.partitions import Partition, PartitionRegistry
from tidelog.broker.settings.kinds import LONG_MAX
from tidelog.broker.settings.settings import BrokerSettings, TopicConfig
from tidelog.broker.tables.tables import NoTable, Tables
from tidelog.clock import Clock
from tidelog.crash_points import CrashPoint, CrashPoints
from tidelog.entropy import Entropy
from tidelog.errors import CorruptObject, TidelogError
from tidelog.identifiers import TopicId, TopicPartition
from tidelog.storage.clean.compaction import (
    CompactionPolicy,
    DirtyLog,
    Round,
    SegmentMergeLimits,
    dirty_log,
    small_run,
)
from tidelog.storage.clean.retention import share_below
from tidelog.storage.clean.segment_rewriting import Replacement, SegmentRewriter
from tidelog.storage.object_store import ObjectNotFound, ObjectStore
from tidelog.storage.segment.segment import Segment
from tidelog.storage.table.table_change import PartitionChange
from tidelog.storage.table.table_log import TableCommitted
from tidelog.storage.table.table_state import TableState
from tidelog.workers.offload import Offload

logger = logging.getLogger(__name__)

FIRST_RETENTION_SECONDS = 30.0
"""The delay of the first retention after the start, as in Kafka."""
PAUSE_SECONDS = 15.0
"""How long the cleaner skips a partition after a failure."""
CORRUPT_SECONDS = 300.0
"""How long the cleaner skips a partition after a CorruptObject."""
LOOKED_AT_ONCE = 100
"""Partitions that the cleaner examines before it yields to other tasks."""
PACE_SECONDS_MIN = 0.001
"""Shorter waits are skipped."""
PACE_SECONDS_MAX = 1.0
"""Longer waits are divided."""
SHARE_BELOW_WORTH_A_REWRITE = 0.5
"""The approximate share of rows below the log start that makes a rewrite worthwhile."""
RETENTION_PARTS = 8
"""A merged segment holds at most 1/8 of the retained data: retention deletes whole segments."""


class _Job(NamedTuple):
    """The next work: a round of compaction, or segments to merge into one."""

    partition: Partition
    config: TopicConfig
    dirty: DirtyLog | None
    merged: tuple[Segment, ...] = ()


class _Turn(NamedTuple):
    """A log's last turn."""

    number: int
    has_failed: bool


class _Looked(NamedTuple):
    """The state in which a partition had no work."""

    version: int
    log_start: int
    config: TopicConfig


class LogCleaner:
    """Cleans the logs that this broker leads. Internal topics have snapshots instead."""

    def __init__(
        self,
        partitions: PartitionRegistry,
        tables: Tables,
        retention: LogRetention,
        store: ObjectStore,
        clock: Clock,
        entropy: Entropy,
        offload: Offload,
        settings: Callable[[], BrokerSettings],
        topic_config: Callable[[TopicId], TopicConfig],
        crash_points: CrashPoints,
        metrics: CleanerMetrics,
    ) -> None:
        """`offload` runs tasks of tens of milliseconds.

        Look-ups among millions of keys take up to a second.
        """
        self._partitions = partitions
        self._tables = tables
        self.retention = retention
        self._store = store
        self._clock = clock
        self._entropy = entropy
        self._offload = offload
        self._settings = settings
        self._topic_config = topic_config
        self._crash_points = crash_points
        self.metrics = metrics
        self._looked: dict[TopicPartition, _Looked] = {}
        self._ratios: dict[TopicPartition, float] = {}
        """The dirty shares of compacted logs, when they were last looked at."""
        self._paused: dict[TopicPartition, float] = {}
        self._turns: dict[TopicPartition, _Turn] = {}
        self._turns_taken = 0
        self._cleaning = asyncio.Lock()
        self._retained_at = clock.monotonic()
        self._has_retained = False

    async def run(self) -> NoReturn:
        self._retained_at = self._clock.monotonic()
        while True:
            await self._retain_if_due()
            if not await self.clean_one():
                backoff = self._settings().integer("log.cleaner.backoff.ms") / 1000
                seconds = min(backoff, self._retention_due_in())
                await self._clock.sleep(max(0.0, seconds))

    async def clean_one(self) -> bool:
        """Do the most worthwhile job; return whether there was one.

        A job's failure is logged, and its partition is skipped for a while.
        """
        async with self._cleaning:
            return await self._clean_one()

    async def _clean_one(self) -> bool:
        job = await self._choose()
        if job is None:
            return False
        place = job.partition.log.partition
        self._turns_taken += 1
        self._turns[place] = _Turn(self._turns_taken, has_failed=False)
        try:
            await self._do(job)
        except NoTable:
            # The topic was deleted meanwhile.
            pass
        except TidelogError as error:
            self._turns[place] = _Turn(self._turns_taken, has_failed=True)
            await self._note_failure(place, error)
        return True

    # Which job is next.

    async def _choose(self) -> _Job | None:
        """The dirtiest log that is due for compaction; if there is none, segments to merge.

        A log whose last turn failed lets all others go first that have had no turn since. Otherwise
        two logs whose rounds fail later than their pauses end would keep the others waiting.
        """
        jobs: list[_Job] = []
        has_merge = False
        looked: dict[TopicPartition, _Looked] = {}
        turns: dict[TopicPartition, _Turn] = {}
        known, self._ratios = self._ratios, {}
        for number, partition in enumerate(list(self._partitions), 1):
            if number % LOOKED_AT_ONCE == 0:
                await self._clock.sleep(0)
            place = partition.log.partition
            turn = self._turns.get(place)
            if turn is not None:
                turns[place] = turn
            if place in known:
                self._ratios[place] = known[place]
            if not self._may_be_cleaned(partition):
                continue
            try:
                table = await self._tables.open(place.topic_id)
            except NoTable:
                continue
            except TidelogError as error:
                await self._note_failure(place, error)
                continue
            if self._partitions.get(place) is not partition:
                continue
            config = self._topic_config(place.topic_id)
            now = _Looked(table.version, partition.log.log_start, config)
            if self._looked.get(place) == now:
                looked[place] = now
                continue
            self._ratios.pop(place, None)
            dirty = self._dirty(partition, config, table)
            has_failed = turn is not None and turn.has_failed
            if dirty is not None:
                jobs.append(_Job(partition, config, dirty))
            elif has_failed or not has_merge:
                merged = self._to_merge(partition, config, table)
                if merged:
                    jobs.append(_Job(partition, config, None, merged))
                    has_merge = has_merge or not has_failed
                elif not _depends_on_time(config):
                    looked[place] = now
        self._looked, self._turns = looked, turns
        self.metrics.dirty_ratio_max = max(self._ratios.values(), default=0.0)
        return self._fairest(jobs)

    def _fairest(self, jobs: Sequence[_Job]) -> _Job | None:
        turns = [self._turns.get(job.partition.log.partition) for job in jobs]
        longest_ago = min((turn.number if turn else 0 for turn in turns), default=0)
        entitled = [
            job
            for job, turn in zip(jobs, turns, strict=True)
            if turn is None or not turn.has_failed or turn.number == longest_ago
        ]
        return max(entitled, key=lambda job: job.dirty.ratio if job.dirty else 0.0, default=None)

    def _may_be_cleaned(self, partition: Partition) -> bool:
        if partition.is_internal or partition.fault is not None or not partition.log.table_next:
            return False
        until = self._paused.get(partition.log.partition)
        if until is None:
            return True
        if self._clock.monotonic() < until:
            return False
        del self._paused[partition.log.partition]
        return True

    def _dirty(
        self, partition: Partition, config: TopicConfig, table: TableState
    ) -> DirtyLog | None:
        """The dirty part of the log, if its compaction is due."""
        if "compact" not in config.items_of("cleanup.policy"):
            return None
        log, now_ms = partition.log, self._clock.time_ms()
        policy = compaction_policy(config)
        segments = table.partition(log.partition.partition).segments
        dirty = dirty_log(segments, policy, log.log_start, now_ms)
        if dirty is None:
            return None
        self._ratios[log.partition] = dirty.ratio
        is_enabled = self._settings().boolean("log.cleaner.enable")
        return dirty if is_enabled and dirty.is_due(policy, now_ms) else None

    def _to_merge(
        self, partition: Partition, config: TopicConfig, table: TableState
    ) -> tuple[Segment, ...]:
        """Small segments to merge, or the first one if most of it lies below the log start."""
        log = partition.log
        segments = [
            stored
            for stored in table.partition(log.partition.partition).segments
            if stored.segment.name.last_offset >= log.log_start
        ]
        if segments:
            first = segments[0].segment
            if share_below(first, log.log_start) >= SHARE_BELOW_WORTH_A_REWRITE:
                return (first,)
        run = small_run(segments, self._merge_limits(config))
        return tuple(stored.segment for stored in run)

    def _merge_limits(self, config: TopicConfig) -> SegmentMergeLimits:
        bytes_max, span_ms_max = self._target_bytes(config), LONG_MAX
        if "delete" in config.items_of("cleanup.policy"):
            span_ms_max = config.integer("segment.ms")
            retention_bytes = config.integer("retention.bytes")
            retention_ms = config.integer("retention.ms")
            if retention_bytes >= 0:
                bytes_max = min(bytes_max, retention_bytes // RETENTION_PARTS)
            if retention_ms >= 0:
                span_ms_max = min(span_ms_max, retention_ms // RETENTION_PARTS)
        return SegmentMergeLimits(bytes_max, span_ms_max)

    def _target_bytes(self, config: TopicConfig) -> int:
        own = self._settings().integer("merge.segment.bytes")
        return min(own, config.integer("segment.bytes"))

    # How the cleaner does a job.

    async def _do(self, job: _Job) -> None:
        if job.dirty is None:
            log_start = job.partition.log.log_start
            rewriter = self._rewriter(job.partition)
            replacement = await rewriter.merge(job.merged, log_start)
            if await self._replace(job.partition, job.merged, replacement, is_compaction=False):
                self.metrics.merges += 1
        else:
            await self._compact(job.partition, job.config, job.dirty)

    async def _compact(self, partition: Partition, config: TopicConfig, dirty: DirtyLog) -> None:
        """One round. Keys beyond the buffer's room are left for the next round."""
        log = partition.log
        table = await self._tables.open(log.partition.topic_id)
        segments = [stored.segment for stored in table.partition(log.partition.partition).segments]
        rewriter = self._rewriter(partition)
        started = self._clock.monotonic()
        keys, end = await rewriter.map_keys(
            segments,
            dirty.first_dirty,
            dirty.end,
            self._settings().integer("log.cleaner.dedupe.buffer.size"),
        )
        round_ = Round(
            first_dirty=dirty.first_dirty,
            end=end,
            log_start=log.log_start,
            now_ms=self._clock.time_ms(),
            delete_retention_ms=config.integer("delete.retention.ms"),
        )
        dropped = 0
        made = rewriter.compact(segments, keys, round_, self._target_bytes(config))
        async with aclosing(made) as replacements:
            async for replacement in replacements:
                removed = [s for s in segments if s.name in replacement.removed]
                if not await self._replace(partition, removed, replacement, is_compaction=True):
                    return
                before, after = (
                    sum(segment.row_count for segment in each)
                    for each in (removed, replacement.rewritten)
                )
                dropped += before - after
                self.metrics.records_compacted += before - after
                await self._retain_if_due()
        self.metrics.compactions += 1
        logger.info(
            "a log was compacted",
            extra={
                "partition": str(partition),
                "first_dirty": dirty.first_dirty,
                "end": end,
                "dropped": dropped,
                "seconds": self._clock.monotonic() - started,
            },
        )

    async def _replace(
        self,
        partition: Partition,
        removed: Sequence[Segment],
        replacement: Replacement,
        *,
        is_compaction: bool,
    ) -> bool:
        """Whether the table has the replacement; otherwise another writer prevented it."""
        place = partition.log.partition
        self._crash_points.hit(CrashPoint.SEGMENTS_REWRITTEN)
        if self._partitions.get(place) is not partition:
            return False
        change = PartitionChange(
            partition=place.partition,
            removed=replacement.removed,
            rewritten=replacement.rewritten,
            is_compaction=is_compaction,
        )
        result = await self._tables.commit(place.topic_id, (change,))
        if not isinstance(result, TableCommitted):
            self.metrics.refusals += 1
            logger.info(
                "another writer changed the table first; the log will be tried again",
                extra={"partition": str(partition), "why": result.reason},
            )
            return False
        self._crash_points.hit(CrashPoint.SEGMENTS_REPLACED)
        self.metrics.segments_replaced += len(removed)
        self.metrics.bytes_written += sum(s.size_bytes for s in replacement.rewritten)
        return True

    def _rewriter(self, partition: Partition) -> SegmentRewriter:
        return SegmentRewriter(
            self._store, self._entropy, self._offload, partition.log.partition, self._pace
        )

    async def _pace(self, size_bytes: int) -> None:
        """Sleep so that the cleaner stays below log.cleaner.io.max.bytes.per.second.

        At a low rate a job takes hours. So retention comes meanwhile, and a new rate counts at
        once.
        """
        self.metrics.bytes_moved += size_bytes
        left = float(size_bytes)
        while True:
            rate = self._settings().number("log.cleaner.io.max.bytes.per.second")
            seconds = min(left / rate, PACE_SECONDS_MAX)
            if seconds >= PACE_SECONDS_MIN:
                await self._clock.sleep(seconds)
            await self._retain_if_due()
            left -= seconds * rate
            if left / rate < PACE_SECONDS_MIN:
                return

    async def _note_failure(self, place: TopicPartition, error: TidelogError) -> None:
        self.metrics.failures += 1
        is_corrupt = isinstance(error, CorruptObject)
        seconds = CORRUPT_SECONDS if is_corrupt else PAUSE_SECONDS
        self._paused[place] = self._clock.monotonic() + seconds
        logger.log(
            logging.ERROR if is_corrupt else logging.WARNING,
            "a log could not be cleaned; it will be tried again",
            extra={
                "partition": str(self._partitions.get(place) or place),
                "key": getattr(error, "key", None),
                "why": str(error),
            },
        )
        if isinstance(error, ObjectNotFound):
            # Another writer may have removed the segment from the table (F4).
            try:
                await self._tables.refresh(place.topic_id)
            except TidelogError as again:
                logger.info("a table could not be read again", extra={"why": str(again)})

    # When retention is due.

    async def _retain_if_due(self) -> None:
        if self._retention_due_in() <= 0:
            self._retained_at, self._has_retained = self._clock.monotonic(), True
            await self.retention.apply()

    def _retention_due_in(self) -> float:
        interval = self._settings().integer("log.retention.check.interval.ms") / 1000
        if not self._has_retained:
            interval = min(interval, FIRST_RETENTION_SECONDS)
        return self._retained_at + interval - self._clock.monotonic()


def compaction_policy(config: TopicConfig) -> CompactionPolicy:
    """The compaction settings of a topic."""
    return CompactionPolicy(
        min_compaction_lag_ms=config.integer("min.compaction.lag.ms"),
        max_compaction_lag_ms=config.integer("max.compaction.lag.ms"),
        min_cleanable_dirty_ratio=config.number("min.cleanable.dirty.ratio"),
        delete_retention_ms=config.integer("delete.retention.ms"),
    )


def _depends_on_time(config: TopicConfig) -> bool:
    """Whether the passage of time alone may make the log due for compaction."""
    if "compact" not in config.items_of("cleanup.policy"):
        return False
    policy = compaction_policy(config)
    return policy.min_compaction_lag_ms > 0 or policy.max_compaction_lag_ms < LONG_MAX
