"""The start of a broker incarnation, and the effects of a death in each step.

`opened_cluster` does steps 1 to 3.

4. Take over each fenced incarnation that is not retired (C4): seal its WAL, retire it. Any broker
   may repeat each step.
5. Recover the owned partitions from their bases (C5, C6; `partition_recovery`). This only reads.
6. Serve. The first write to a partition is its image (C2).

A step that fails ends the start; the caller's exit stack and task group undo the earlier steps.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Any, NamedTuple

from tidelog.broker.append.adopter import Adopter
from tidelog.broker.append.write_path import WritePath, open_write_path
from tidelog.broker.clean.table_path import TablePath
from tidelog.broker.coordinate.coordinators import Coordinators
from tidelog.broker.coordinate.lag_metrics import SERIES_MAX, LagCollector
from tidelog.broker.coordinate.transaction_admission import Admissions
from tidelog.broker.health import Health
from tidelog.broker.maintenance import Maintenance, expire_producers, new_maintenance
from tidelog.broker.membership import Membership
from tidelog.broker.opened_cluster import OpenedCluster, join, keep_membership
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
from tidelog.broker.telemetry.families import CountsCollector, UnservedCollector
from tidelog.broker.telemetry.fault_log import FaultLog
from tidelog.broker.telemetry.metrics import (
    LARGE_BATCHES_WAITING,
    MARKERS_UNWRITTEN,
    PARTITIONS_OPENING,
)
from tidelog.coordinator.cluster.log.producer_ids import ProducerIds
from tidelog.coordinator.cluster.membership.assignment import spread
from tidelog.coordinator.cluster.membership.departures import Departures
from tidelog.coordinator.cluster.membership.takeover import take_over_fenced
from tidelog.coordinator.cluster.records.records import Record
from tidelog.identifiers import TopicPartition
from tidelog.wal.log.image import PartitionImage


class _DataPath(NamedTuple):
    """The parts that read and write partitions."""

    reads: Reads
    recovery: PartitionRecovery
    writes: WritePath
    tables: TopicTables


async def startup(
    opened: OpenedCluster, tasks: asyncio.TaskGroup, closing: AsyncExitStack
) -> RunningBroker:
    """Steps 3 to 6. The broker accepts connections when this returns.

    `tasks` gets the broker's tasks; some of them run already during the start. `closing` closes the
    open parts after the tasks have ended.
    """
    membership = await join(opened)
    keeping = keep_membership(membership, opened.metrics, tasks)
    await _take_over(opened, membership)
    departures = Departures(opened.metadata, opened.environment.clock)
    path = _data_path(opened, membership, departures)
    peers = _open_peers(opened, membership, closing)
    coordination = _coordinate(opened, membership, path.writes, path.recovery, peers)
    ownership = _own(opened, membership, departures, path, coordination, peers, closing)
    health = _health(opened, membership, path, coordination)
    maintenance = await _recover(opened, path)
    services = new_services(
        opened, membership, path.writes, path.reads, path.tables, coordination, ownership
    )
    server = new_server(services, path.writes.appender, opened.fairness, opened.listeners)
    closing.push_async_callback(server.abort)
    keeping = (*keeping, *_watch_keys(opened, tasks))
    running = RunningBroker(
        opened.environment,
        opened.settings,
        opened.metrics,
        membership,
        ownership,
        path.writes,
        path.reads,
        path.tables,
        coordination,
        maintenance,
        health,
        services,
        server,
        opened.listeners,
        _begin(opened, tasks, keeping, path, ownership, coordination, maintenance),
    )
    await server.start()
    return running


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


def _watch_keys(opened: OpenedCluster, tasks: asyncio.TaskGroup) -> list[asyncio.Task[Any]]:
    """Start the tasks that load new certificates and new keys of tokens' issuers."""
    interval_ms = opened.settings.now().integer("ssl.files.check.interval.ms")
    watch = opened.listeners.watch_certificates(opened.environment.clock, interval_ms)
    keys = [tasks.create_task(each.run()) for each in opened.listeners.keys]
    return [tasks.create_task(watch), *keys]


