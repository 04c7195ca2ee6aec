"""The start of a broker incarnation, and the effects of a death in each step.

`opened_cluster` does steps 1 and 2.

3. Register (B1) in the entry that fences the previous incarnation of this id, once that is dead;
   fence other brokers whose processes have certainly ended. A death leaves a registered incarnation
   without a WAL; the other brokers and the next start fence it like any other.
4. Take over each fenced incarnation that is not retired (C4): seal its WAL, retire it. Any broker
   may repeat each step.
5. Recover the owned partitions from their bases (C5, C6; `partition_recovery`). This only reads.
6. Serve. The first write to a partition is its image (C2).

A step that fails ends the start; the caller's exit stack and task group undo the earlier steps.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Any

from tidelog.broker.append.adopter import Adopter
from tidelog.broker.append.write_path import WritePath, open_write_path
from tidelog.broker.clean.table_path import TablePath
from tidelog.broker.coordinate.coordinators import Coordinators
from tidelog.broker.coordinate.transaction_admission import Admissions
from tidelog.broker.health import Health
from tidelog.broker.maintenance import Maintenance, expire_producers, new_maintenance
from tidelog.broker.membership import Membership, ReportedProgress
from tidelog.broker.opened_cluster import OpenedCluster
from tidelog.broker.ownership.ownership import Ownership, new_ownership
from tidelog.broker.ownership.partition_recovery import PartitionRecovery
from tidelog.broker.partitions.partitions import PartitionRegistry
from tidelog.broker.peers.peers import Peers
from tidelog.broker.running import (
    Coordination,
    Reads,
    RunningBroker,
    RunningTasks,
    TopicTables,
)
from tidelog.broker.serving import new_server, new_services
from tidelog.broker.settings.listeners import BoundListener
from tidelog.broker.settings.live import LiveSettings
from tidelog.broker.telemetry.families import CountsCollector, UnservedCollector
from tidelog.broker.telemetry.fault_log import FaultLog
from tidelog.broker.telemetry.metrics import (
    LARGE_BATCHES_WAITING,
    LEASE_RENEWED,
    MARKERS_UNWRITTEN,
    METADATA_READ,
    PARTITIONS_OPENING,
    TAKEOVERS_WAITING,
    BrokerMetrics,
)
from tidelog.clock import Clock
from tidelog.coordinator.cluster.log.view_renewal import ViewRenewal
from tidelog.coordinator.cluster.membership.assignment import spread
from tidelog.coordinator.cluster.membership.lease_keeper import LeaseKeeper, OwnFence
from tidelog.coordinator.cluster.membership.producer_ids import ProducerIds
from tidelog.coordinator.cluster.membership.registration import register
from tidelog.coordinator.cluster.membership.takeover import take_over_fenced
from tidelog.coordinator.cluster.records.records import ConfigsChanged, Endpoint, Record
from tidelog.coordinator.cluster.state.incarnations import PLAIN_LISTENER
from tidelog.identifiers import TopicPartition
from tidelog.wal.log.image import PartitionImage

logger = logging.getLogger(__name__)


async def startup(
    opened: OpenedCluster, tasks: asyncio.TaskGroup, closing: AsyncExitStack
) -> RunningBroker:
    """Steps 3 to 6. The broker accepts connections when this returns.

    `tasks` gets the broker's tasks; some of them run during the start already. `closing` closes the
    open parts after the tasks have ended.
    """
    environment, settings, metrics = opened.environment, opened.settings, opened.metrics
    membership = await _join(opened)
    keeping = _keep_membership(membership, metrics, tasks)
    await _take_over(opened, membership)
    partitions = PartitionRegistry(
        membership.incarnation.epoch,
        membership.state,
        settings.append_limits,
        membership.renewal.request,
    )
    table_path = _table_path(opened, membership, partitions)
    reads = _reads(opened, membership, table_path)
    recovery = _recovery(opened, membership, partitions, table_path)
    writes = _write_path(opened, membership, partitions, table_path)
    tables = TopicTables(
        table_path.tables,
        opened.segment_ages,
        table_path.roller,
        table_path.cleaner(writes.appender),
    )
    peers = _open_peers(opened, membership, closing)
    coordination = _coordinate(opened, membership, writes, recovery, peers)
    ownership = new_ownership(
        environment,
        settings.now,
        membership,
        writes,
        recovery,
        coordination.coordinators,
        peers,
        opened.listeners.between_brokers.client,
    )
    closing.push_async_callback(ownership.giving.close)
    health = _health(opened, membership, writes, coordination, table_path, reads)
    maintenance = new_maintenance(
        environment,
        opened.metadata,
        writes,
        opened.reads.log,
        settings.now(),
        metrics.registry,
    )
    recovery.subscribe(maintenance.inherited.add)
    await recovery.recover_given()
    services = new_services(
        environment,
        settings,
        metrics,
        opened.limits,
        opened.fairness,
        membership,
        writes,
        reads,
        tables,
        coordination,
        ownership,
    )
    server = new_server(services, writes.appender, opened.fairness, opened.listeners)
    closing.push_async_callback(server.abort)
    running = RunningBroker(
        environment,
        settings,
        metrics,
        membership,
        ownership,
        writes,
        reads,
        tables,
        coordination,
        maintenance,
        health,
        services,
        server,
        opened.listeners,
        _begin(
            tasks,
            (*keeping, *_watch_keys(opened, tasks)),
            environment.clock,
            settings,
            ownership,
            table_path,
            writes,
            tables,
            coordination,
            maintenance,
        ),
    )
    await server.start()
    return running


async def _join(opened: OpenedCluster) -> Membership:
    """Step 3: register the incarnation."""
    environment, metadata, options = opened.environment, opened.metadata, opened.options
    listeners = tuple([each.bound for each in opened.listeners.addresses])
    between = next(each for each in listeners if each.name == opened.listeners.inter_broker)
    registered = await register(
        metadata,
        environment.store,
        environment.clock,
        options.broker_id,
        between.advertised,
        options.process,
        options.is_running,
        opened.settings.now().optional_text("broker.rack"),
        _endpoints(listeners),
    )
    opened.settings.serve_as(registered.incarnation.broker_id)
    progress = ReportedProgress()
    fence = OwnFence(metadata, registered.incarnation)
    lease = LeaseKeeper(
        environment.store,
        environment.clock,
        environment.entropy,
        metadata,
        registered.incarnation,
        options.process,
        registered.started_at,
        progress.now,
    )
    return Membership(
        metadata,
        ViewRenewal(metadata, environment.clock),
        registered.incarnation,
        lease,
        fence,
        progress,
        listeners,
        environment.clock,
    )


def _endpoints(listeners: Sequence[BoundListener]) -> tuple[Endpoint, ...]:
    """What the metadata log tells of the listeners: nothing of a lone PLAINTEXT."""
    if [each.name for each in listeners] == [PLAIN_LISTENER]:
        return ()
    return tuple([Endpoint(each.name, each.protocol.value, *each.advertised) for each in listeners])


def _keep_membership(
    membership: Membership, metrics: BrokerMetrics, tasks: asyncio.TaskGroup
) -> tuple[asyncio.Task[Any], ...]:
    """The tasks that keep the incarnation registered, from its registration on."""
    metadata = membership.metadata
    _tell_of_membership(membership, metrics)
    return (
        tasks.create_task(membership.lease.run()),
        tasks.create_task(membership.fence.run()),
        tasks.create_task(metadata.follow(metadata.settings.heartbeat_interval_ms)),
        tasks.create_task(membership.renewal.run()),
    )


def _tell_of_membership(membership: Membership, metrics: BrokerMetrics) -> None:
    metadata, lease = membership.metadata, membership.lease
    metrics.gauge(
        LEASE_RENEWED,
        "When the broker last renewed its lease.",
        lambda: None if lease.renewed_ms is None else lease.renewed_ms / 1000,
    )
    metrics.gauge(
        METADATA_READ,
        "When the broker last read the metadata log to its end, where it would find its fence.",
        lambda: None if metadata.read_ms is None else metadata.read_ms / 1000,
    )
    metrics.gauge(
        TAKEOVERS_WAITING,
        "Fenced brokers whose partitions no other one has taken over yet.",
        lambda: len(metadata.state.fenced_not_retired()),
    )


def _watch_keys(opened: OpenedCluster, tasks: asyncio.TaskGroup) -> list[asyncio.Task[Any]]:
    """The tasks that take new certificates and new keys of tokens' issuers."""
    interval_ms = opened.settings.now().integer("ssl.files.check.interval.ms")
    watch = opened.listeners.watch_certificates(opened.environment.clock, interval_ms)
    keys = [tasks.create_task(each.run()) for each in opened.listeners.keys]
    return [tasks.create_task(watch), *keys]


