"""One list of requests, and the permissions that each of them needs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any, Final
from uuid import UUID

from tests.unit.broker.guarded import codes
from tests.unit.broker.one_broker import batch
from tests.unit.coordinator.cluster.acls import rule
from tidelog.broker.authorization.access import REFUSALS
from tidelog.coordinator.cluster.records.acl_rules import AclRule
from tidelog.protocol.api import ApiKey
from tidelog.protocol.error_codes import ErrorCode
from tidelog.protocol.message import Request, Struct
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
from tidelog.protocol.schemas.cluster import configs, metadata, quorum, replicas, topics
from tidelog.protocol.schemas.own import adopt, drains, features, flush, metadata_moved, rebalance
from tidelog.protocol.schemas.security import acls, quotas, scram
from tidelog.security.acl_codes import CLUSTER_NAME, ResourceType

TOPIC, GROUP, TRANSACTION = "flights", "pilots", "booking"
TOPIC_ID = UUID(int=1)
"""Stands for the topic's id in the requests of this list."""


@dataclass(frozen=True)
class Needed:
    """A permission without which the request is refused."""

    operation: str
    of: str
    refusal: ErrorCode
    is_of_any: bool = False
    """Whether the permission for any resource of the type suffices."""
    instead: str = ""
    """Another operation whose permission is enough."""

    @property
    def name(self) -> str:
        return NAMES[self.of]

    def rule(self, operation: str | None = None, name: str | None = None, **more: Any) -> AclRule:
        return rule(operation or self.operation, name or self.name, of=self.of, **more)


NAMES: Final[Mapping[str, str]] = {
    "TOPIC": TOPIC,
    "GROUP": GROUP,
    "TRANSACTIONAL_ID": TRANSACTION,
    "CLUSTER": CLUSTER_NAME,
}


def needs(operation: str, of: str, refusal: ErrorCode | None = None) -> Needed:
    return Needed(operation, of, REFUSALS[ResourceType[of]] if refusal is None else refusal)


def is_refused(response: Any, need: Needed) -> bool:
    return need.refusal in codes(response)


@dataclass(frozen=True)
class Case:
    """A request in some versions, and all permissions that it needs."""

    request: Request[Any]
    versions: tuple[int, ...]
    needed: tuple[Needed, ...]
    is_refused: Callable[[Any, Needed], bool] = is_refused
    settings: Mapping[str, object] = field(default_factory=dict)
    note: str = ""

    def __str__(self) -> str:
        return f"{type(self.request).__name__.removesuffix('Request')}{self.note}"


READ_TOPIC, WRITE_TOPIC = needs("READ", "TOPIC"), needs("WRITE", "TOPIC")
DESCRIBE_TOPIC, ALTER_TOPIC = needs("DESCRIBE", "TOPIC"), needs("ALTER", "TOPIC")
READ_GROUP, DESCRIBE_GROUP = needs("READ", "GROUP"), needs("DESCRIBE", "GROUP")
WRITE_TRANSACTION = needs("WRITE", "TRANSACTIONAL_ID")
DESCRIBE_TRANSACTION = needs("DESCRIBE", "TRANSACTIONAL_ID")
ALTER, DESCRIBE = needs("ALTER", "CLUSTER"), needs("DESCRIBE", "CLUSTER")
ACT = needs("CLUSTER_ACTION", "CLUSTER")


def _is_not_listed(field_name: str) -> Callable[[Any, Needed], bool]:
    return lambda response, _: not getattr(response, field_name)


def _is_refused_or_not_listed(listed: Callable[[Any], Any]) -> Callable[[Any, Needed], bool]:
    """Without the permission for the group the request is refused. Without those for topics, topics
    are left out."""
    return lambda response, need: (
        not listed(response) if need.of == "TOPIC" else is_refused(response, need)
    )


def _produced(records: bytes | bytearray, **more: Any) -> produce.ProduceRequest:
    return produce.ProduceRequest(
        acks=-1,
        timeout_ms=1000,
        topic_data=[
            produce.TopicProduceData(
                name=TOPIC,
                topic_id=TOPIC_ID,
                partition_data=[produce.PartitionProduceData(index=0, records=records)],
            )
        ],
        **more,
    )


