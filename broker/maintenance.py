"""What a broker does now and then so that its bucket stays small: merges, checkpoints, collections.
Put together here, with what they count."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Iterator, Mapping
from typing import NoReturn

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector as MetricCollector

from tidelog.broker.collect.collector import Collector
from tidelog.broker.collect.deletion import CollectorMetrics, Deleter
from tidelog.broker.collect.forgetting import Forgetting
from tidelog.broker.collect.mark_file import MarkFile
from tidelog.broker.collect.merger import MergeMetrics, Merger
from tidelog.broker.collect.staged_batches import StagedBatches
from tidelog.broker.collect.table_collector import TableCollector
from tidelog.broker.collect.wal_inventory import OwnWal, WalInventory
from tidelog.broker.environment import Surroundings
from tidelog.broker.inherited import InheritedPartitions
from tidelog.broker.partitions.log_writer import LogWriter
from tidelog.broker.partitions.partitions import PartitionRegistry
from tidelog.broker.read.log_reader import LogReader
from tidelog.broker.settings.settings import BrokerSettings
from tidelog.coordinator.cluster.log.metadata_log import MetadataLog
from tidelog.coordinator.cluster.membership.openings import Openings
from tidelog.identifiers import TopicPartition
from tidelog.storage.object_store import StoreError
from tidelog.wal.log.image import PartitionImage
from tidelog.wal.write.checkpoint import Checkpointer
from tidelog.wal.write.writer import WalWriter

logger = logging.getLogger(__name__)


class Upkeep:
    """One incarnation's."""

    def __init__(
        self,
        world: Surroundings,
        metadata: MetadataLog,
        writer: WalWriter,
        log_writer: LogWriter,
        reader: LogReader,
        partitions: PartitionRegistry,
        recovered: Mapping[TopicPartition, PartitionImage],
        openings: Openings,
        checkpointer: Checkpointer,
        settings: BrokerSettings,
    ) -> None:
        store, clock, entropy, offload = world.store, world.clock, world.entropy, world.offload
        interval_seconds = settings.integer("log.collect.interval.ms") / 1000
        grace_seconds = settings.integer("log.delete.grace.ms") / 1000
        self.inherited = InheritedPartitions(
            clock,
            writer,
            log_writer,
            partitions,
            metadata.state,
            recovered,
            openings,
            checkpointer,
        )
        self.merger = Merger(
            store,
            clock,
            entropy,
            offload,
            writer,
            log_writer,
            reader,
            partitions,
            openings,
            checkpointer,
            interval_seconds,
            grace_seconds,
            settings.integer("wal.objects.max"),
            world.crash_points,
        )
        counted = CollectorMetrics()
        self.deleter = Deleter(
            store,
            clock,
            world.crash_points,
            counted,
            min(interval_seconds, grace_seconds / 8),
        )
        tables_interval_seconds = settings.integer("log.collect.tables.interval.ms") / 1000
        me = writer.incarnation
        self.marks = MarkFile(
            store, clock, offload, me.broker_id, grace_seconds, metadata.snapshots_seen
        )
        self.collector = Collector(
            store,
            clock,
            offload,
            metadata,
            me,
            self.merger.merged.is_settled,
            lambda: checkpointer.floor,
            WalInventory(
                store,
                me,
                lambda: OwnWal(writer.durable_end, writer.newest_slot, writer.metrics.bytes),
            ),
            interval_seconds,
            tables_interval_seconds,
            grace_seconds,
            settings.integer("staged.retention.ms"),
            StagedBatches(store, clock, entropy, offload, metadata.settings),
            self.marks,
            self.deleter,
            counted,
        )
        self.table_collector = TableCollector(
            store,
            clock,
            entropy,
            offload,
            metadata,
            me,
            tables_interval_seconds,
            grace_seconds,
            self.marks,
            self.deleter,
            counted,
            world.crash_points,
        )
        self.forgetting = Forgetting(
            store,
            clock,
            metadata,
            writer.incarnation,
            settings.integer("log.collect.tables.interval.ms") / 1000,
            self.marks.forgotten,
        )
        self.metrics = UpkeepCollector(self.merger.metrics, counted)

    async def open_inherited(self) -> None:
        """Open what was taken over; to be ended before the WAL is."""
        await self.inherited.run()

    async def merge(self) -> NoReturn:
        """Keep the WAL's objects few, until cancelled; to be ended before the WAL is."""
        await self.merger.run()

    async def collect(self) -> None:
        """Delete what nobody can need any more, until cancelled."""
        try:
            await self.marks.load()
        except StoreError as error:
            logger.warning(
                "what the process before has observed could not be read: superfluous objects are"
                " kept for the grace once more",
                extra={"key": error.key, "why": str(error)},
            )
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.deleter.run())
            tasks.create_task(self.collector.run())
            tasks.create_task(self.table_collector.run())
            tasks.create_task(self.forgetting.run())


class UpkeepCollector(MetricCollector):
    """What was merged and deleted, as Prometheus families."""

    def __init__(self, merges: MergeMetrics, collections: CollectorMetrics) -> None:
        self._merges = merges
        self._collections = collections

    def collect(self) -> Iterator[Metric]:
        """The families."""
        merges, found = self._merges, self._collections
        yield _counter("tidelog_wal_merges", "Merged objects that were written.", merges.merges)
        yield _counter(
            "tidelog_wal_merged_objects",
            "Objects that partitions refer to no more since they were merged.",
            merges.objects,
        )
        yield _counter("tidelog_wal_merged_bytes", "Bytes that merges wrote.", merges.bytes)
        yield _counter(
            "tidelog_wal_merge_failures",
            "Merges that failed, and damaged objects that they met.",
            merges.failures,
        )
        yield from self._by_folder(
            CounterMetricFamily(
                "tidelog_collected_objects",
                "Objects that were deleted, as nobody could need them any more.",
                labels=["folder"],
            ),
            found.objects,
        )
        yield from self._by_folder(
            CounterMetricFamily("tidelog_collected_bytes", "Bytes of them.", labels=["folder"]),
            found.bytes,
        )
        yield from self._by_folder(
            GaugeMetricFamily(
                "tidelog_collectable_objects",
                "Objects that are to be deleted when the grace has passed.",
                labels=["pass"],
            ),
            found.marked,
        )
        yield GaugeMetricFamily(
            "tidelog_collect_backlog_objects",
            "Objects that the grace has passed for and that are being deleted.",
            value=found.waiting,
        )
        yield _counter("tidelog_collections", "Passes of the collector.", found.passes)
        yield _counter("tidelog_collection_failures", "Passes that were given up.", found.failures)

    def _by_folder(
        self, family: CounterMetricFamily | GaugeMetricFamily, values: dict[str, int]
    ) -> Iterator[Metric]:
        for name, value in list(values.items()):
            family.add_metric([name], value)
        yield family

    def describe(self) -> Iterable[Metric]:
        """Nothing in advance."""
        return ()


def _counter(name: str, doc: str, value: float) -> Metric:
    return CounterMetricFamily(name, doc, value=value)
