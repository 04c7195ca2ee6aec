"""The handler of each API."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, TypeVar

from tidelog.broker.dispatch.dispatcher import Handler
from tidelog.broker.handlers.authentication import sasl_authenticate, sasl_handshake
from tidelog.broker.handlers.cluster.acls import create_acls, delete_acls, describe_acls
from tidelog.broker.handlers.cluster.cluster import (
    describe_cluster,
    describe_log_dirs,
    unregister_broker,
)
from tidelog.broker.handlers.cluster.elections import elect_leaders
from tidelog.broker.handlers.cluster.features import cluster_features
from tidelog.broker.handlers.cluster.metadata import describe_topic_partitions, metadata
from tidelog.broker.handlers.cluster.metadata_moved import metadata_moved
from tidelog.broker.handlers.cluster.quorum import describe_quorum
from tidelog.broker.handlers.cluster.replicas import (
    alter_partition_reassignments,
    alter_replica_log_dirs,
    list_partition_reassignments,
)
from tidelog.broker.handlers.cluster.spreading import drain_brokers, rebalance_brokers
from tidelog.broker.handlers.cluster.topics import create_partitions, create_topics, delete_topics
from tidelog.broker.handlers.configs.client_quotas import (
    alter_client_quotas,
    describe_client_quotas,
)
from tidelog.broker.handlers.configs.configs import (
    alter_configs,
    describe_configs,
    incremental_alter_configs,
    list_config_resources,
)
from tidelog.broker.handlers.configs.scram_credentials import (
    alter_user_scram_credentials,
    describe_user_scram_credentials,
)
from tidelog.broker.handlers.data.adopt import adopt
from tidelog.broker.handlers.data.fetch import fetch
from tidelog.broker.handlers.data.flush import flush_topics
from tidelog.broker.handlers.data.offsets import (
    delete_records,
    list_offsets,
    offset_for_leader_epoch,
)
from tidelog.broker.handlers.data.produce import produce
from tidelog.broker.handlers.groups.consumer_groups import (
    consumer_group_describe,
    consumer_group_heartbeat,
)
from tidelog.broker.handlers.groups.coordinator import find_coordinator
from tidelog.broker.handlers.groups.group_offsets import offset_commit, offset_delete, offset_fetch
from tidelog.broker.handlers.groups.groups import (
    delete_groups,
    describe_groups,
    heartbeat,
    join_group,
    leave_group,
    list_groups,
    sync_group,
)
from tidelog.broker.handlers.request_context import RequestContext
from tidelog.broker.handlers.services import Services
from tidelog.broker.handlers.transactions.markers import write_txn_markers
from tidelog.broker.handlers.transactions.transaction_queries import (
    describe_producers,
    describe_transactions,
    list_transactions,
)
from tidelog.broker.handlers.transactions.transactional_offsets import txn_offset_commit
from tidelog.broker.handlers.transactions.transactions import (
    add_offsets_to_txn,
    add_partitions_to_txn,
    end_txn,
    init_producer_id,
)
from tidelog.protocol.api import ApiKey, OwnApiKey
from tidelog.protocol.message import Response

ServicesT = TypeVar("ServicesT")


def _given(
    group: Callable[[Services], ServicesT],
    handlers: Mapping[int, Callable[[ServicesT, Any, RequestContext], Awaitable[Response | None]]],
) -> dict[int, Handler]:
    """Handlers that take the broker's services and use those of their group."""

    def given(
        handler: Callable[[ServicesT, Any, RequestContext], Awaitable[Response | None]],
    ) -> Handler:
        return lambda services, request, context: handler(group(services), request, context)

    return {key: given(handler) for key, handler in handlers.items()}