async def _take_over(opened: OpenedCluster, membership: Membership) -> None:
    """Step 4."""
    environment = opened.environment
    await take_over_fenced(
        opened.metadata,
        environment.store,
        environment.clock,
        environment.entropy,
        membership.incarnation,
        opened.settings.now().integer("wal.uploads.in.flight.max"),
        spread,
    )


def _table_path(
    opened: OpenedCluster, membership: Membership, partitions: PartitionRegistry
) -> TablePath:
    return TablePath(
        opened.environment,
        membership.state,
        partitions,
        opened.reads.tail,
        opened.settings,
        opened.segment_ages,
        opened.metrics.registry,
    )


def _write_path(
    opened: OpenedCluster,
    membership: Membership,
    partitions: PartitionRegistry,
    table_path: TablePath,
) -> WritePath:
    """Step 6. The lease reports the progress of the WAL from here on."""
    writes = open_write_path(
        opened.environment,
        opened.metadata,
        membership.incarnation,
        partitions,
        opened.reads,
        table_path.roller.note,
        opened.settings.now(),
        opened.limits,
        opened.metrics.registry,
    )
    membership.progress.follow(writes.progress, writes.uploads)
    return writes


def _health(
    opened: OpenedCluster,
    membership: Membership,
    writes: WritePath,
    coordination: Coordination,
    table_path: TablePath,
    reads: Reads,
) -> Health:
    """The broker's health, with its metrics."""
    health = Health(
        membership, writes.partitions, coordination.coordinators, table_path.roller, reads.faults
    )
    opened.metrics.registry.register(UnservedCollector(health.unserved))
    opened.metrics.gauge(
        LARGE_BATCHES_WAITING,
        "Produce requests that wait for time to decompress large batches.",
        lambda: len(writes.large_batches),
    )
    return health