def _configs(kind: type[Any], resource: type[Any], resource_type: int, name: str) -> Any:
    return kind(resources=[resource(resource_type=resource_type, resource_name=name)])


_CONFIG_CASES = [
    Case(
        _configs(kind, resource, number, name), versions, (needs(operation, of),), note=f" of {of}"
    )
    for kind, resource, versions, operation in (
        (
            configs.DescribeConfigsRequest,
            configs.DescribeConfigsResource,
            (1, 4),
            "DESCRIBE_CONFIGS",
        ),
        (configs.AlterConfigsRequest, configs.AlterConfigsResource, (0, 2), "ALTER_CONFIGS"),
        (
            configs.IncrementalAlterConfigsRequest,
            configs.IncrementalAlterConfigsResource,
            (0, 1),
            "ALTER_CONFIGS",
        ),
    )
    for of, number, name in (("TOPIC", 2, TOPIC), ("CLUSTER", 4, "0"), ("GROUP", 32, GROUP))
]
_RULES = {
    "resource_type_filter": 1,
    "resource_name_filter": None,
    "pattern_type_filter": 1,
    "principal_filter": "User:without-rules",
    "host_filter": None,
    "operation": 1,
    "permission_type": 1,
}

CASES: Final = [
    Case(_produced(batch(b"x")), (3, 9, 13), (WRITE_TOPIC,)),
    Case(
        _produced(
            batch(b"x", producer_id=5, producer_epoch=0, base_sequence=0, is_transactional=True),
            transactional_id=TRANSACTION,
        ),
        (9,),
        (WRITE_TRANSACTION, WRITE_TOPIC),
        note=" in a transaction",
    ),
    Case(
        fetch.FetchRequest(
            max_wait_ms=0,
            max_bytes=1 << 20,
            topics=[
                fetch.FetchTopic(
                    topic=TOPIC,
                    topic_id=TOPIC_ID,
                    partitions=[fetch.FetchPartition(partition=0, partition_max_bytes=1 << 20)],
                )
            ],
        ),
        (4, 12, 17),
        (READ_TOPIC,),
    ),
    Case(
        offsets.ListOffsetsRequest(
            topics=[
                offsets.ListOffsetsTopic(
                    name=TOPIC,
                    partitions=[offsets.ListOffsetsPartition(partition_index=0, timestamp=-1)],
                )
            ]
        ),
        (1, 10),
        (DESCRIBE_TOPIC,),
    ),
    Case(
        offsets.OffsetForLeaderEpochRequest(
            topics=[
                offsets.OffsetForLeaderTopic(
                    topic=TOPIC, partitions=[offsets.OffsetForLeaderPartition(partition=0)]
                )
            ]
        ),
        (2, 4),
        (DESCRIBE_TOPIC,),
    ),
    Case(
        topics.DeleteRecordsRequest(
            topics=[
                topics.DeleteRecordsTopic(
                    name=TOPIC,
                    partitions=[topics.DeleteRecordsPartition(partition_index=0, offset=0)],
                )
            ]
        ),
        (0, 2),
        (needs("DELETE", "TOPIC"),),
    ),
    Case(
        metadata.MetadataRequest(
            topics=[metadata.MetadataRequestTopic(name=TOPIC)], allow_auto_topic_creation=False
        ),
        (0, 1, 4, 9, 13),
        (DESCRIBE_TOPIC,),
    ),
    Case(
        metadata.MetadataRequest(
            topics=[metadata.MetadataRequestTopic(name=TOPIC)],
            allow_auto_topic_creation=False,
            include_topic_authorized_operations=True,
        ),
        (8, 13),
        (DESCRIBE_TOPIC,),
        note=" with operations",
    ),
    Case(
        metadata.MetadataRequest(
            topics=[],
            include_cluster_authorized_operations=True,
        ),
        (8, 10),
        (DESCRIBE,),
        lambda response, _: response.cluster_authorized_operations == 0,
        note=" with operations on the cluster",
    ),
    Case(
        metadata.MetadataRequest(
            topics=[metadata.MetadataRequestTopic(name=None, topic_id=TOPIC_ID)]
        ),
        (12, 13),
        (DESCRIBE_TOPIC,),
        note=" by id",
    ),
    Case(
        metadata.MetadataRequest(topics=None),
        (1, 13),
        (DESCRIBE_TOPIC,),
        lambda response, _: all(topic.name != TOPIC for topic in response.topics),
        note=" of all topics",
    ),
    Case(
        metadata.MetadataRequest(topics=[]),
        (0,),
        (DESCRIBE_TOPIC,),
        lambda response, _: all(topic.name != TOPIC for topic in response.topics),
        note=" of all topics, at first",
    ),
    Case(
        metadata.DescribeTopicPartitionsRequest(
            topics=[metadata.DescribeTopicPartitionsTopic(name=TOPIC)]
        ),
        (0,),
        (DESCRIBE_TOPIC,),
    ),
    Case(
        metadata.DescribeTopicPartitionsRequest(),
        (0,),
        (DESCRIBE_TOPIC,),
        lambda response, _: all(topic.name != TOPIC for topic in response.topics),
        note=" of all topics",
    ),
    Case(
        metadata.DescribeClusterRequest(include_cluster_authorized_operations=True),
        (0, 2),
        (DESCRIBE,),
        lambda response, _: response.cluster_authorized_operations == 0,
    ),
    Case(
        topics.CreateTopicsRequest(
            topics=[topics.CreatableTopic(name=TOPIC, num_partitions=1, replication_factor=1)],
            validate_only=True,
        ),
        (2, 7),
        (needs("CREATE", "TOPIC"),),
    ),
    Case(
        topics.CreateTopicsRequest(
            topics=[topics.CreatableTopic(name=TOPIC, num_partitions=1, replication_factor=1)],
            validate_only=True,
        ),
        (2, 7),
        (needs("CREATE", "CLUSTER", ErrorCode.TOPIC_AUTHORIZATION_FAILED),),
        note=" by a right on the cluster",
    ),
    Case(
        topics.DeleteTopicsRequest(topic_names=["flights-old"], timeout_ms=30_000),
        (1, 5),
        (),
        note=" by name",
    ),
    Case(
        topics.CreatePartitionsRequest(
            topics=[topics.CreatePartitionsTopic(name=TOPIC, count=1, assignments=None)],
            timeout_ms=30_000,
        ),
        (0, 3),
        (ALTER_TOPIC,),
    ),
    *_CONFIG_CASES,
    Case(configs.ListConfigResourcesRequest(), (0, 1), (needs("DESCRIBE_CONFIGS", "CLUSTER"),)),
    Case(
        replicas.DescribeLogDirsRequest(topics=None),
        (1, 3, 4),
        (DESCRIBE,),
        # Version 1 expresses the refusal by an answer without directories.
        lambda response, need: is_refused(response, need) or not response.results,
    ),
    Case(
        replicas.AlterReplicaLogDirsRequest(
            dirs=[
                replicas.AlterReplicaLogDir(
                    path="/x",
                    topics=[replicas.AlterReplicaLogDirTopic(name=TOPIC, partitions=[0])],
                )
            ]
        ),
        (1, 2),
        (ALTER,),
    ),
    Case(
        quorum.DescribeQuorumRequest(
            topics=[
                quorum.DescribeQuorumTopic(
                    topic_name="__cluster_metadata",
                    partitions=[quorum.DescribeQuorumPartition(partition_index=0)],
                )
            ]
        ),
        (0, 2),
        (DESCRIBE,),
    ),
    Case(
        quotas.DescribeClientQuotasRequest(),
        (0, 1),
        (needs("DESCRIBE_CONFIGS", "CLUSTER"),),
    ),
    Case(
        quotas.AlterClientQuotasRequest(
            entries=[
                quotas.QuotaAlteration(
                    entity=[quotas.QuotaEntityPart(entity_type="user", entity_name="alice")],
                    ops=[quotas.QuotaOperation(key="producer_byte_rate", value=1e9)],
                )
            ]
        ),
        (0, 1),
        (needs("ALTER_CONFIGS", "CLUSTER"),),
    ),
    Case(
        scram.DescribeUserScramCredentialsRequest(users=[scram.UserName(name="alice")]),
        (0, 0),
        (DESCRIBE,),
    ),
    Case(
        scram.AlterUserScramCredentialsRequest(
            deletions=[scram.ScramCredentialDeletion(name="alice", mechanism=1)]
        ),
        (0, 0),
        (ALTER,),
    ),
    Case(
        replicas.ElectLeadersRequest(
            topic_partitions=[replicas.ElectLeadersTopic(topic=TOPIC, partitions=[0])]
        ),
        (0, 2),
        (ALTER,),
    ),
    Case(replicas.AlterPartitionReassignmentsRequest(), (0,), (ALTER,)),
    Case(
        replicas.AlterPartitionReassignmentsRequest(is_forwarded=True),
        (0,),
        (ACT,),
        note=" between brokers",
    ),
    Case(replicas.ListPartitionReassignmentsRequest(topics=None), (0,), (DESCRIBE,)),
    Case(
        replicas.ListPartitionReassignmentsRequest(topics=None, is_forwarded=True),
        (0,),
        (ACT,),
        note=" between brokers",
    ),
    Case(metadata.UnregisterBrokerRequest(broker_id=9), (0,), (ALTER,)),
    Case(acls.DescribeAclsRequest(**_RULES), (1, 3), (DESCRIBE,)),
    Case(
        acls.CreateAclsRequest(
            creations=[
                acls.AclCreation(
                    resource_type=2,
                    resource_name="",
                    principal="User:without-rules",
                    host="*",
                    operation=3,
                    permission_type=3,
                )
            ]
        ),
        (1, 3),
        (ALTER,),
    ),
    Case(acls.DeleteAclsRequest(filters=[acls.DeleteAclsFilter(**_RULES)]), (1, 3), (ALTER,)),
    # Groups.
    Case(coordinators.FindCoordinatorRequest(key=GROUP, key_type=0), (0, 3), (DESCRIBE_GROUP,)),
    Case(
        coordinators.FindCoordinatorRequest(coordinator_keys=[GROUP], key_type=0),
        (4, 6),
        (DESCRIBE_GROUP,),
        note=" of several groups",
    ),
    Case(
        coordinators.FindCoordinatorRequest(key=TRANSACTION, key_type=1),
        (1, 3),
        (DESCRIBE_TRANSACTION,),
        note=" of a transaction",
    ),
    Case(
        coordinators.FindCoordinatorRequest(coordinator_keys=[TRANSACTION], key_type=1),
        (4, 6),
        (DESCRIBE_TRANSACTION,),
        note=" of several transactions",
    ),
    Case(
        groups.JoinGroupRequest(
            group_id=GROUP,
            session_timeout_ms=10_000,
            rebalance_timeout_ms=10_000,
            protocol_type="consumer",
            protocols=[groups.JoinGroupRequestProtocol(name="range", metadata=b"")],
        ),
        (4, 9),
        (READ_GROUP,),
    ),
    Case(groups.SyncGroupRequest(group_id=GROUP, member_id="m"), (0, 4), (READ_GROUP,)),
    Case(
        groups.SyncGroupRequest(
            group_id=GROUP, member_id="m", protocol_type="consumer", protocol_name="range"
        ),
        (5,),
        (READ_GROUP,),
        note=" with its protocol",
    ),
    Case(
        groups.SyncGroupRequest(group_id=GROUP, member_id="m"), (5,), (), note=" without protocol"
    ),
    Case(groups.HeartbeatRequest(group_id=GROUP, member_id="m"), (0, 4), (READ_GROUP,)),
    Case(groups.LeaveGroupRequest(group_id=GROUP, member_id="m"), (0, 2), (READ_GROUP,)),
    Case(
        groups.LeaveGroupRequest(group_id=GROUP, members=[groups.LeaveGroupMember(member_id="m")]),
        (3, 5),
        (READ_GROUP,),
        note=" of several members",
    ),
    Case(groups.DescribeGroupsRequest(groups=[GROUP]), (0, 6), (DESCRIBE_GROUP,)),
    Case(
        groups.DescribeGroupsRequest(groups=[GROUP], include_authorized_operations=True),
        (3, 6),
        (DESCRIBE_GROUP,),
        note=" with operations",
    ),
    Case(groups.ListGroupsRequest(), (0, 5), (DESCRIBE_GROUP,), _is_not_listed("groups")),
    Case(groups.DeleteGroupsRequest(groups_names=["pilots-old"]), (0, 2), (), note=" that is gone"),
    Case(
        consumer_groups.ConsumerGroupHeartbeatRequest(
            group_id=GROUP, member_id="m", member_epoch=5, subscribed_topic_names=[TOPIC]
        ),
        (0, 1),
        (READ_GROUP, DESCRIBE_TOPIC),
    ),
    Case(
        consumer_groups.ConsumerGroupDescribeRequest(group_ids=[GROUP]),
        (0, 1),
        (DESCRIBE_GROUP,),
    ),
    Case(
        consumer_groups.ConsumerGroupDescribeRequest(
            group_ids=[GROUP], include_authorized_operations=True
        ),
        (0, 1),
        (DESCRIBE_GROUP,),
        note=" with operations",
    ),
    Case(
        group_offsets.OffsetCommitRequest(
            group_id=GROUP,
            topics=[
                group_offsets.OffsetCommitRequestTopic(
                    name=TOPIC,
                    partitions=[
                        group_offsets.OffsetCommitRequestPartition(
                            partition_index=0, committed_offset=0, committed_metadata=""
                        )
                    ],
                )
            ],
        ),
        (2, 9),
        (READ_GROUP, READ_TOPIC),
    ),
    Case(
        group_offsets.OffsetFetchRequest(
            group_id=GROUP,
            topics=[group_offsets.OffsetFetchRequestTopic(name=TOPIC, partition_indexes=[0])],
        ),
        (1, 2, 7),
        (DESCRIBE_GROUP, DESCRIBE_TOPIC),
    ),
    Case(
        group_offsets.OffsetFetchRequest(
            groups=[
                group_offsets.OffsetFetchRequestGroup(
                    group_id=GROUP,
                    topics=[
                        group_offsets.OffsetFetchRequestTopics(name=TOPIC, partition_indexes=[0])
                    ],
                )
            ]
        ),
        (8, 9),
        (DESCRIBE_GROUP, DESCRIBE_TOPIC),
        note=" of several groups",
    ),
    Case(
        group_offsets.OffsetFetchRequest(group_id=GROUP, topics=None),
        (2, 7),
        (DESCRIBE_GROUP, DESCRIBE_TOPIC),
        _is_refused_or_not_listed(lambda response: response.topics),
        note=" of all topics",
    ),
    Case(
        group_offsets.OffsetFetchRequest(
            groups=[group_offsets.OffsetFetchRequestGroup(group_id=GROUP, topics=None)]
        ),
        (8, 9),
        (DESCRIBE_GROUP, DESCRIBE_TOPIC),
        _is_refused_or_not_listed(lambda response: response.groups[0].topics),
        note=" of all topics of several groups",
    ),
    Case(
        group_offsets.OffsetDeleteRequest(
            group_id=GROUP,
            topics=[
                group_offsets.OffsetDeleteRequestTopic(
                    name=TOPIC,
                    partitions=[group_offsets.OffsetDeleteRequestPartition(partition_index=1)],
                )
            ],
        ),
        (0,),
        (needs("DELETE", "GROUP"), READ_TOPIC),
    ),
    # Transactions.
    Case(
        transactions.InitProducerIdRequest(
            transactional_id=TRANSACTION, transaction_timeout_ms=10_000
        ),
        (0, 5),
        (WRITE_TRANSACTION,),
    ),
    Case(
        transactions.InitProducerIdRequest(transactional_id=None),
        (0, 5),
        (needs("IDEMPOTENT_WRITE", "CLUSTER"),),
        note=" without transactions",
    ),
    Case(
        transactions.InitProducerIdRequest(transactional_id=None),
        (0, 5),
        (Needed("WRITE", "TOPIC", ErrorCode.CLUSTER_AUTHORIZATION_FAILED, is_of_any=True),),
        note=" of a writer",
    ),
    Case(
        transactions.AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=TRANSACTION,
            v3_and_below_producer_id=5,
            v3_and_below_topics=[transactions.AddPartitionsToTxnTopic(name=TOPIC, partitions=[0])],
        ),
        (0, 3),
        (WRITE_TRANSACTION, WRITE_TOPIC),
    ),
    Case(
        transactions.AddPartitionsToTxnRequest(
            transactions=[
                transactions.AddPartitionsToTxnTransaction(
                    transactional_id=TRANSACTION,
                    producer_id=5,
                    topics=[transactions.AddPartitionsToTxnTopic(name=TOPIC, partitions=[0])],
                )
            ]
        ),
        (4, 5),
        (ACT,),
        note=" between brokers",
    ),
    Case(
        transactions.AddOffsetsToTxnRequest(
            transactional_id=TRANSACTION, producer_id=5, group_id=GROUP
        ),
        (0, 4),
        (WRITE_TRANSACTION, READ_GROUP),
    ),
    Case(
        transactions.TxnOffsetCommitRequest(
            transactional_id=TRANSACTION,
            group_id=GROUP,
            producer_id=5,
            topics=[
                transactions.TxnOffsetCommitRequestTopic(
                    name=TOPIC,
                    partitions=[
                        transactions.TxnOffsetCommitRequestPartition(
                            partition_index=0, committed_offset=0, committed_metadata=""
                        )
                    ],
                )
            ],
        ),
        (0, 5),
        (WRITE_TRANSACTION, READ_GROUP, READ_TOPIC),
    ),
    Case(
        transactions.EndTxnRequest(transactional_id=TRANSACTION, producer_id=5),
        (0, 5),
        (WRITE_TRANSACTION,),
    ),
    Case(
        transactions.WriteTxnMarkersRequest(
            markers=[
                transactions.WritableTxnMarker(
                    producer_id=5,
                    topics=[transactions.WritableTxnMarkerTopic(name=TOPIC, partition_indexes=[7])],
                )
            ]
        ),
        (1, 2),
        (Needed("CLUSTER_ACTION", "CLUSTER", ACT.refusal, instead="ALTER"),),
    ),
    Case(
        transaction_listing.DescribeProducersRequest(
            topics=[transaction_listing.DescribeProducersTopic(name=TOPIC, partition_indexes=[0])]
        ),
        (0,),
        (READ_TOPIC,),
    ),
    Case(
        transaction_listing.DescribeTransactionsRequest(transactional_ids=[TRANSACTION]),
        (0,),
        (DESCRIBE_TRANSACTION,),
    ),
    Case(
        transaction_listing.ListTransactionsRequest(),
        (0, 2),
        (DESCRIBE_TRANSACTION,),
        _is_not_listed("transaction_states"),
    ),
    # Tidelog's own.
    Case(
        flush.FlushTopicsRequest(
            timeout_ms=0, topics=[flush.FlushTopic(name=TOPIC, partitions=[0])]
        ),
        (0,),
        (ALTER_TOPIC,),
    ),
    Case(
        adopt.AdoptRequest(
            transactional_id=TRANSACTION,
            producer_id=5,
            topics=[
                adopt.AdoptTopic(
                    topic_id=TOPIC_ID,
                    partitions=[adopt.AdoptPartition(partition_index=0, staged_ids=[])],
                )
            ],
        ),
        (0,),
        (WRITE_TRANSACTION, WRITE_TOPIC),
    ),
    Case(metadata_moved.MetadataMovedRequest(), (0,), (ACT,)),
    Case(drains.DrainBrokersRequest(brokers=[]), (0,), (DESCRIBE,)),
    Case(
        drains.DrainBrokersRequest(brokers=[drains.BrokerDrain(broker_id=9)]),
        (0,),
        (ALTER,),
        note=" begun",
    ),
    Case(features.ClusterFeaturesRequest(), (0,), (DESCRIBE,)),
    Case(features.ClusterFeaturesRequest(raise_to=9), (0,), (ALTER,), note=" raised"),
    Case(rebalance.RebalanceBrokersRequest(), (0,), (ALTER,)),
    Case(
        rebalance.RebalanceBrokersRequest(is_forwarded=True), (0,), (ACT,), note=" between brokers"
    ),
]
OPEN: Final = frozenset({ApiKey.API_VERSIONS, ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE})
DESCRIBING: Final = frozenset({"READ", "WRITE", "DELETE", "ALTER", "DESCRIBE"})
FINDS: Final = tuple(
    (coordinators.FindCoordinatorRequest(coordinator_keys=[key], key_type=kind), 4)
    for kind, key in ((0, GROUP), (1, TRANSACTION))
)
"""Requests after which the coordinators know the group and the transactional id."""
BEGINNINGS: Final = (
    (
        group_offsets.OffsetCommitRequest(
            group_id=GROUP,
            topics=[
                group_offsets.OffsetCommitRequestTopic(
                    name=TOPIC,
                    partitions=[
                        group_offsets.OffsetCommitRequestPartition(
                            partition_index=0, committed_offset=0, committed_metadata=""
                        )
                    ],
                )
            ],
        ),
        8,
    ),
    (
        transactions.InitProducerIdRequest(
            transactional_id=TRANSACTION, transaction_timeout_ms=60_000
        ),
        4,
    ),
)
"""Requests with their versions after which a group has an offset and a transactional id exists."""


