"""Assembles the path from the WAL into tables: rolls, retention, log compaction, metrics."""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

from prometheus_client import CollectorRegistry

from tidelog.broker.append.appender import Appender
from tidelog.broker.clean.log_cleaner import LogCleaner
from tidelog.broker.clean.log_retention import LogRetention
from tidelog.broker.clean.metrics import CleanerCollector, CleanerMetrics
from tidelog.broker.environment import Surroundings
from tidelog.broker.partitions.partitions import PartitionRegistry
from tidelog.broker.roll.metrics import RollCollector, RollMetrics
from tidelog.broker.roll.queue import RollQueue
from tidelog.broker.roll.recovered import RecoveredPartitions
from tidelog.broker.roll.roller import Roller
from tidelog.broker.roll.segment_builder import SegmentBounds, SegmentBuilder
from tidelog.broker.roll.source import RollSource
from tidelog.broker.settings.live import LiveSettings
from tidelog.broker.tables.segment_ages import SegmentAges
from tidelog.broker.tables.tables import Tables
from tidelog.coordinator.cluster.state.state import ClusterState
from tidelog.wal.read.tail_cache import TailCache


class TablePath:
    """One incarnation's tables and the tasks that maintain them."""

    def __init__(
        self,
        world: Surroundings,
        state: Callable[[], ClusterState],
        partitions: PartitionRegistry,
        tail: TailCache,
        settings: LiveSettings,
        ages: SegmentAges,
        registry: CollectorRegistry,
    ) -> None:
        self._world = world
        self._partitions = partitions
        self._settings = settings
        self._registry = registry
        self.tables = Tables(
            state,
            world.store,
            world.clock,
            world.entropy,
            world.offload,
            settings.now().integer("log.delete.grace.ms") / 1000,
            world.crash_points,
            ages=ages,
        )
        self._queue = RollQueue(partitions, world.clock)
        self.recovered = RecoveredPartitions(
            partitions, self.tables, self._queue, world.store, world.clock
        )
        self.roller = self._new_roller(tail)

    async def roll(self) -> NoReturn:
        """Roll what is due until cancelled. Then every waiter is told, and later ones too."""
        try:
            await self.recovered.date()
            await self.roller.run()
        finally:
            self._queue.close()

    def _new_roller(self, tail: TailCache) -> Roller:
        world = self._world
        metrics = RollMetrics()
        self._registry.register(RollCollector(metrics))
        builder = SegmentBuilder(
            RollSource(world.store, tail, world.background),
            world.store,
            world.rolling,
            world.entropy,
            world.crash_points,
            metrics,
            self._settings.now().integer("decompressed.bytes.max"),
            SegmentBounds(),
        )
        return Roller(
            self._partitions,
            self._queue,
            self.tables,
            builder,
            world.clock,
            self._settings.now,
            self._settings.topic_config,
            metrics,
        )

    def cleaner(self, appender: Appender) -> LogCleaner:
        """The log cleaner. `appender` writes later log starts to the WAL."""
        world = self._world
        metrics = CleanerMetrics()
        self._registry.register(CleanerCollector(metrics))
        retention = LogRetention(
            self._partitions,
            self.tables,
            appender,
            world.clock,
            self._settings.topic_config,
            world.crash_points,
            metrics,
        )
        return LogCleaner(
            self._partitions,
            self.tables,
            retention,
            world.store,
            world.clock,
            world.entropy,
            world.cleaning,
            self._settings.now,
            self._settings.topic_config,
            world.crash_points,
            metrics,
        )