def _reads(opened: OpenedCluster, membership: Membership, table_path: TablePath) -> Reads:
    path, fairness = opened.reads, opened.fairness
    faults = FaultLog(opened.environment.clock)
    fetcher = path.fetcher(
        table_path.tables,
        membership.may_serve_reads,
        faults,
        fairness.answers,
        fairness.turns,
    )
    return Reads(path, fetcher, path.offset_lookup(table_path.tables), faults)


def _recovery(
    opened: OpenedCluster,
    membership: Membership,
    partitions: PartitionRegistry,
    table_path: TablePath,
) -> PartitionRecovery:
    """Step 5. Applies all later records of the metadata log to the broker's parts."""
    metadata, metrics = opened.metadata, opened.metrics
    recovery = PartitionRecovery(
        opened.environment, metadata, membership.incarnation, partitions, table_path.recovered
    )

    def follow(_: int, records: Sequence[Record]) -> None:
        if any(isinstance(record, ConfigsChanged) for record in records):
            opened.settings.renew()
        partitions.follow(records)
        table_path.tables.follow(records)
        table_path.roller.partitions_changed()
        recovery.follow(records)
        metrics.partitions = len(partitions)

    def listed(_: Mapping[TopicPartition, PartitionImage]) -> None:
        metrics.partitions = len(partitions)

    metadata.subscribe(follow)
    recovery.subscribe(listed)
    metrics.gauge(
        PARTITIONS_OPENING,
        "Partitions that this broker was given and does not serve yet.",
        lambda: recovery.waiting,
    )
    # Settings may have changed while the start waited for a predecessor's end.
    opened.settings.renew()
    return recovery


