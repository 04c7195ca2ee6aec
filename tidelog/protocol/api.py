"""The API keys, their messages, and the versions that a broker advertises."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from tidelog.protocol.errors import UnknownApi
from tidelog.protocol.message import Request, Response
from tidelog.protocol.schemas import (
    consumer_groups,
    coordinators,
    fetch,
    group_offsets,
    groups,
    offsets,
    produce,
    transaction_listing,
    transactions,
)
from tidelog.protocol.schemas.cluster import (
    api_versions,
    configs,
    metadata,
    quorum,
    replicas,
    topics,
)
from tidelog.protocol.schemas.own import adopt, drains, features, flush, metadata_moved, rebalance
from tidelog.protocol.schemas.security import acls, quotas, sasl, scram

OWN_KEYS_FROM: Final = 20_000
"""The first key of Tidelog's own requests. ApiVersions does not list them."""


class ApiKey(enum.IntEnum):
    """Kafka's API keys with schemas in this package."""

    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    OFFSET_COMMIT = 8
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    JOIN_GROUP = 11
    HEARTBEAT = 12
    LEAVE_GROUP = 13
    SYNC_GROUP = 14
    DESCRIBE_GROUPS = 15
    LIST_GROUPS = 16
    SASL_HANDSHAKE = 17
    API_VERSIONS = 18
    CREATE_TOPICS = 19
    DELETE_TOPICS = 20
    DELETE_RECORDS = 21
    INIT_PRODUCER_ID = 22
    OFFSET_FOR_LEADER_EPOCH = 23
    ADD_PARTITIONS_TO_TXN = 24
    ADD_OFFSETS_TO_TXN = 25
    END_TXN = 26
    WRITE_TXN_MARKERS = 27
    TXN_OFFSET_COMMIT = 28
    DESCRIBE_ACLS = 29
    CREATE_ACLS = 30
    DELETE_ACLS = 31
    DESCRIBE_CONFIGS = 32
    ALTER_CONFIGS = 33
    ALTER_REPLICA_LOG_DIRS = 34
    DESCRIBE_LOG_DIRS = 35
    SASL_AUTHENTICATE = 36
    CREATE_PARTITIONS = 37
    DELETE_GROUPS = 42
    ELECT_LEADERS = 43
    INCREMENTAL_ALTER_CONFIGS = 44
    ALTER_PARTITION_REASSIGNMENTS = 45
    LIST_PARTITION_REASSIGNMENTS = 46
    OFFSET_DELETE = 47
    DESCRIBE_CLIENT_QUOTAS = 48
    ALTER_CLIENT_QUOTAS = 49
    DESCRIBE_USER_SCRAM_CREDENTIALS = 50
    ALTER_USER_SCRAM_CREDENTIALS = 51
    DESCRIBE_QUORUM = 55
    DESCRIBE_CLUSTER = 60
    DESCRIBE_PRODUCERS = 61
    UNREGISTER_BROKER = 64
    DESCRIBE_TRANSACTIONS = 65
    LIST_TRANSACTIONS = 66
    CONSUMER_GROUP_HEARTBEAT = 68
    CONSUMER_GROUP_DESCRIBE = 69
    LIST_CONFIG_RESOURCES = 74
    DESCRIBE_TOPIC_PARTITIONS = 75


class OwnApiKey(enum.IntEnum):
    """Tidelog's own requests; `docs/formats/requests.md` describes them."""

    FLUSH_TOPICS = 20_000
    ADOPT = 20_001
    METADATA_MOVED = 20_003
    DRAIN_BROKERS = 20_004
    REBALANCE_BROKERS = 20_005
    CLUSTER_FEATURES = 20_006


