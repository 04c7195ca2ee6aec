"""Assembles the path from producers into the bucket: partitions, log writer, WAL, checkpoints.

Its metrics are registered here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from prometheus_client import CollectorRegistry

from tidelog.broker.append.appender import Appender, Submission
from tidelog.broker.append.large_batches import LargeBatches
from tidelog.broker.environment import BrokerEnvironment
from tidelog.broker.partitions.log_writer import PRODUCER_IDS_MAX, LogWriter, ProducerRoom
from tidelog.broker.partitions.partitions import Partition, PartitionRegistry
from tidelog.broker.read.read_path import ReadPath
from tidelog.broker.settings import layers as layer_settings
from tidelog.broker.settings.settings import BrokerSettings
from tidelog.broker.telemetry.families import CountsCollector
from tidelog.broker.telemetry.limits_met import LimitsMet
from tidelog.coordinator.cluster.log.leases import WalProgress
from tidelog.coordinator.cluster.log.metadata_log import MetadataLog
from tidelog.coordinator.cluster.membership.service_watch import Uploads
from tidelog.coordinator.cluster.membership.tenure_reports import TenureReports
from tidelog.identifiers import Incarnation
from tidelog.wal.read.tail_cache import TailCache
from tidelog.wal.write.checkpoint import Checkpointer
from tidelog.wal.write.writer import DurableSlot, WalWriter


class DurableSlots:
    """Tells the broker's parts that a WAL slot is durable, in this order.

    1. The tail cache gets the slot's bytes, so that readers find the records that become visible.
    2. Each partition's log advances, its parked fetches wake up, and the roller hears of it.
    3. Later listeners (the checkpointer) hear of the slot.

    The WAL writer answers producers after that. If the process dies before any step, the successor
    recovers the slot from the bucket: nothing here is durable.
    """

    def __init__(
        self, tail: TailCache, partitions: PartitionRegistry, advanced: Callable[[Partition], None]
    ) -> None:
        """`advanced` gets each partition that has new durable records."""
        self._tail = tail
        self._partitions = partitions
        self._advanced = advanced
        self._listeners: list[Callable[[DurableSlot], None]] = []

    def listen(self, listener: Callable[[DurableSlot], None]) -> None:
        """Call `listener` with each slot, after the partitions have advanced."""
        self._listeners.append(listener)

    def tell(self, slot: DurableSlot) -> None:
        """Report a durable slot."""
        self._tail.put(slot.key, slot.data)
        for advance in slot.advances:
            hosted = self._partitions.held(advance.partition)
            if hosted is None or hosted.log.leader_epoch != advance.leader_epoch:
                continue
            hosted.log.advance(advance)
            hosted.readers.wake_all()
            self._advanced(hosted)
        for listener in self._listeners:
            listener(slot)


@dataclass(frozen=True, slots=True)
class WritePath:
    """The parts of the path into this incarnation's WAL."""

    partitions: PartitionRegistry
    wal: WalWriter
    checkpointer: Checkpointer
    tenure_reports: TenureReports
    log_writer: LogWriter
    appender: Appender
    large_batches: LargeBatches[int, Submission]

    def durable(self) -> asyncio.Future[None]:
        """Done when every append so far is durable. Fails with WalLost."""
        return self.wal.durable(self.wal.newest_slot)

    def progress(self) -> WalProgress:
        """The progress of this WAL, for the lease."""
        return WalProgress(self.wal.durable_end, self.checkpointer.floor)

    def uploads(self) -> Uploads:
        """The uploads of this WAL, by which the broker knows that it can serve."""
        wal = self.wal
        return Uploads(wal.in_flight, wal.metrics.puts - wal.in_flight, wal.put_seconds)


def open_write_path(
    environment: BrokerEnvironment,
    metadata: MetadataLog,
    incarnation: Incarnation,
    partitions: PartitionRegistry,
    reads: ReadPath,
    advanced: Callable[[Partition], None],
    settings: BrokerSettings,
    limits: LimitsMet,
    registry: CollectorRegistry,
) -> WritePath:
    """The path into a new, empty WAL. `advanced` gets each partition with new durable records."""
    durable = DurableSlots(reads.tail, partitions, advanced)
    wal_settings = layer_settings.wal_settings(settings, environment.store.url)
    wal = WalWriter(
        environment.store,
        environment.clock,
        environment.entropy,
        environment.offload,
        incarnation,
        wal_settings,
        durable.tell,
        lambda: metadata.state.stamp,
        environment.crash_points,
    )
    registry.register(CountsCollector(wal.metrics))
    reads.register_metrics(registry)
    checkpointer = Checkpointer(
        environment.store,
        environment.clock,
        environment.offload,
        wal,
        partitions.checkpointed,
        wal_settings.checkpoint_interval_bytes,
        wal_settings.checkpoint_interval_slots,
        lambda: metadata.state.stamp,
        environment.crash_points,
    )
    registry.register(CountsCollector(checkpointer.metrics))
    durable.listen(checkpointer.note)
    tenure_reports = TenureReports(
        metadata, environment.clock, incarnation, lambda: checkpointer.floor
    )
    room = ProducerRoom(partitions.producers, settings.integer(PRODUCER_IDS_MAX), limits)
    log_writer = LogWriter(wal, partitions, tenure_reports.add, room)
    large_batches: LargeBatches[int, Submission] = LargeBatches(
        settings.integer("large.batches.connection.percent.max"),
        settings.integer("large.batches.percent.max"),
    )
    appender = Appender(
        wal,
        log_writer,
        environment.offload,
        environment.clock,
        large_batches,
        environment.large_batches,
    )
    return WritePath(
        partitions, wal, checkpointer, tenure_reports, log_writer, appender, large_batches
    )
