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
from tidelog.broker.opened_cluster import OpenedCluster
from tidelog.broker.ownership.ownership import Ownership
from tidelog.broker.quotas.connection_rates import AcceptRates
from tidelog.broker.read.fetch_session import FetchSessions
from tidelog.broker.running import Coordination, Fairness, Reads, TopicTables
from tidelog.broker.settings.live import LiveSettings
from tidelog.broker.topics.topic_creation import AutoCreations
from tidelog.coordinator.cluster.log.leases import read_lease

FETCH_SESSION_ID_MAX = 2**31 - 1


def new_services(
    opened: OpenedCluster,
    membership: Membership,
    writes: WritePath,
    reads: Reads,
    tables: TopicTables,
    coordination: Coordination,
    ownership: Ownership,
) -> Services:
    """The services of each group of handlers."""
    return Services(
        opened.settings,
        opened.metrics,
        opened.environment.clock,
        writes.durable,
        _cluster_services(opened, membership, writes, tables, ownership),
        _data_services(opened, membership, writes, reads, tables, coordination),
        GroupServices(
            opened.settings,
            opened.fairness.turns,
            opened.metadata,
            membership.renewal,
            ownership.departures,
            membership.incarnation,
            opened.environment.entropy,
            coordination.coordinators,
        ),
        _transaction_services(opened, membership, writes, coordination, ownership),
        Sessions(),
    )


def _cluster_services(
    opened: OpenedCluster,
    membership: Membership,
    writes: WritePath,
    tables: TopicTables,
    ownership: Ownership,
) -> ClusterServices:
    environment, metadata = opened.environment, opened.metadata
    return ClusterServices(
        opened.settings,
        opened.fairness.turns,
        metadata,
        membership.renewal,
        ownership.departures,
        membership.incarnation,
        environment.entropy,
        membership.listeners,
        environment.store,
        writes.partitions,
        tables.tables,
        ownership.moves,
        ownership.rebalances,
        opened.limits,
        AutoCreations(),
        environment.clock,
        open_authorizer(opened.settings.now(), lambda: metadata.state.acls),
        opened.fairness.quotas,
        partial(read_lease, environment.store),
        ownership.watcher.take_over,
    )


def _data_services(
    opened: OpenedCluster,
    membership: Membership,
    writes: WritePath,
    reads: Reads,
    tables: TopicTables,
    coordination: Coordination,
) -> DataServices:
    return DataServices(
        opened.settings,
        opened.fairness.turns,
        writes.partitions,
        writes.appender,
        coordination.adopter,
        coordination.admissions,
        writes.wal,
        reads.fetcher,
        _fetch_sessions(opened.environment, opened.settings),
        reads.offset_lookup,
        reads.faults,
        tables.roller,
        opened.metrics,
        opened.fairness.quotas,
        opened.environment.clock,
        membership.may_serve_reads,
        membership.renewal,
        opened.settings.now().optional_text("broker.rack"),
    )


def _transaction_services(
    opened: OpenedCluster,
    membership: Membership,
    writes: WritePath,
    coordination: Coordination,
    ownership: Ownership,
) -> TransactionServices:
    return TransactionServices(
        opened.settings,
        opened.fairness.turns,
        opened.metadata,
        membership.renewal,
        ownership.departures,
        membership.incarnation,
        opened.environment.entropy,
        coordination.coordinators,
        coordination.admissions,
        coordination.producer_ids,
        writes.partitions,
        writes.wal,
        membership.may_serve_reads,
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