ADVERTISED: Final[Mapping[ApiKey, tuple[int, int]]] = MappingProxyType(
    {
        # The minimum must be 0: otherwise librdkafka turns compression off (KAFKA-18659).
        ApiKey.PRODUCE: (0, 13),
        ApiKey.FETCH: (4, 17),
        ApiKey.LIST_OFFSETS: (1, 10),
        ApiKey.METADATA: (0, 13),
        ApiKey.OFFSET_COMMIT: (2, 9),
        ApiKey.OFFSET_FETCH: (1, 9),
        ApiKey.FIND_COORDINATOR: (0, 6),
        ApiKey.JOIN_GROUP: (0, 9),
        ApiKey.HEARTBEAT: (0, 4),
        ApiKey.LEAVE_GROUP: (0, 5),
        ApiKey.SYNC_GROUP: (0, 5),
        ApiKey.DESCRIBE_GROUPS: (0, 6),
        ApiKey.LIST_GROUPS: (0, 5),
        ApiKey.SASL_HANDSHAKE: (0, 1),
        ApiKey.API_VERSIONS: (0, 4),
        ApiKey.CREATE_TOPICS: (2, 7),
        ApiKey.DELETE_TOPICS: (1, 6),
        ApiKey.DELETE_RECORDS: (0, 2),
        ApiKey.INIT_PRODUCER_ID: (0, 5),
        ApiKey.OFFSET_FOR_LEADER_EPOCH: (2, 4),
        ApiKey.ADD_PARTITIONS_TO_TXN: (0, 5),
        ApiKey.ADD_OFFSETS_TO_TXN: (0, 4),
        ApiKey.END_TXN: (0, 5),
        ApiKey.WRITE_TXN_MARKERS: (1, 2),
        ApiKey.TXN_OFFSET_COMMIT: (0, 5),
        ApiKey.DESCRIBE_ACLS: (1, 3),
        ApiKey.CREATE_ACLS: (1, 3),
        ApiKey.DELETE_ACLS: (1, 3),
        ApiKey.DESCRIBE_CONFIGS: (1, 4),
        ApiKey.ALTER_CONFIGS: (0, 2),
        ApiKey.ALTER_REPLICA_LOG_DIRS: (1, 2),
        ApiKey.DESCRIBE_LOG_DIRS: (1, 4),
        ApiKey.SASL_AUTHENTICATE: (0, 2),
        ApiKey.CREATE_PARTITIONS: (0, 3),
        ApiKey.DELETE_GROUPS: (0, 2),
        ApiKey.ELECT_LEADERS: (0, 2),
        ApiKey.INCREMENTAL_ALTER_CONFIGS: (0, 1),
        ApiKey.ALTER_PARTITION_REASSIGNMENTS: (0, 0),
        ApiKey.LIST_PARTITION_REASSIGNMENTS: (0, 0),
        ApiKey.OFFSET_DELETE: (0, 0),
        ApiKey.DESCRIBE_CLIENT_QUOTAS: (0, 1),
        ApiKey.ALTER_CLIENT_QUOTAS: (0, 1),
        ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: (0, 0),
        ApiKey.ALTER_USER_SCRAM_CREDENTIALS: (0, 0),
        ApiKey.DESCRIBE_QUORUM: (0, 2),
        ApiKey.DESCRIBE_CLUSTER: (0, 2),
        ApiKey.DESCRIBE_PRODUCERS: (0, 0),
        ApiKey.UNREGISTER_BROKER: (0, 0),
        ApiKey.DESCRIBE_TRANSACTIONS: (0, 0),
        ApiKey.LIST_TRANSACTIONS: (0, 2),
        ApiKey.CONSUMER_GROUP_HEARTBEAT: (0, 1),
        ApiKey.CONSUMER_GROUP_DESCRIBE: (0, 1),
        ApiKey.LIST_CONFIG_RESOURCES: (0, 1),
        ApiKey.DESCRIBE_TOPIC_PARTITIONS: (0, 0),
    }
)
"""The lowest and highest version of each API with a handler. Every client must find a version that
it knows: the minimum is at most each client's maximum, the maximum is above Java's minimum.
"""

_requests: dict[int, type[Request[Response]]] = {}
_responses: dict[int, type[Response]] = {}


def register(request: type[Request[Response]], response: type[Response]) -> None:
    """Register an API's messages. Tidelog's own have keys from `OWN_KEYS_FROM` on."""
    key = request.API_KEY
    if key != response.API_KEY or response.VERSIONS != request.VERSIONS:
        raise ValueError(f"{request.__name__} and {response.__name__} do not belong together")
    if key in _requests:
        raise ValueError(f"key {key} of {request.__name__} is {_requests[key].__name__}'s")
    _requests[key] = request
    _responses[key] = response


def request_type(api_key: int) -> type[Request[Response]]:
    """The class of an API's requests.

    Raises:
        UnknownApi: the key is not registered.
    """
    try:
        return _requests[api_key]
    except KeyError:
        raise UnknownApi(api_key) from None


def response_type(api_key: int) -> type[Response]:
    """The class of an API's responses.

    Raises:
        UnknownApi: the key is not registered.
    """
    try:
        return _responses[api_key]
    except KeyError:
        raise UnknownApi(api_key) from None


def registered() -> list[int]:
    """The keys of all registered APIs, ascending."""
    return sorted(_requests)


