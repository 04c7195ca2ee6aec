"""What handlers may use of the broker that runs them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

from tidelog.broker.settings.settings import BrokerSettings, TopicConfig
from tidelog.broker.telemetry.metrics import BrokerMetrics
from tidelog.clock import Clock
from tidelog.entropy import Entropy
from tidelog.identifiers import Incarnation, TopicId, TopicPartition
from tidelog.network import Network

if TYPE_CHECKING:
    from tidelog.broker.append.adopter import Adopter
    from tidelog.broker.append.appender import Appender
    from tidelog.broker.coordinate.coordinators import Coordinators
    from tidelog.broker.coordinate.transaction_admission import Admissions
    from tidelog.broker.fairness.slice_turns import SliceTurns
    from tidelog.broker.partitions.partitions import PartitionRegistry
    from tidelog.broker.read.fetch_session import FetchSessions
    from tidelog.broker.read.fetcher import Fetcher
    from tidelog.broker.read.offset_lookup import OffsetLookup
    from tidelog.broker.roll.roller import Roller
    from tidelog.broker.tables.tables import Tables
    from tidelog.broker.telemetry.fault_log import FaultLog
    from tidelog.broker.telemetry.limits_met import LimitsMet
    from tidelog.broker.topics.auto_creations import AutoCreations
    from tidelog.coordinator.cluster.log.metadata_log import MetadataLog
    from tidelog.coordinator.cluster.membership.producer_ids import ProducerIds
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


class Services(Protocol):
    """A running broker. Handlers take one and keep nothing of their own between requests."""

    @property
    def settings(self) -> BrokerSettings:
        """The broker settings that hold now, altered ones included."""
        ...

    def topic_config(self, topic_id: TopicId) -> TopicConfig:
        """The settings that hold now for an existing topic. KeyError if there is none."""
        ...

    @property
    def metadata(self) -> MetadataLog:
        """The metadata log and, by `state`, the cluster as this broker knows it."""
        ...

    @property
    def incarnation(self) -> Incarnation:
        """This broker's registration: the author of what it appends."""
        ...

    @property
    def advertised(self) -> tuple[str, int]:
        """The host and the port that clients are told."""
        ...

    @property
    def listening(self) -> tuple[str, int]:
        """The host and the port that the broker listens on."""
        ...

    @property
    def store_url(self) -> str:
        """The bucket's address, without credentials."""
        ...

    @property
    def partitions(self) -> PartitionSizes:
        """The partitions that this broker leads."""
        ...

    @property
    def tables(self) -> TableSizes:
        """The tables of topics."""
        ...

    @property
    def turns(self) -> SliceTurns:
        """Those of long work on the event loop."""
        ...

    @property
    def limits(self) -> LimitsMet:
        """Hears of what is refused because of a limit."""
        ...

    @property
    def auto_creations(self) -> AutoCreations:
        """How many topics were created because somebody asked for them."""
        ...

    @property
    def clock(self) -> Clock: ...

    @property
    def entropy(self) -> Entropy: ...

    @property
    def network(self) -> Network: ...

    @property
    def metrics(self) -> BrokerMetrics: ...

    def durable(self) -> asyncio.Future[None]:
        """Done when all that was appended so far is durable. Fails with TidelogError when that can
        no longer be told."""
        ...


class DataServices(Services, Protocol):
    """A running broker, as the handlers of records see it."""

    @property
    def partitions(self) -> PartitionRegistry:
        """The partitions that this broker leads."""
        ...

    @property
    def tables(self) -> Tables:
        """The tables of topics."""
        ...

    @property
    def roller(self) -> Roller:
        """Takes records from the WAL into the tables."""
        ...

    @property
    def appender(self) -> Appender:
        """The way into the log."""
        ...

    @property
    def adopter(self) -> Adopter:
        """Takes staged batches into transactions."""
        ...

    @property
    def wal(self) -> WalWriter:
        """Tells when a slot is durable."""
        ...

    @property
    def fetcher(self) -> Fetcher: ...

    @property
    def read_faults(self) -> FaultLog: ...

    @property
    def fetch_sessions(self) -> FetchSessions: ...

    @property
    def offset_lookup(self) -> OffsetLookup: ...

    @property
    def producer_ids(self) -> ProducerIds: ...

    @property
    def coordinators(self) -> Coordinators:
        """The coordinators of this broker."""
        ...

    @property
    def admissions(self) -> Admissions:
        """Asks whether partitions may take transactional batches."""
        ...

    def may_serve_reads(self) -> bool:
        """Whether the lease is fresh enough to answer what others may have changed (B3)."""
        ...
