"""The parts of the broker that the handlers of each group may use.

A handler keeps no state between requests. A handler of its group uses each field here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from tidelog.broker.settings.settings import BrokerSettings, TopicConfig
from tidelog.identifiers import TopicId, TopicPartition

if TYPE_CHECKING:
    from tidelog.broker.append.adopter import Adopter
    from tidelog.broker.append.appender import Appender
    from tidelog.broker.authentication.sessions import Sessions
    from tidelog.broker.authorization.authorizer import Authorizer
    from tidelog.broker.coordinate.coordinators import Coordinators
    from tidelog.broker.coordinate.transaction_admission import Admissions
    from tidelog.broker.fairness.turns import SliceTurns
    from tidelog.broker.ownership.balancer import Rebalances
    from tidelog.broker.ownership.partition_moves import PartitionMoves
    from tidelog.broker.partitions.partitions import PartitionRegistry
    from tidelog.broker.quotas.client_quotas import ClientQuotas
    from tidelog.broker.read.fetch_session import FetchSessions
    from tidelog.broker.read.fetcher import Fetcher
    from tidelog.broker.read.offset_lookup import OffsetLookup
    from tidelog.broker.roll.roller import Roller
    from tidelog.broker.settings.listeners import BoundListener
    from tidelog.broker.settings.live import LiveSettings
    from tidelog.broker.telemetry.fault_log import FaultLog
    from tidelog.broker.telemetry.limits_met import LimitsMet
    from tidelog.broker.telemetry.metrics import BrokerMetrics
    from tidelog.broker.topics.topic_creation import AutoCreations
    from tidelog.clock import Clock
    from tidelog.coordinator.cluster.log.leases import Lease
    from tidelog.coordinator.cluster.log.metadata_log import MetadataLog
    from tidelog.coordinator.cluster.log.producer_ids import ProducerIds
    from tidelog.coordinator.cluster.log.view_renewal import ViewRenewal
    from tidelog.coordinator.cluster.membership.departures import Departures
    from tidelog.entropy import Entropy
    from tidelog.identifiers import BrokerId, Incarnation
    from tidelog.storage.object_store import ObjectStore
    from tidelog.wal.write.writer import WalWriter


class PartitionSizes(Protocol):
    """The partitions that this broker leads, as far as the administrative handlers need them."""

    def wal_bytes(self, place: TopicPartition) -> int | None:
        """Bytes that the WAL has of a partition; None if this broker does not lead it."""
        ...


class TableSizes(Protocol):
    """The tables of topics, as far as the administrative handlers need them."""

    async def stored_bytes(self, topic_id: TopicId) -> Mapping[int, int]:
        """Bytes of a topic's segments by partition. May raise TidelogError."""
        ...


@dataclass(frozen=True, slots=True)
class LiveServices:
    """The settings, and turns for long work on the event loop."""

    live: LiveSettings
    turns: SliceTurns

    @property
    def settings(self) -> BrokerSettings:
        """The broker settings that hold now, altered ones included."""
        return self.live.now()

    def topic_config(self, topic_id: TopicId) -> TopicConfig:
        """The settings that hold now for an existing topic. KeyError if there is none."""
        return self.live.topic_config(topic_id)


@dataclass(frozen=True, slots=True)
class MetadataServices(LiveServices):
    """For handlers that read or change the cluster's metadata."""

    metadata: MetadataLog
    renewal: ViewRenewal
    departures: Departures
    incarnation: Incarnation
    """The author of this broker's metadata records."""
    entropy: Entropy


@dataclass(frozen=True, slots=True)
class ClusterServices(MetadataServices):
    """For the administrative handlers."""

    listeners: tuple[BoundListener, ...]
    """The broker's own listeners."""
    store: ObjectStore
    partitions: PartitionSizes
    tables: TableSizes
    moves: PartitionMoves
    rebalances: Rebalances
    limits: LimitsMet
    """Counts refusals because of a limit."""
    auto_creations: AutoCreations
    clock: Clock
    authorizer: Authorizer | None
    """None without authorization."""
    quotas: ClientQuotas
    lease_of: Callable[[BrokerId], Awaitable[Lease | None]]
    """Reads a broker's lease. May raise TidelogError."""
    take_over: Callable[[Incarnation], Awaitable[None]]
    """Gives a fenced incarnation's partitions to live brokers. May raise StoreError."""


@dataclass(frozen=True, slots=True)
class GroupServices(MetadataServices):
    """For the handlers of consumer groups."""

    coordinators: Coordinators


@dataclass(frozen=True, slots=True)
class TransactionServices(GroupServices):
    """For the handlers of transactions, which commit offsets of groups too."""

    admissions: Admissions
    """Asks whether partitions may take transactional batches."""
    producer_ids: ProducerIds
    partitions: PartitionRegistry
    wal: WalWriter
    """Tells when a slot is durable."""
    may_serve_reads: Callable[[], bool]
    """Whether the lease is fresh enough to answer state that other brokers may change (B3)."""


@dataclass(frozen=True, slots=True)
class DataServices(LiveServices):
    """For the handlers of records."""

    partitions: PartitionRegistry
    appender: Appender
    adopter: Adopter
    """Takes staged batches into transactions."""
    admissions: Admissions
    wal: WalWriter
    fetcher: Fetcher
    fetch_sessions: FetchSessions
    offset_lookup: OffsetLookup
    read_faults: FaultLog
    roller: Roller
    """Takes records from the WAL into the tables."""
    metrics: BrokerMetrics
    quotas: ClientQuotas
    clock: Clock
    may_serve_reads: Callable[[], bool]
    renewal: ViewRenewal
    rack: str | None
    """The broker's zone."""

    async def may_refuse_by_state(self) -> bool:
        """Whether the broker may tell refusals that reveal a partition's state, such as a sequence
        out of order.

        They are reads (B3): a superseded broker may not know its successor's batches, and a
        producer takes these errors as final. A fresh lease is not enough: a broker that others
        wrongly took for dead has one. So the broker reads the metadata log first.
        """
        return await self.renewal.renewed(even_if_alone=True) and self.may_serve_reads()


@dataclass(frozen=True, slots=True)
class Services:
    """The parts that the Kafka server uses; it hands each group of handlers its own."""

    live: LiveSettings
    metrics: BrokerMetrics
    clock: Clock
    durable: Callable[[], asyncio.Future[None]]
    """Done when every append so far is durable. Fails with TidelogError if that stays unknown."""
    cluster: ClusterServices
    data: DataServices
    groups: GroupServices
    transactions: TransactionServices
    sessions: Sessions

    @property
    def settings(self) -> BrokerSettings:
        """The broker settings that hold now, altered ones included."""
        return self.live.now()