def _data_path(opened: OpenedCluster, membership: Membership, departures: Departures) -> _DataPath:
    partitions = PartitionRegistry(
        membership.incarnation.epoch,
        membership.state,
        opened.settings.append_limits,
        membership.renewal.request,
    )
    table_path = _table_path(opened, membership, partitions)
    reads = _reads(opened, membership, table_path)
    recovery = _recovery(opened, membership, departures, partitions, table_path)
    writes = _write_path(opened, membership, partitions, table_path)
    tables = TopicTables(
        table_path.tables,
        table_path.ages,
        table_path.roller,
        table_path.cleaner(writes.appender),
    )
    return _DataPath(reads, recovery, writes, tables)


def _table_path(
    opened: OpenedCluster, membership: Membership, partitions: PartitionRegistry
) -> TablePath:
    return TablePath(
        opened.environment,
        membership.state,
        partitions,
        opened.reads.tail,
        opened.settings,
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
    opened: OpenedCluster, membership: Membership, path: _DataPath, coordination: Coordination
) -> Health:
    """The broker's health, with its metrics."""
    writes = path.writes
    health = Health(
        membership,
        writes.partitions,
        coordination.coordinators,
        path.tables.roller,
        path.reads.faults,
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
    departures: Departures,
    partitions: PartitionRegistry,
    table_path: TablePath,
) -> PartitionRecovery:
    """Applies all later records of the metadata log to the broker's parts."""
    metadata, metrics = opened.metadata, opened.metrics
    recovery = PartitionRecovery(
        opened.environment,
        metadata,
        membership.incarnation,
        partitions,
        table_path.recovered,
        departures,
    )

    def follow(_: int, records: Sequence[Record]) -> None:
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
    opened.metrics.registry.register(
        LagCollector(
            coordinators.committed_offsets,
            writes.partitions.high_watermarks,
            settings.integer(SERIES_MAX),
        )
    )
    opened.metrics.gauge(
        MARKERS_UNWRITTEN,
        "Decided transactions whose markers some partition lacks; the broker tries again.",
        lambda: coordinators.markers_unwritten,
    )
    # After the partitions have subscribed: a coordinator needs its partitions to exist.
    opened.metadata.subscribe(lambda _, records: coordinators.follow(records))
    recovery.subscribe(lambda _: coordinators.follow_leadership())
    producer_ids = ProducerIds(opened.metadata, membership.incarnation)
    return Coordination(coordinators, admissions, adopter, producer_ids)


def _own(
    opened: OpenedCluster,
    membership: Membership,
    departures: Departures,
    path: _DataPath,
    coordination: Coordination,
    peers: Peers,
    closing: AsyncExitStack,
) -> Ownership:
    """The parts that give partitions to other brokers and watch those brokers."""
    ownership = new_ownership(
        opened.environment,
        opened.settings.now,
        membership,
        departures,
        path.writes,
        path.recovery,
        coordination.coordinators,
        peers,
        opened.listeners.between_brokers.client,
    )
    closing.push_async_callback(ownership.giving.close)
    return ownership


async def _recover(opened: OpenedCluster, path: _DataPath) -> Maintenance:
    """Step 5. Maintenance opens the partitions that it recovers."""
    maintenance = new_maintenance(
        opened.environment,
        opened.metadata,
        path.writes,
        opened.reads.log,
        opened.settings.now(),
        opened.metrics.registry,
    )
    path.recovery.subscribe(maintenance.inherited.add)
    await path.recovery.recover_given()
    return maintenance


def _begin(
    opened: OpenedCluster,
    tasks: asyncio.TaskGroup,
    keeping: tuple[asyncio.Task[Any], ...],
    path: _DataPath,
    ownership: Ownership,
    coordination: Coordination,
    maintenance: Maintenance,
) -> RunningTasks:
    """Step 6 without the connections. `keeping`: the tasks that run already."""
    begin = tasks.create_task
    writes, tables = path.writes, path.tables
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
        begin(tables.roller.run()),
        begin(tables.cleaner.run()),
        begin(
            expire_producers(opened.environment.clock, opened.settings, writes.partitions.producers)
        ),
    )
    return RunningTasks(appending, wal, (*keeping, *background))
