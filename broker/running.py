"""A running broker, as a value: all parts exist, and none is ever replaced."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from tidelog.broker.append.adopter import Adopter
from tidelog.broker.append.write_path import WritePath
from tidelog.broker.clean.log_cleaner import LogCleaner
from tidelog.broker.coordinate.coordinators import Coordinators
from tidelog.broker.coordinate.transaction_admission import Admissions
from tidelog.broker.environment import BrokerEnvironment
from tidelog.broker.fairness.client_memory import AnswerMemory
from tidelog.broker.fairness.connection_limits import ConnectionLimits
from tidelog.broker.fairness.turns import SliceTurns
from tidelog.broker.handlers.services import Services
from tidelog.broker.health import Health
from tidelog.broker.maintenance import Maintenance
from tidelog.broker.membership import Membership
from tidelog.broker.network.opened_listeners import OpenedListeners
from tidelog.broker.network.server import KafkaServer
from tidelog.broker.ownership.ownership import Ownership
from tidelog.broker.quotas.client_quotas import ClientQuotas
from tidelog.broker.quotas.connection_rates import ConnectionRates
from tidelog.broker.read.fetcher import Fetcher
from tidelog.broker.read.offset_lookup import OffsetLookup
from tidelog.broker.read.read_path import ReadPath
from tidelog.broker.roll.roller import Roller
from tidelog.broker.settings.live import LiveSettings
from tidelog.broker.tables.segment_ages import SegmentAges
from tidelog.broker.tables.tables import Tables
from tidelog.broker.telemetry.fault_log import FaultLog
from tidelog.broker.telemetry.metrics import BrokerMetrics
from tidelog.coordinator.cluster.log.producer_ids import ProducerIds


@dataclass(frozen=True, slots=True)
class Fairness:
    """The limits and turns that connections share."""

    turns: SliceTurns
    answers: AnswerMemory
    connections: ConnectionLimits
    quotas: ClientQuotas
    connection_rates: ConnectionRates


@dataclass(frozen=True, slots=True)
class Reads:
    """The read path from the bucket to consumers."""

    path: ReadPath
    fetcher: Fetcher
    offset_lookup: OffsetLookup
    faults: FaultLog
    """Damage found by reads."""


@dataclass(frozen=True, slots=True)
class TopicTables:
    """The path from the WAL into the topics' tables."""

    tables: Tables
    segment_ages: SegmentAges
    roller: Roller
    cleaner: LogCleaner


@dataclass(frozen=True, slots=True)
class Coordination:
    """The coordination of groups and transactions."""

    coordinators: Coordinators
    admissions: Admissions
    adopter: Adopter
    producer_ids: ProducerIds


@dataclass(frozen=True, slots=True)
class RunningTasks:
    """The tasks of a running broker, in the order of their ends."""

    appending: tuple[asyncio.Task[Any], ...]
    """Tasks that append to the WAL or to the metadata log. They end before the last checkpoint."""
    wal: asyncio.Task[None]
    """Ends by itself when the WAL is closed."""
    background: tuple[asyncio.Task[Any], ...]
    """The other tasks, which end last."""


@dataclass(frozen=True, slots=True)
class RunningBroker:
    """A broker that serves."""

    environment: BrokerEnvironment
    settings: LiveSettings
    metrics: BrokerMetrics
    membership: Membership
    ownership: Ownership
    writes: WritePath
    reads: Reads
    topic_tables: TopicTables
    coordination: Coordination
    maintenance: Maintenance
    health: Health
    services: Services
    server: KafkaServer
    listeners: OpenedListeners
    tasks: RunningTasks
