"""The background tasks that keep a broker's bucket small, and their metrics.

They open inherited partitions, merge WAL objects, write checkpoints and collect garbage.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import NoReturn

from prometheus_client.registry import CollectorRegistry

from tidelog.broker.append.write_path import WritePath
from tidelog.broker.collect.collector import Collector
from tidelog.broker.collect.deletion import CollectorMetrics, Deleter
from tidelog.broker.collect.forgetting import Forgetting
from tidelog.broker.collect.mark_file import MarkFile
from tidelog.broker.collect.merger import Merger
from tidelog.broker.collect.staged_batches import StagedBatches
from tidelog.broker.collect.survey_file import SurveyFile
from tidelog.broker.collect.table_collector import TableCollector
from tidelog.broker.collect.wal_inventory import OwnWal, WalInventory
from tidelog.broker.environment import BrokerEnvironment
from tidelog.broker.ownership.inherited import InheritedPartitions
from tidelog.broker.read.wal_tier import LogReader
from tidelog.broker.settings.live import LiveSettings
from tidelog.broker.settings.settings import BrokerSettings
from tidelog.broker.telemetry.families import CountsCollector
from tidelog.clock import Clock
from tidelog.coordinator.cluster.log.metadata_log import MetadataLog
from tidelog.storage.object_store import StoreError
from tidelog.wal.log.producer_expiry import ProducerExpiry

logger = logging.getLogger(__name__)

PRODUCER_EXPIRY_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Maintenance:
    """The maintenance tasks of one incarnation."""

    inherited: InheritedPartitions
    merger: Merger
    marks: MarkFile
    deleter: Deleter
    collector: Collector
    table_collector: TableCollector
    forgetting: Forgetting

    async def open_inherited(self) -> NoReturn:
        """Open partitions that are taken over, until cancelled. Cancel it before the WAL closes."""
        await self.inherited.run()

    async def merge(self) -> NoReturn:
        """Merge WAL objects, until cancelled. Cancel it before the WAL closes."""
        await self.merger.run()

    async def collect(self) -> None:
        """Delete needless objects, until cancelled."""
        try:
            await self.marks.load()
        except StoreError as error:
            logger.warning(
                "the marks of the previous process are unreadable; unreachable objects are kept for"
                " another grace period",
                extra={"key": error.key, "why": str(error)},
            )
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.deleter.run())
            tasks.create_task(self.collector.run())
            tasks.create_task(self.table_collector.run())
            tasks.create_task(self.forgetting.run())


def new_maintenance(
    environment: BrokerEnvironment,
    metadata: MetadataLog,
    writes: WritePath,
    reader: LogReader,
    settings: BrokerSettings,
    registry: CollectorRegistry,
) -> Maintenance:
    """The maintenance of an incarnation whose write path is open."""
    times = _Times.of(settings)
    me = writes.wal.incarnation
    counted = CollectorMetrics()
    merger = _merger(environment, writes, reader, times, settings)
    registry.register(CountsCollector(merger.metrics))
    registry.register(CountsCollector(counted))
    deleter = Deleter(
        environment.store,
        environment.clock,
        environment.crash_points,
        counted,
        min(times.interval_seconds, times.grace_seconds / 8),
    )
    marks = MarkFile(
        environment.store,
        environment.clock,
        environment.offload,
        me.broker_id,
        times.grace_seconds,
        metadata.snapshots_seen,
    )
    return Maintenance(
        inherited=InheritedPartitions(environment.clock, writes, lambda: metadata.state),
        merger=merger,
        marks=marks,
        deleter=deleter,
        collector=_collector(
            environment, metadata, writes, merger, marks, deleter, counted, times, settings
        ),
        table_collector=TableCollector(
            environment.store,
            environment.clock,
            environment.entropy,
            environment.offload,
            metadata,
            me,
            times.tables_interval_seconds,
            times.grace_seconds,
            marks,
            deleter,
            counted,
            environment.crash_points,
        ),
        forgetting=Forgetting(
            environment.store,
            environment.clock,
            metadata,
            me,
            times.tables_interval_seconds,
            marks.forgotten,
        ),
    )


@dataclass(frozen=True, slots=True)
class _Times:
    interval_seconds: float
    tables_interval_seconds: float
    grace_seconds: float

    @classmethod
    def of(cls, settings: BrokerSettings) -> _Times:
        return cls(
            settings.integer("log.collect.interval.ms") / 1000,
            settings.integer("log.collect.tables.interval.ms") / 1000,
            settings.integer("log.delete.grace.ms") / 1000,
        )


def _merger(
    environment: BrokerEnvironment,
    writes: WritePath,
    reader: LogReader,
    times: _Times,
    settings: BrokerSettings,
) -> Merger:
    return Merger(
        environment.store,
        environment.clock,
        environment.entropy,
        environment.offload,
        writes.wal,
        writes.log_writer,
        reader,
        writes.partitions,
        writes.tenure_reports,
        writes.checkpointer,
        times.interval_seconds,
        times.grace_seconds,
        settings.integer("wal.objects.max"),
        environment.crash_points,
    )


def _collector(
    environment: BrokerEnvironment,
    metadata: MetadataLog,
    writes: WritePath,
    merger: Merger,
    marks: MarkFile,
    deleter: Deleter,
    counted: CollectorMetrics,
    times: _Times,
    settings: BrokerSettings,
) -> Collector:
    store, clock, wal = environment.store, environment.clock, writes.wal
    return Collector(
        store,
        clock,
        environment.offload,
        metadata,
        wal.incarnation,
        merger.merged.is_settled,
        lambda: writes.checkpointer.floor,
        WalInventory(
            store,
            wal.incarnation,
            lambda: OwnWal(wal.durable_end, wal.newest_slot, wal.metrics.bytes),
        ),
        times.interval_seconds,
        times.tables_interval_seconds,
        times.grace_seconds,
        settings.integer("staged.retention.ms"),
        StagedBatches(store, clock, environment.entropy, environment.offload, metadata.settings),
        SurveyFile(store, environment.offload),
        marks,
        deleter,
        counted,
    )


async def expire_producers(
    clock: Clock, settings: LiveSettings, producers: ProducerExpiry
) -> NoReturn:
    """Forget producers that have been idle for producer.id.expiration.ms, until cancelled."""
    while True:
        await clock.sleep(PRODUCER_EXPIRY_SECONDS)
        expiration_ms = settings.now().integer("producer.id.expiration.ms")
        producers.expire(clock.time_ms(), expiration_ms)
