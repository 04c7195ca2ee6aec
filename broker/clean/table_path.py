"""Assembles the path from the WAL into tables: rolls, retention, log compaction, metrics."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry

from tidelog.broker.append.appender import Appender
from tidelog.broker.clean.log_cleaner import LogCleaner
from tidelog.broker.clean.log_retention import LogRetention
from tidelog.broker.clean.metrics import CleanerMetrics
from tidelog.broker.environment import BrokerEnvironment
from tidelog.broker.partitions.partitions import PartitionRegistry
from tidelog.broker.roll.metrics import RollMetrics
from tidelog.broker.roll.queue import RollQueue
from tidelog.broker.roll.recovered import RecoveredPartitions
from tidelog.broker.roll.roller import Roller
from tidelog.broker.roll.segment_builder import SegmentBounds, SegmentBuilder
from tidelog.broker.roll.source import RollSource
from tidelog.broker.settings.live import LiveSettings
from tidelog.broker.tables.segment_ages import SegmentAges, SegmentAgingStore
from tidelog.broker.tables.tables import Tables
from tidelog.broker.telemetry.families import CountsCollector
from tidelog.coordinator.cluster.state.state import ClusterState
from tidelog.wal.read.tail_cache import TailCache


class TablePath:
    """One incarnation's tables and the tasks that maintain them."""

    def __init__(
        self,
        environment: BrokerEnvironment,
        state: Callable[[], ClusterState],
        partitions: PartitionRegistry,
        tail: TailCache,
        settings: LiveSettings,
        registry: CollectorRegistry,
    ) -> None:
        self._environment = environment
        self._partitions = partitions
        self._settings = settings
        self._registry = registry
        grace_seconds = settings.now().integer("log.delete.grace.ms") / 1000
        self.ages = SegmentAges(grace_seconds)
        self._segments = SegmentAgingStore(environment.store, environment.clock, self.ages)
        self.tables = Tables(
            state,
            environment.store,
            environment.clock,
            environment.entropy,
            environment.offload,
            grace_seconds,
            environment.crash_points,
            ages=self.ages,
        )
        self._queue = RollQueue(partitions, environment.clock)
        self.recovered = RecoveredPartitions(
            self.tables, self._queue, environment.store, environment.clock
        )
        self.roller = self._new_roller(tail)

    def _new_roller(self, tail: TailCache) -> Roller:
        environment = self._environment
        metrics = RollMetrics()
        self._registry.register(CountsCollector(metrics))
        builder = SegmentBuilder(
            RollSource(environment.store, tail, environment.background),
            self._segments,
            environment.rolling,
            environment.entropy,
            environment.crash_points,
            metrics,
            SegmentBounds(),
        )
        return Roller(
            self._partitions,
            self._queue,
            self.tables,
            builder,
            environment.clock,
            self._settings.now,
            self._settings.topic_config,
            metrics,
        )

    def cleaner(self, appender: Appender) -> LogCleaner:
        """The log cleaner. `appender` writes later log starts to the WAL."""
        environment = self._environment
        metrics = CleanerMetrics()
        self._registry.register(CountsCollector(metrics))
        retention = LogRetention(
            self._partitions,
            self.tables,
            appender,
            environment.clock,
            self._settings.topic_config,
            environment.crash_points,
            metrics,
        )
        return LogCleaner(
            self._partitions,
            self.tables,
            retention,
            self._segments,
            environment.clock,
            environment.entropy,
            environment.cleaning,
            self._settings.now,
            self._settings.topic_config,
            environment.crash_points,
            metrics,
        )
