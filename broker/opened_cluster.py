"""A cluster that a process has opened, and how its broker joins: the first steps of a start.

1. Probe the store and open the metadata log (an empty prefix becomes a cluster).
2. Bind the listeners, so that their addresses are known. Connections are refused until the broker
   is ready.
3. Register (B1) in the entry that fences the previous incarnation of this id, once that is dead.
   Fence other brokers whose processes have certainly ended. A death leaves a registered incarnation
   without a WAL; the other brokers and the next start fence it like any other.

A death in steps 1 and 2 leaves nothing of this incarnation. `startup` does the other steps.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

from tidelog.broker.environment import BrokerEnvironment
from tidelog.broker.fairness.client_memory import AnswerMemory
from tidelog.broker.fairness.connection_limits import ConnectionLimits, descriptors_left
from tidelog.broker.fairness.turns import SliceTurns
from tidelog.broker.membership import Membership, ReportedProgress
from tidelog.broker.network.opened_listeners import OpenedListeners, open_listeners
from tidelog.broker.options import BrokerOptions
from tidelog.broker.quotas.client_quotas import ClientQuotas
from tidelog.broker.quotas.connection_rates import ConnectionRates
from tidelog.broker.quotas.metrics import QuotaMetrics
from tidelog.broker.read.read_path import ReadPath
from tidelog.broker.running import Fairness
from tidelog.broker.settings import layers as layer_settings
from tidelog.broker.settings.listeners import BoundListener, configured_listeners
from tidelog.broker.settings.live import LiveSettings
from tidelog.broker.telemetry.families import CountsCollector
from tidelog.broker.telemetry.limits_met import LimitsMet
from tidelog.broker.telemetry.metrics import (
    LEASE_RENEWED,
    METADATA_READ,
    TAKEOVERS_WAITING,
    BrokerMetrics,
)
from tidelog.coordinator.cluster.log.metadata_log import MetadataLog
from tidelog.coordinator.cluster.log.view_renewal import ViewRenewal
from tidelog.coordinator.cluster.membership.lease_keeper import LeaseKeeper, OwnFence
from tidelog.coordinator.cluster.membership.registration import register
from tidelog.coordinator.cluster.records.records import ConfigsChanged, Endpoint, QuotasChanged
from tidelog.coordinator.cluster.state.incarnations import PLAIN_LISTENER
from tidelog.storage.stores.probe import probe


@dataclass(frozen=True, slots=True)
class OpenedCluster:
    """A cluster that a process has opened but not joined."""

    options: BrokerOptions
    environment: BrokerEnvironment
    metrics: BrokerMetrics
    metadata: MetadataLog
    settings: LiveSettings
    limits: LimitsMet
    reads: ReadPath
    fairness: Fairness
    listeners: OpenedListeners


async def open_cluster(
    options: BrokerOptions,
    environment: BrokerEnvironment,
    metrics: BrokerMetrics,
    closing: AsyncExitStack,
) -> OpenedCluster:
    """Steps 1 and 2. `closing` undoes them."""
    configured = options.settings
    # A process with too few descriptors is refused before it makes a bucket a cluster.
    descriptors = descriptors_left(configured, options.descriptors_max)
    configs = configured_listeners(configured, options.listen, options.advertise, options.own_host)
    limits = LimitsMet(metrics.registry, environment.clock)
    await probe(environment.store, environment.entropy)
    metadata = await MetadataLog.open(
        environment.store,
        environment.clock,
        environment.entropy,
        create=True,
        settings=layer_settings.cluster_settings(configured),
        offload=environment.offload,
    )
    closing.push_async_callback(metadata.close)
    settings = LiveSettings(configured, lambda: metadata.state)
    settings.renew()
    metadata.subscribe(lambda *_: settings.renew(), ConfigsChanged)
    listeners = await open_listeners(configs, configured, environment, metadata, closing)
    reads = ReadPath(environment, configured)
    closing.push_async_callback(reads.close)
    fairness = Fairness(
        SliceTurns(),
        AnswerMemory(configured.integer("queued.max.answer.bytes")),
        ConnectionLimits(settings.now, descriptors),
        *_open_quotas(metrics, metadata, settings),
    )
    return OpenedCluster(
        options,
        environment,
        metrics,
        metadata,
        settings,
        limits,
        reads,
        fairness,
        listeners,
    )


def _open_quotas(
    metrics: BrokerMetrics, metadata: MetadataLog, settings: LiveSettings
) -> tuple[ClientQuotas, ConnectionRates]:
    """The quotas of clients and of addresses, which follow the metadata log."""
    counts = QuotaMetrics()
    metrics.registry.register(CountsCollector(counts))
    quotas, rates = ClientQuotas(settings.now, counts), ConnectionRates(settings.now)

    def renew() -> None:
        quotas.renew(metadata.state.quotas)
        rates.renew(metadata.state.quotas)

    metadata.subscribe(lambda *_: renew(), QuotasChanged)
    renew()
    return quotas, rates


async def join(opened: OpenedCluster) -> Membership:
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
    """The listeners as the metadata log records them: none for a lone PLAINTEXT."""
    if [each.name for each in listeners] == [PLAIN_LISTENER]:
        return ()
    return tuple([Endpoint(each.name, each.protocol.value, *each.advertised) for each in listeners])


def keep_membership(
    membership: Membership, metrics: BrokerMetrics, tasks: asyncio.TaskGroup
) -> tuple[asyncio.Task[Any], ...]:
    """The tasks that keep the incarnation registered, from its registration on."""
    metadata = membership.metadata
    _register_membership_gauges(membership, metrics)
    return (
        tasks.create_task(membership.lease.run()),
        tasks.create_task(membership.fence.run()),
        tasks.create_task(metadata.follow(metadata.settings.heartbeat_interval_ms)),
        tasks.create_task(membership.renewal.run()),
    )


def _register_membership_gauges(membership: Membership, metrics: BrokerMetrics) -> None:
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