HANDLERS: Final[Mapping[int, Handler]] = {
    **_given(
        lambda services: services.cluster,
        {
            ApiKey.METADATA: metadata,
            ApiKey.CREATE_TOPICS: create_topics,
            ApiKey.DELETE_TOPICS: delete_topics,
            ApiKey.CREATE_PARTITIONS: create_partitions,
            ApiKey.DESCRIBE_ACLS: describe_acls,
            ApiKey.CREATE_ACLS: create_acls,
            ApiKey.DELETE_ACLS: delete_acls,
            ApiKey.DESCRIBE_CONFIGS: describe_configs,
            ApiKey.ALTER_CONFIGS: alter_configs,
            ApiKey.INCREMENTAL_ALTER_CONFIGS: incremental_alter_configs,
            ApiKey.LIST_CONFIG_RESOURCES: list_config_resources,
            ApiKey.DESCRIBE_CLUSTER: describe_cluster,
            ApiKey.DESCRIBE_TOPIC_PARTITIONS: describe_topic_partitions,
            ApiKey.DESCRIBE_LOG_DIRS: describe_log_dirs,
            ApiKey.DESCRIBE_QUORUM: describe_quorum,
            ApiKey.DESCRIBE_CLIENT_QUOTAS: describe_client_quotas,
            ApiKey.ALTER_CLIENT_QUOTAS: alter_client_quotas,
            ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: describe_user_scram_credentials,
            ApiKey.ALTER_USER_SCRAM_CREDENTIALS: alter_user_scram_credentials,
            ApiKey.ALTER_REPLICA_LOG_DIRS: alter_replica_log_dirs,
            ApiKey.ALTER_PARTITION_REASSIGNMENTS: alter_partition_reassignments,
            ApiKey.LIST_PARTITION_REASSIGNMENTS: list_partition_reassignments,
            ApiKey.ELECT_LEADERS: elect_leaders,
            ApiKey.UNREGISTER_BROKER: unregister_broker,
            OwnApiKey.METADATA_MOVED: metadata_moved,
            OwnApiKey.DRAIN_BROKERS: drain_brokers,
            OwnApiKey.REBALANCE_BROKERS: rebalance_brokers,
            OwnApiKey.CLUSTER_FEATURES: cluster_features,
        },
    ),
    **_given(
        lambda services: services.sessions,
        {
            ApiKey.SASL_HANDSHAKE: sasl_handshake,
            ApiKey.SASL_AUTHENTICATE: sasl_authenticate,
        },
    ),
    **_given(
        lambda services: services.data,
        {
            ApiKey.PRODUCE: produce,
            ApiKey.FETCH: fetch,
            ApiKey.LIST_OFFSETS: list_offsets,
            ApiKey.DELETE_RECORDS: delete_records,
            ApiKey.OFFSET_FOR_LEADER_EPOCH: offset_for_leader_epoch,
            OwnApiKey.FLUSH_TOPICS: flush_topics,
            OwnApiKey.ADOPT: adopt,
        },
    ),
    **_given(
        lambda services: services.groups,
        {
            ApiKey.FIND_COORDINATOR: find_coordinator,
            ApiKey.JOIN_GROUP: join_group,
            ApiKey.SYNC_GROUP: sync_group,
            ApiKey.HEARTBEAT: heartbeat,
            ApiKey.LEAVE_GROUP: leave_group,
            ApiKey.DESCRIBE_GROUPS: describe_groups,
            ApiKey.LIST_GROUPS: list_groups,
            ApiKey.DELETE_GROUPS: delete_groups,
            ApiKey.CONSUMER_GROUP_HEARTBEAT: consumer_group_heartbeat,
            ApiKey.CONSUMER_GROUP_DESCRIBE: consumer_group_describe,
            ApiKey.OFFSET_COMMIT: offset_commit,
            ApiKey.OFFSET_FETCH: offset_fetch,
            ApiKey.OFFSET_DELETE: offset_delete,
        },
    ),
    **_given(
        lambda services: services.transactions,
        {
            ApiKey.INIT_PRODUCER_ID: init_producer_id,
            ApiKey.ADD_PARTITIONS_TO_TXN: add_partitions_to_txn,
            ApiKey.ADD_OFFSETS_TO_TXN: add_offsets_to_txn,
            ApiKey.END_TXN: end_txn,
            ApiKey.WRITE_TXN_MARKERS: write_txn_markers,
            ApiKey.TXN_OFFSET_COMMIT: txn_offset_commit,
            ApiKey.DESCRIBE_PRODUCERS: describe_producers,
            ApiKey.DESCRIBE_TRANSACTIONS: describe_transactions,
            ApiKey.LIST_TRANSACTIONS: list_transactions,
        },
    ),
}
