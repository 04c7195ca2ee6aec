"""A cluster that a process has opened, before its broker joins: the store, the metadata log, the
address.

1. Probe the store and open the metadata log (an empty prefix becomes a cluster).
2. Take the address, so that it is known. Connections are refused until the broker is ready.

A death in either step leaves nothing of this incarnation.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace

from tidelog.broker.environment import BrokerEnvironment
from tidelog.broker.fairness.client_memory import AnswerMemory
from tidelog.broker.fairness.connection_limits import ConnectionLimits, descriptors_left
from tidelog.broker.fairness.turns import SliceTurns
from tidelog.broker.network.opened_listeners import OpenedListeners, open_listeners
from tidelog.broker.options import BrokerOptions
from tidelog.broker.quotas.client_quotas import ClientQuotas
from tidelog.broker.quotas.connection_rates import ConnectionRates
from tidelog.broker.quotas.metrics import QuotaMetrics
from tidelog.broker.read.read_path import ReadPath
from tidelog.broker.running import (
    Fairness,
)
from tidelog.broker.settings import layers as layer_settings
from tidelog.broker.settings.listeners import configured_listeners
from tidelog.broker.settings.live import LiveSettings
from tidelog.broker.tables.segment_ages import SegmentAges, SegmentAgingStore
from tidelog.broker.telemetry.families import CountsCollector
from tidelog.broker.telemetry.limits_met import LimitsMet
from tidelog.broker.telemetry.metrics import BrokerMetrics
from tidelog.coordinator.cluster.log.metadata_log import MetadataLog
from tidelog.coordinator.cluster.records.records import QuotasChanged, Record
from tidelog.storage.stores.probe import probe


@dataclass(frozen=True, slots=True)
class OpenedCluster:
    """A cluster that a process has opened but not joined."""

    options: BrokerOptions
    environment: BrokerEnvironment
    metrics: BrokerMetrics
    metadata: MetadataLog
    settings: LiveSettings
    segment_ages: SegmentAges
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
    ages = SegmentAges(configured.integer("log.delete.grace.ms") / 1000)
    environment = replace(
        environment, store=SegmentAgingStore(environment.store, environment.clock, ages)
    )
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
        ages,
        limits,
        reads,
        fairness,
        listeners,
    )


def _open_quotas(
    metrics: BrokerMetrics, metadata: MetadataLog, settings: LiveSettings
) -> tuple[ClientQuotas, ConnectionRates]:
    """The quotas of clients and of addresses. They follow the metadata log."""
    counts = QuotaMetrics()
    metrics.registry.register(CountsCollector(counts))
    quotas, rates = ClientQuotas(settings.now, counts), ConnectionRates(settings.now)

    def renew() -> None:
        quotas.renew(metadata.state.quotas)
        rates.renew(metadata.state.quotas)

    def follow(_: int, records: Sequence[Record]) -> None:
        if any(isinstance(record, QuotasChanged) for record in records):
            renew()

    metadata.subscribe(follow)
    renew()
    return quotas, rates