def _open_peers(opened: OpenedCluster, membership: Membership, closing: AsyncExitStack) -> Peers:
    """The requests to other brokers, which follow the metadata log."""
    environment = opened.environment
    peers = Peers(
        environment.network,
        environment.clock,
        environment.entropy,
        membership.state,
        membership.incarnation,
        opened.settings.now(),
        opened.listeners.between_brokers.client,
    )
    closing.push_async_callback(peers.close)
    opened.metrics.registry.register(CountsCollector(peers.metrics))
    opened.metadata.subscribe(lambda sequence, _: peers.follow(sequence))
    return peers


def _coordinate(
    opened: OpenedCluster,
    membership: Membership,
    writes: WritePath,
    recovery: PartitionRecovery,
    peers: Peers,
) -> Coordination:
    environment, settings = opened.environment, opened.settings.now()
    coordinators = Coordinators(
        environment,
        membership.state,
        writes.partitions,
        writes.wal,
        writes.log_writer,
        opened.reads.log,
        settings,
        membership.may_serve_reads,
        opened.limits,
        peers,
        opened.metadata.refresh,
    )
    admissions = Admissions(coordinators, peers, membership.renewal.renewed, environment.clock)
    adopter = Adopter(
        environment.store,
        environment.clock,
        environment.offload,
        writes.wal,
        writes.log_writer,
        writes.partitions,
        admissions,
        settings.integer("staged.retention.ms"),
    )
    opened.metrics.registry.register(CountsCollector(coordinators.snapshot_metrics))
    opened.metrics.gauge(
        MARKERS_UNWRITTEN,
        "Decided transactions whose markers some partition lacks; the broker tries again.",
        lambda: coordinators.markers_unwritten,
    )
    # After the partitions' subscription: a coordinator needs its partitions to be there.
    opened.metadata.subscribe(lambda _, records: coordinators.follow(records))
    recovery.subscribe(lambda _: coordinators.keep_in_step())
    producer_ids = ProducerIds(opened.metadata, membership.incarnation)
    return Coordination(coordinators, admissions, adopter, producer_ids)


def _begin(
    tasks: asyncio.TaskGroup,
    keeping: tuple[asyncio.Task[Any], ...],
    clock: Clock,
    settings: LiveSettings,
    ownership: Ownership,
    table_path: TablePath,
    writes: WritePath,
    tables: TopicTables,
    coordination: Coordination,
    maintenance: Maintenance,
) -> RunningTasks:
    """Step 6 without the connections. `keeping`: the tasks that run already."""
    begin = tasks.create_task
    wal = begin(writes.wal.run())
    appending = (
        begin(writes.appender.run()),
        begin(writes.checkpointer.run()),
        begin(ownership.balancer.run()),
        begin(maintenance.open_inherited()),
        begin(maintenance.merge()),
        begin(maintenance.collect()),
        begin(ownership.watcher.run()),
    )
    background = (
        begin(ownership.recovery.run()),
        begin(writes.tenure_reports.run()),
        begin(coordination.coordinators.run()),
        begin(tables.tables.run()),
        begin(table_path.roll()),
        begin(tables.cleaner.run()),
        begin(expire_producers(clock, settings, writes.partitions.producers)),
    )
    return RunningTasks(appending, wal, (*keeping, *background))
