"""Errors in the shape of each request's answers, and the counting of errors in answers."""

from __future__ import annotations

import pytest

from tidelog.broker.dispatch.routes import HANDLERS
from tidelog.broker.handlers.error_responses import count_errors, error_response
from tidelog.broker.telemetry.metrics import RequestMetrics
from tidelog.protocol.api import ADVERTISED, ApiKey, OwnApiKey, request_type, response_type
from tidelog.protocol.codec import decode, encode
from tidelog.protocol.error_codes import ErrorCode
from tidelog.protocol.message import Request, Response
from tidelog.protocol.schemas.configs import (
    AlterConfigsResource,
    DescribeConfigsResource,
    IncrementalAlterConfigsResource,
)
from tidelog.protocol.schemas.fetch import FetchPartition, FetchTopic
from tidelog.protocol.schemas.group_offsets import (
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
)
from tidelog.protocol.schemas.metadata import (
    DescribeTopicPartitionsTopic,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from tidelog.protocol.schemas.offsets import (
    ListOffsetsPartition,
    ListOffsetsTopic,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from tidelog.protocol.schemas.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from tidelog.protocol.schemas.replicas import (
    AlterReplicaLogDir,
    AlterReplicaLogDirTopic,
    ElectLeadersTopic,
)
from tidelog.protocol.schemas.topics import (
    CreatableTopic,
    CreatePartitionsTopic,
    DeleteRecordsPartition,
    DeleteRecordsTopic,
    DeleteTopicState,
)
from tidelog.protocol.schemas.transaction_listing import DescribeProducersTopic
from tidelog.protocol.schemas.transactions import (
    AddPartitionsToTxnTopic,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    WritableTxnMarker,
    WritableTxnMarkerTopic,
)

CODE = ErrorCode.UNKNOWN_SERVER_ERROR
SERVED = [
    (key, version)
    for key, (lowest, highest) in ADVERTISED.items()
    for version in range(3 if key is ApiKey.PRODUCE else lowest, highest + 1)
]


def asked(key: ApiKey, version: int) -> Request[Response]:
    """A request that asks for one thing."""
    request = request_type(key)()
    partition = PartitionProduceData(index=0, records=b"")
    one: dict[ApiKey, dict[str, object]] = {
        ApiKey.PRODUCE: {
            "acks": 1,
            "topic_data": [TopicProduceData(name="t", partition_data=[partition])],
        },
        ApiKey.FETCH: {"topics": [FetchTopic(topic="t", partitions=[FetchPartition()])]},
        ApiKey.LIST_OFFSETS: {
            "topics": [ListOffsetsTopic(name="t", partitions=[ListOffsetsPartition()])]
        },
        ApiKey.OFFSET_FOR_LEADER_EPOCH: {
            "topics": [OffsetForLeaderTopic(topic="t", partitions=[OffsetForLeaderPartition()])]
        },
        ApiKey.METADATA: {"topics": [MetadataRequestTopic(name="t")]},
        ApiKey.DESCRIBE_TOPIC_PARTITIONS: {"topics": [DescribeTopicPartitionsTopic(name="t")]},
        ApiKey.CREATE_TOPICS: {"topics": [CreatableTopic(name="t")]},
        ApiKey.DELETE_TOPICS: {"topics": [DeleteTopicState(name="t")], "topic_names": ["t"]},
        ApiKey.DELETE_RECORDS: {
            "topics": [DeleteRecordsTopic(name="t", partitions=[DeleteRecordsPartition()])]
        },
        ApiKey.CREATE_PARTITIONS: {"topics": [CreatePartitionsTopic(name="t")]},
        ApiKey.DESCRIBE_CONFIGS: {"resources": [DescribeConfigsResource()]},
        ApiKey.ALTER_CONFIGS: {"resources": [AlterConfigsResource()]},
        ApiKey.INCREMENTAL_ALTER_CONFIGS: {"resources": [IncrementalAlterConfigsResource()]},
        ApiKey.ALTER_REPLICA_LOG_DIRS: {
            "dirs": [
                AlterReplicaLogDir(
                    path="d", topics=[AlterReplicaLogDirTopic(name="t", partitions=[0])]
                )
            ]
        },
        ApiKey.ELECT_LEADERS: {"topic_partitions": [ElectLeadersTopic(topic="t", partitions=[0])]},
        ApiKey.FIND_COORDINATOR: {"key": "k", "coordinator_keys": ["k"]},
        ApiKey.DESCRIBE_GROUPS: {"groups": ["g"]},
        ApiKey.DELETE_GROUPS: {"groups_names": ["g"]},
        ApiKey.CONSUMER_GROUP_DESCRIBE: {"group_ids": ["g"]},
        ApiKey.OFFSET_COMMIT: {
            "topics": [
                OffsetCommitRequestTopic(name="t", partitions=[OffsetCommitRequestPartition()])
            ]
        },
        ApiKey.OFFSET_FETCH: {
            "topics": [OffsetFetchRequestTopic(name="t", partition_indexes=[0])],
            "groups": [OffsetFetchRequestGroup(group_id="g")],
        },
        ApiKey.ADD_PARTITIONS_TO_TXN: {
            "v3_and_below_topics": [AddPartitionsToTxnTopic(name="t", partitions=[0])]
        },
        ApiKey.WRITE_TXN_MARKERS: {
            "markers": [
                WritableTxnMarker(topics=[WritableTxnMarkerTopic(name="t", partition_indexes=[0])])
            ]
        },
        ApiKey.TXN_OFFSET_COMMIT: {
            "topics": [
                TxnOffsetCommitRequestTopic(
                    name="t", partitions=[TxnOffsetCommitRequestPartition()]
                )
            ]
        },
        ApiKey.DESCRIBE_PRODUCERS: {
            "topics": [DescribeProducersTopic(name="t", partition_indexes=[0])]
        },
        ApiKey.DESCRIBE_TRANSACTIONS: {"transactional_ids": ["t"]},
    }
    for name, value in one.get(key, {}).items():
        setattr(request, name, value)
    return request


@pytest.mark.parametrize(("key", "version"), SERVED, ids=lambda each: str(each))
def test_every_request_has_an_answer_that_says_that_it_failed(key: ApiKey, version: int) -> None:
    """As a client reads it: the code survives the encoding of that very version."""
    response = error_response(asked(key, version), version, CODE, "it failed")
    assert response is not None
    received = decode(response_type(key), b"".join(map(bytes, encode(response, version))), version)
    metrics = RequestMetrics()
    for _ in count_errors(received, metrics):
        pass
    assert metrics.errors.of(CODE.name).value >= 1
    assert list(metrics.errors.by_label) == [CODE.name]


def test_a_produce_that_is_not_to_be_answered_has_no_error_either() -> None:
    assert error_response(ProduceRequest(acks=0), 9, CODE, "") is None


def test_everything_that_is_advertised_is_served() -> None:
    assert set(HANDLERS) | {ApiKey.API_VERSIONS} == {*ADVERTISED, *OwnApiKey}


def test_errors_are_counted_wherever_they_are() -> None:
    metrics = RequestMetrics()
    partitions = [MetadataResponsePartition(error_code=code) for code in (0, 5, 5)]
    topics = [MetadataResponseTopic(error_code=3), MetadataResponseTopic(partitions=partitions)]
    for _ in count_errors(MetadataResponse(topics=topics, error_code=9999), metrics):
        pass
    assert {name: count.value for name, count in metrics.errors.by_label.items()} == {
        "UNKNOWN_TOPIC_OR_PARTITION": 1,
        "LEADER_NOT_AVAILABLE": 2,
        "error 9999": 1,
    }