def rules_for(need: Needed) -> Iterator[tuple[str, list[AclRule], bool]]:
    """Each kind of rule, and whether it allows the needed operation."""
    everywhere = need.rule(name="*")
    prefix = need.name[:3]
    yield "no rule", [], False
    yield "allow", [need.rule()], True
    yield "all operations", [need.rule("ALL")], True
    yield "prefix", [need.rule(name=prefix, prefixed=True)], True
    yield "wildcard", [everywhere], True
    yield "deny everywhere", [need.rule(), need.rule(name="*", deny=True)], False
    # A denial for one resource does not concern other resources.
    yield "deny", [everywhere, need.rule(deny=True)], need.is_of_any
    denying = need.rule(name=prefix, prefixed=True, deny=True)
    yield "deny by a prefix", [everywhere, denying], need.is_of_any
    yield "deny everyone", [everywhere, need.rule(principal="User:*", deny=True)], need.is_of_any
    yield "another resource", [need.rule(name=need.name + "2")], need.is_of_any
    yield "another principal", [need.rule(principal="User:bob")], False
    yield "another host", [need.rule(host="10.0.0.9")], False
    is_about_describing = need.operation == "DESCRIBE"
    yield "describe only", [need.rule("DESCRIBE")], is_about_describing
    for operation in sorted(DESCRIBING - {need.operation}):
        implies = is_about_describing or operation == need.instead
        yield f"{operation} only", [need.rule(operation)], implies


def with_topic_id(node: Any, topic_id: UUID) -> Any:
    """A copy with the topic's real id."""
    node = deepcopy(node)

    def fill(struct: Struct) -> None:
        for each_field in struct.FIELDS:
            value = getattr(struct, each_field.name)
            if value == TOPIC_ID:
                setattr(struct, each_field.name, topic_id)
            for each in value if isinstance(value, list) else ():
                if isinstance(each, Struct):
                    fill(each)

    fill(node)
    return node