for _request, _response in (
    (produce.ProduceRequest, produce.ProduceResponse),
    (fetch.FetchRequest, fetch.FetchResponse),
    (offsets.ListOffsetsRequest, offsets.ListOffsetsResponse),
    (metadata.MetadataRequest, metadata.MetadataResponse),
    (group_offsets.OffsetCommitRequest, group_offsets.OffsetCommitResponse),
    (group_offsets.OffsetFetchRequest, group_offsets.OffsetFetchResponse),
    (coordinators.FindCoordinatorRequest, coordinators.FindCoordinatorResponse),
    (groups.JoinGroupRequest, groups.JoinGroupResponse),
    (groups.HeartbeatRequest, groups.HeartbeatResponse),
    (groups.LeaveGroupRequest, groups.LeaveGroupResponse),
    (groups.SyncGroupRequest, groups.SyncGroupResponse),
    (groups.DescribeGroupsRequest, groups.DescribeGroupsResponse),
    (groups.ListGroupsRequest, groups.ListGroupsResponse),
    (sasl.SaslHandshakeRequest, sasl.SaslHandshakeResponse),
    (api_versions.ApiVersionsRequest, api_versions.ApiVersionsResponse),
    (topics.CreateTopicsRequest, topics.CreateTopicsResponse),
    (topics.DeleteTopicsRequest, topics.DeleteTopicsResponse),
    (topics.DeleteRecordsRequest, topics.DeleteRecordsResponse),
    (transactions.InitProducerIdRequest, transactions.InitProducerIdResponse),
    (offsets.OffsetForLeaderEpochRequest, offsets.OffsetForLeaderEpochResponse),
    (transactions.AddPartitionsToTxnRequest, transactions.AddPartitionsToTxnResponse),
    (transactions.AddOffsetsToTxnRequest, transactions.AddOffsetsToTxnResponse),
    (transactions.EndTxnRequest, transactions.EndTxnResponse),
    (transactions.WriteTxnMarkersRequest, transactions.WriteTxnMarkersResponse),
    (transactions.TxnOffsetCommitRequest, transactions.TxnOffsetCommitResponse),
    (acls.DescribeAclsRequest, acls.DescribeAclsResponse),
    (acls.CreateAclsRequest, acls.CreateAclsResponse),
    (acls.DeleteAclsRequest, acls.DeleteAclsResponse),
    (configs.DescribeConfigsRequest, configs.DescribeConfigsResponse),
    (configs.AlterConfigsRequest, configs.AlterConfigsResponse),
    (replicas.AlterReplicaLogDirsRequest, replicas.AlterReplicaLogDirsResponse),
    (replicas.DescribeLogDirsRequest, replicas.DescribeLogDirsResponse),
    (sasl.SaslAuthenticateRequest, sasl.SaslAuthenticateResponse),
    (topics.CreatePartitionsRequest, topics.CreatePartitionsResponse),
    (groups.DeleteGroupsRequest, groups.DeleteGroupsResponse),
    (replicas.ElectLeadersRequest, replicas.ElectLeadersResponse),
    (configs.IncrementalAlterConfigsRequest, configs.IncrementalAlterConfigsResponse),
    (replicas.AlterPartitionReassignmentsRequest, replicas.AlterPartitionReassignmentsResponse),
    (replicas.ListPartitionReassignmentsRequest, replicas.ListPartitionReassignmentsResponse),
    (group_offsets.OffsetDeleteRequest, group_offsets.OffsetDeleteResponse),
    (quotas.DescribeClientQuotasRequest, quotas.DescribeClientQuotasResponse),
    (quotas.AlterClientQuotasRequest, quotas.AlterClientQuotasResponse),
    (
        scram.DescribeUserScramCredentialsRequest,
        scram.DescribeUserScramCredentialsResponse,
    ),
    (scram.AlterUserScramCredentialsRequest, scram.AlterUserScramCredentialsResponse),
    (quorum.DescribeQuorumRequest, quorum.DescribeQuorumResponse),
    (metadata.DescribeClusterRequest, metadata.DescribeClusterResponse),
    (transaction_listing.DescribeProducersRequest, transaction_listing.DescribeProducersResponse),
    (metadata.UnregisterBrokerRequest, metadata.UnregisterBrokerResponse),
    (
        transaction_listing.DescribeTransactionsRequest,
        transaction_listing.DescribeTransactionsResponse,
    ),
    (transaction_listing.ListTransactionsRequest, transaction_listing.ListTransactionsResponse),
    (consumer_groups.ConsumerGroupHeartbeatRequest, consumer_groups.ConsumerGroupHeartbeatResponse),
    (consumer_groups.ConsumerGroupDescribeRequest, consumer_groups.ConsumerGroupDescribeResponse),
    (configs.ListConfigResourcesRequest, configs.ListConfigResourcesResponse),
    (metadata.DescribeTopicPartitionsRequest, metadata.DescribeTopicPartitionsResponse),
    (flush.FlushTopicsRequest, flush.FlushTopicsResponse),
    (adopt.AdoptRequest, adopt.AdoptResponse),
    (metadata_moved.MetadataMovedRequest, metadata_moved.MetadataMovedResponse),
    (drains.DrainBrokersRequest, drains.DrainBrokersResponse),
    (rebalance.RebalanceBrokersRequest, rebalance.RebalanceBrokersResponse),
    (features.ClusterFeaturesRequest, features.ClusterFeaturesResponse),
):
    register(_request, _response)
