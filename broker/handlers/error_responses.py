"""One error for a whole request, in the shape that its answers have."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from tidelog.broker.handlers.group_error_responses import GROUP_SHAPES
from tidelog.broker.handlers.transaction_error_responses import TRANSACTION_SHAPES
from tidelog.protocol.error_codes import ErrorCode, error_name
from tidelog.protocol.made_list import MadeList
from tidelog.protocol.message import Message, Request, Response, Struct
from tidelog.protocol.schemas import (
    adopt,
    api_versions,
    configs,
    coordinators,
    fetch,
    flush,
    metadata,
    offsets,
    produce,
    quorum,
    replicas,
    topics,
)
from tidelog.protocol.wire import STEP_ELEMENTS

if TYPE_CHECKING:
    from tidelog.broker.telemetry.metrics import RequestMetrics

Shape = Callable[[Any, int, int, str], Response]
"""(request, version, code, message) -> response."""
CODE_NAMES = frozenset({"error_code", "partition_error_code"})
"""How messages call the code of what was asked; AddPartitionsToTxn has the second name."""


def error_response(
    request: Request[Response], version: int, code: ErrorCode, message: str
) -> Response | None:
    """The answer that says `code` of everything that was asked; None if the API has no shape for
    it, or the request is not to be answered."""
    if isinstance(request, produce.ProduceRequest) and request.acks == 0:
        return None
    shape = _SHAPES.get(type(request))
    return None if shape is None else shape(request, version, code, message)


def count_errors(response: Response, metrics: RequestMetrics) -> Generator[None, None, None]:
    """Count every error code in a response, in steps; looks only at the parts that have one."""
    for number, code in enumerate(_codes(response), 1):
        if code:
            metrics.errors.of(error_name(code)).value += 1
        if number % STEP_ELEMENTS == 0:
            yield


def _codes(struct: Struct) -> Iterator[int]:
    own, single, lists = _places(type(struct))
    if own:
        yield getattr(struct, own)
    for name in single:
        value = getattr(struct, name)
        if value is not None:
            yield from _codes(value)
    for name in lists:
        each_of = getattr(struct, name) or ()
        # To make everything twice, only to count what few of them tell, would be too much.
        if not isinstance(each_of, MadeList):
            for each in each_of:
                yield from _codes(each)


@cache
def _places(struct: type[Struct]) -> tuple[str, tuple[str, ...], tuple[str, ...]]:
    """The name of its own error code, or none; the names of its structures, and of its lists of
    structures, in which there are some."""
    own, single, lists = "", [], []
    for field in struct.FIELDS:
        if field.name in CODE_NAMES:
            own = field.name
        elif field.type.struct is not None and any(_places(field.type.struct)):
            single.append(field.name)
        elif (
            field.type.element is not None
            and field.type.element.struct is not None
            and any(_places(field.type.element.struct))
        ):
            lists.append(field.name)
    return own, tuple(single), tuple(lists)


def _produce(request: produce.ProduceRequest, _v: int, code: int, message: str) -> Response:
    return produce.ProduceResponse(
        responses=[
            produce.TopicProduceResponse(
                name=topic.name,
                topic_id=topic.topic_id,
                partition_responses=[
                    produce.PartitionProduceResponse(
                        index=each.index, error_code=code, base_offset=-1, error_message=message
                    )
                    for each in topic.partition_data
                ],
            )
            for topic in request.topic_data
        ]
    )


def _fetch(request: fetch.FetchRequest, version: int, code: int, _message: str) -> Response:
    if version >= 7:
        return fetch.FetchResponse(error_code=code)
    return fetch.FetchResponse(
        responses=[
            fetch.FetchableTopicResponse(
                topic=topic.topic,
                partitions=[
                    fetch.FetchablePartitionResponse(
                        partition_index=each.partition, error_code=code, high_watermark=-1
                    )
                    for each in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


def _list_offsets(request: offsets.ListOffsetsRequest, _v: int, code: int, _m: str) -> Response:
    return offsets.ListOffsetsResponse(
        topics=[
            offsets.ListOffsetsTopicResponse(
                name=topic.name,
                partitions=[
                    offsets.ListOffsetsPartitionResponse(
                        partition_index=each.partition_index, error_code=code
                    )
                    for each in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


def _leader_epochs(
    request: offsets.OffsetForLeaderEpochRequest, _v: int, code: int, _m: str
) -> Response:
    return offsets.OffsetForLeaderEpochResponse(
        topics=[
            offsets.OffsetForLeaderTopicResult(
                topic=topic.topic,
                partitions=[
                    offsets.EpochEndOffset(partition=each.partition, error_code=code)
                    for each in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


def _metadata(request: metadata.MetadataRequest, version: int, code: int, _m: str) -> Response:
    return metadata.MetadataResponse(
        topics=[
            metadata.MetadataResponseTopic(
                name=topic.name, topic_id=topic.topic_id, error_code=code
            )
            for topic in request.topics or ()
        ],
        error_code=code if version >= 13 else 0,
    )


def _create_topics(request: topics.CreateTopicsRequest, _v: int, code: int, m: str) -> Response:
    return topics.CreateTopicsResponse(
        topics=[
            topics.CreatableTopicResult(name=topic.name, error_code=code, error_message=m)
            for topic in request.topics
        ]
    )


def _delete_topics(request: topics.DeleteTopicsRequest, v: int, code: int, m: str) -> Response:
    asked = (
        [(topic.name, topic.topic_id) for topic in request.topics]
        if v >= 6
        else [(name, topics.DeletableTopicResult().topic_id) for name in request.topic_names]
    )
    return topics.DeleteTopicsResponse(
        responses=[
            topics.DeletableTopicResult(
                name=name, topic_id=topic_id, error_code=code, error_message=m
            )
            for name, topic_id in asked
        ]
    )


def _delete_records(request: topics.DeleteRecordsRequest, _v: int, code: int, _m: str) -> Response:
    return topics.DeleteRecordsResponse(
        topics=[
            topics.DeleteRecordsTopicResult(
                name=topic.name,
                partitions=[
                    topics.DeleteRecordsPartitionResult(
                        partition_index=each.partition_index, low_watermark=-1, error_code=code
                    )
                    for each in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


def _create_partitions(
    request: topics.CreatePartitionsRequest, _v: int, code: int, m: str
) -> Response:
    return topics.CreatePartitionsResponse(
        results=[
            topics.CreatePartitionsTopicResult(name=topic.name, error_code=code, error_message=m)
            for topic in request.topics
        ]
    )


def _describe_configs(
    request: configs.DescribeConfigsRequest, _v: int, code: int, m: str
) -> Response:
    return configs.DescribeConfigsResponse(
        results=[
            configs.DescribeConfigsResult(
                resource_type=each.resource_type,
                resource_name=each.resource_name,
                error_code=code,
                error_message=m,
            )
            for each in request.resources
        ]
    )


def _alter_configs(request: configs.AlterConfigsRequest, _v: int, code: int, m: str) -> Response:
    return configs.AlterConfigsResponse(
        responses=[
            configs.AlterConfigsResourceResponse(
                resource_type=each.resource_type,
                resource_name=each.resource_name,
                error_code=code,
                error_message=m,
            )
            for each in request.resources
        ]
    )


def _incremental_alter_configs(
    request: configs.IncrementalAlterConfigsRequest, _v: int, code: int, m: str
) -> Response:
    return configs.IncrementalAlterConfigsResponse(
        responses=[
            configs.IncrementalAlterConfigsResourceResponse(
                resource_type=each.resource_type,
                resource_name=each.resource_name,
                error_code=code,
                error_message=m,
            )
            for each in request.resources
        ]
    )


def _find_coordinator(
    request: coordinators.FindCoordinatorRequest, version: int, code: int, m: str
) -> Response:
    if version < 4:
        return coordinators.FindCoordinatorResponse(
            error_code=code, error_message=m, node_id=-1, port=-1
        )
    return coordinators.FindCoordinatorResponse(
        coordinators=[
            coordinators.Coordinator(key=key, node_id=-1, port=-1, error_code=code, error_message=m)
            for key in request.coordinator_keys
        ]
    )


def _describe_topic_partitions(
    request: metadata.DescribeTopicPartitionsRequest, _v: int, code: int, _m: str
) -> Response:
    return metadata.DescribeTopicPartitionsResponse(
        topics=[
            metadata.DescribeTopicPartitionsResponseTopic(name=topic.name, error_code=code)
            for topic in request.topics
        ]
    )


def _elect_leaders(
    request: replicas.ElectLeadersRequest, version: int, code: int, m: str
) -> Response:
    return replicas.ElectLeadersResponse(
        error_code=code if version >= 1 else 0,
        replica_election_results=[
            replicas.ReplicaElectionResult(
                topic=topic.topic,
                partition_result=[
                    replicas.PartitionElectionResult(
                        partition_id=partition, error_code=code, error_message=m
                    )
                    for partition in topic.partitions
                ],
            )
            for topic in request.topic_partitions or ()
        ],
    )


def _alter_replica_log_dirs(
    request: replicas.AlterReplicaLogDirsRequest, _v: int, code: int, _m: str
) -> Response:
    return replicas.AlterReplicaLogDirsResponse(
        results=[
            replicas.AlterReplicaLogDirTopicResult(
                topic_name=topic.name,
                partitions=[
                    replicas.AlterReplicaLogDirPartitionResult(
                        partition_index=number, error_code=code
                    )
                    for number in topic.partitions
                ],
            )
            for directory in request.dirs
            for topic in directory.topics
        ]
    )


def _describe_log_dirs(
    _request: replicas.DescribeLogDirsRequest, version: int, code: int, _m: str
) -> Response:
    if version >= 3:
        return replicas.DescribeLogDirsResponse(error_code=code)
    return replicas.DescribeLogDirsResponse(
        results=[replicas.DescribeLogDirsResult(error_code=code)]
    )


def _flush_topics(request: flush.FlushTopicsRequest, _v: int, code: int, m: str) -> Response:
    return flush.FlushTopicsResponse(
        topics=[
            flush.FlushTopicResult(
                name=topic.name,
                partitions=[
                    flush.FlushPartitionResult(
                        partition_index=number, error_code=code, error_message=m
                    )
                    for number in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


def _adopt(request: adopt.AdoptRequest, _v: int, code: int, m: str) -> Response:
    return adopt.AdoptResponse(
        topics=[
            adopt.AdoptTopicResult(
                topic_id=topic.topic_id,
                partitions=[
                    adopt.AdoptPartitionResult(
                        partition_index=each.partition_index, error_code=code, error_message=m
                    )
                    for each in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


_SHAPES: Mapping[type[Message], Shape] = {
    produce.ProduceRequest: _produce,
    fetch.FetchRequest: _fetch,
    offsets.ListOffsetsRequest: _list_offsets,
    offsets.OffsetForLeaderEpochRequest: _leader_epochs,
    metadata.MetadataRequest: _metadata,
    metadata.DescribeTopicPartitionsRequest: _describe_topic_partitions,
    topics.CreateTopicsRequest: _create_topics,
    topics.DeleteTopicsRequest: _delete_topics,
    topics.DeleteRecordsRequest: _delete_records,
    topics.CreatePartitionsRequest: _create_partitions,
    configs.DescribeConfigsRequest: _describe_configs,
    configs.AlterConfigsRequest: _alter_configs,
    configs.IncrementalAlterConfigsRequest: _incremental_alter_configs,
    configs.ListConfigResourcesRequest: lambda _r, _v, code, _m: (
        configs.ListConfigResourcesResponse(error_code=code)
    ),
    coordinators.FindCoordinatorRequest: _find_coordinator,
    replicas.ElectLeadersRequest: _elect_leaders,
    replicas.AlterReplicaLogDirsRequest: _alter_replica_log_dirs,
    replicas.DescribeLogDirsRequest: _describe_log_dirs,
    flush.FlushTopicsRequest: _flush_topics,
    adopt.AdoptRequest: _adopt,
    api_versions.ApiVersionsRequest: lambda _r, _v, code, _m: api_versions.ApiVersionsResponse(
        error_code=code
    ),
    metadata.DescribeClusterRequest: lambda _r, _v, code, m: metadata.DescribeClusterResponse(
        error_code=code, error_message=m
    ),
    quorum.DescribeQuorumRequest: lambda _r, _v, code, m: quorum.DescribeQuorumResponse(
        error_code=code, error_message=m
    ),
    replicas.AlterPartitionReassignmentsRequest: lambda _r, _v, code, m: (
        replicas.AlterPartitionReassignmentsResponse(error_code=code, error_message=m)
    ),
    replicas.ListPartitionReassignmentsRequest: lambda _r, _v, code, m: (
        replicas.ListPartitionReassignmentsResponse(error_code=code, error_message=m)
    ),
    **GROUP_SHAPES,
    **TRANSACTION_SHAPES,
}
