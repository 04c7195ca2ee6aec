"""Assembles the request handlers' services, and the Kafka server with its dispatcher."""

from __future__ import annotations

from functools import partial

from tidelog.broker.append.appender import Appender
from tidelog.broker.append.write_path import WritePath
from tidelog.broker.authentication.sessions import Sessions
from tidelog.broker.authorization.audit import AuditLog
from tidelog.broker.authorization.authorizer import open_authorizer
from tidelog.broker.dispatch.dispatcher import Dispatcher
from tidelog.broker.dispatch.long_requests import LongRequests
from tidelog.broker.dispatch.permissions.guard import Guard
from tidelog.broker.dispatch.routes import HANDLERS
from tidelog.broker.environment import BrokerEnvironment
from tidelog.broker.handlers.services import (
    ClusterServices,
    DataServices,
    GroupServices,
    Services,
    TransactionServices,
)
from tidelog.broker.membership import Membership
from tidelog.broker.network.opened_listeners import OpenedListeners
from tidelog.broker.network.server import KafkaServer
from tidelog.broker.ownership.ownership import Ownership
from tidelog.broker.quotas.connection_rates import AcceptRates
from tidelog.broker.read.fetch_session import FetchSessions
from tidelog.broker.running import Coordination, Fairness, Reads, TopicTables
from tidelog.broker.settings.live import LiveSettings
from tidelog.broker.telemetry.limits_met import LimitsMet
from tidelog.broker.telemetry.metrics import BrokerMetrics
from tidelog.broker.topics.topic_creation import AutoCreations
from tidelog.coordinator.cluster.log.leases import read_lease

FETCH_SESSION_ID_MAX = 2**31 - 1


def new_services(
    environment: BrokerEnvironment,
    live: LiveSettings,
    metrics: BrokerMetrics,
    limits: LimitsMet,
    fairness: Fairness,
    membership: Membership,
    writes: WritePath,
    reads: Reads,
    tables: TopicTables,
    coordination: Coordination,
    ownership: Ownership,
) -> Services:
    """The services of each group of handlers."""
    turns, entropy = fairness.turns, environment.entropy
    metadata, incarnation = membership.metadata, membership.incarnation
    cluster = ClusterServices(
        live,
        turns,
        metadata,
        membership.renewal,
        incarnation,
        entropy,
        membership.listeners,
        environment.store,
        writes.partitions,
        tables.tables,
        ownership.moves,
        ownership.rebalances,
        limits,
        AutoCreations(),
        environment.clock,
        open_authorizer(live.now(), lambda: metadata.state.acls),
        fairness.quotas,
        partial(read_lease, environment.store),
        ownership.watcher.take_over,
    )
    data = DataServices(
        live,
        turns,
        writes.partitions,
        writes.appender,
        coordination.adopter,
        coordination.admissions,
        writes.wal,
        reads.fetcher,
        _fetch_sessions(environment, live),
        reads.offset_lookup,
        reads.faults,
        tables.roller,
        metrics,
        fairness.quotas,
        environment.clock,
        membership.may_serve_reads,
        membership.renewal,
        live.now().optional_text("broker.rack"),
    )
    coordinators = coordination.coordinators
    groups = GroupServices(
        live, turns, metadata, membership.renewal, incarnation, entropy, coordinators
    )
    transactions = TransactionServices(
        live,
        turns,
        metadata,
        membership.renewal,
        incarnation,
        entropy,
        coordinators,
        coordination.admissions,
        coordination.producer_ids,
        writes.partitions,
        writes.wal,
        membership.may_serve_reads,
    )
    return Services(
        live,
        metrics,
        environment.clock,
        writes.durable,
        cluster,
        data,
        groups,
        transactions,
        Sessions(),
    )


def _fetch_sessions(environment: BrokerEnvironment, live: LiveSettings) -> FetchSessions:
    return FetchSessions(
        live.now().integer("max.incremental.fetch.session.cache.slots"),
        lambda: environment.entropy.uuid().int % FETCH_SESSION_ID_MAX + 1,
    )


def new_server(
    services: Services, appender: Appender, fairness: Fairness, opened: OpenedListeners
) -> KafkaServer:
    """A server that does not accept connections yet."""
    elements_max = services.settings.integer("long.requests.elements.max")
    long_requests = LongRequests(fairness.turns, elements_max)
    guard = None
    if services.cluster.authorizer is not None:
        lines_max = services.settings.integer("audit.lines.per.second.max")
        guard = Guard(services.cluster.authorizer, AuditLog(services.clock, lines_max))
    dispatcher = Dispatcher(
        HANDLERS, services.metrics, fairness.turns, long_requests, guard, fairness.quotas
    )
    brokers_alone = opened.inter_broker if len(opened.addresses) > 1 else None
    return KafkaServer(
        services,
        dispatcher,
        fairness.answers,
        fairness.connections,
        fairness.connection_rates,
        AcceptRates(lambda: services.settings, brokers_alone),
        appender.lost,
        opened.addresses,
        opened.tls,
        opened.sasl,
    )
