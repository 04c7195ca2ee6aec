"""An administrator's requests about topics and their settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tidelog.client.errors import ReadRefused, RequestRefused, check, check_read, no_topic
from tidelog.client.metadata import TopicMetadata, topic_metadata
from tidelog.client.pool import Client
from tidelog.protocol.error_codes import ErrorCode
from tidelog.protocol.schemas.cluster.configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    IncrementalAlterableConfig,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
)
from tidelog.protocol.schemas.cluster.metadata import (
    DescribeClusterRequest,
    DescribeClusterResponse,
)
from tidelog.protocol.schemas.cluster.replicas import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from tidelog.protocol.schemas.cluster.topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    DeleteTopicState,
)
from tidelog.protocol.schemas.own.drains import BrokerDrain, DrainBrokersRequest
from tidelog.protocol.schemas.own.features import (
    NO_LEVEL,
    ClusterFeaturesRequest,
    ClusterFeaturesResponse,
)
from tidelog.protocol.schemas.own.rebalance import BrokerRebalance, RebalanceBrokersRequest

_TOPIC_RESOURCE = 2
_BROKER_RESOURCE = 4
_SET, _DELETE = 0, 1
"""IncrementalAlterConfigs' operations."""


@dataclass(frozen=True, slots=True)
class NewTopic:
    """A topic to create; -1 means the broker's default. A setting of None is sent unchanged."""

    name: str
    partitions: int = -1
    replication_factor: int = -1
    configs: Mapping[str, str | None] = field(default_factory=dict)


async def create_topics(
    client: Client, topics: Sequence[NewTopic], *, validate_only: bool = False
) -> dict[str, RequestRefused | None]:
    """Create topics, or only check the requests; returns each topic's refusal, or None, by name.

    Raises:
        RequestFailed: no answer; `outcome` tells whether the topics may exist.
    """
    request = CreateTopicsRequest(
        topics=[
            CreatableTopic(
                name=topic.name,
                num_partitions=topic.partitions,
                replication_factor=topic.replication_factor,
                configs=[
                    CreatableTopicConfig(name=name, value=value)
                    for name, value in topic.configs.items()
                ],
            )
            for topic in topics
        ],
        timeout_ms=client.settings.request_timeout_ms,
        validate_only=validate_only,
    )
    response = await client.request_any(request)
    for result in response.topics:
        client.forget(result.name)
    return {
        result.name: _refusal(f"topic {result.name}", result.error_code, result.error_message)
        for result in response.topics
    }


async def delete_topics(client: Client, names: Sequence[str]) -> dict[str, RequestRefused | None]:
    """Delete topics; returns each topic's refusal, or None, by name.

    Raises:
        RequestFailed: no answer; `outcome` tells whether the topics may be deleted.
    """
    request = DeleteTopicsRequest(
        topics=[DeleteTopicState(name=name) for name in names],
        topic_names=list(names),
        timeout_ms=client.settings.request_timeout_ms,
    )
    response = await client.request_any(request)
    refusals: dict[str, RequestRefused | None] = {}
    for result in response.responses:
        name = result.name or ""
        client.forget(name)
        refusals[name] = _refusal(f"topic {name}", result.error_code, result.error_message)
    return refusals


async def list_topics(client: Client) -> list[TopicMetadata]:
    """All topics, by name.

    Raises:
        RequestFailed: no answer.
    """
    response = await client.metadata(None)
    topics = [topic_metadata(topic) for topic in response.topics if topic.error_code == 0]
    return sorted(topics, key=lambda topic: topic.name)


async def describe_topics(
    client: Client, names: Sequence[str]
) -> dict[str, TopicMetadata | RequestRefused]:
    """The topics' current metadata, or their refusals, by name.

    Raises:
        RequestFailed: no answer.
    """
    response = await client.metadata(names)
    return {
        topic.name or "": no_topic(topic.name or "", topic.error_code)
        if topic.error_code
        else topic_metadata(topic)
        for topic in response.topics
    }


@dataclass(frozen=True, slots=True)
class ConfigHolder:
    """The owner of settings: a topic, a broker, or all brokers together."""

    kind: int
    """Kafka's number of the kind."""
    name: str
    subject: str
    """In messages."""
    broker_id: int | None = None
    """The broker that knows its own settings."""


def topic_holder(name: str) -> ConfigHolder:
    """A topic."""
    return ConfigHolder(_TOPIC_RESOURCE, name, f"topic {name}")


def broker_holder(broker_id: int | None) -> ConfigHolder:
    """A broker, or with None all of them."""
    if broker_id is None:
        return ConfigHolder(_BROKER_RESOURCE, "", "all brokers")
    return ConfigHolder(_BROKER_RESOURCE, str(broker_id), f"broker {broker_id}", broker_id)


async def topic_configs(client: Client, name: str) -> list[DescribeConfigsResourceResult]:
    """The settings of a topic, with defaults.

    Raises:
        RequestRefused: the topic does not exist.
        RequestFailed: no answer.
    """
    return await holder_configs(client, topic_holder(name))


async def holder_configs(
    client: Client, holder: ConfigHolder
) -> list[DescribeConfigsResourceResult]:
    """Settings with defaults.

    Raises:
        RequestRefused: there is no such topic or broker.
        RequestFailed: no answer.
    """
    resource = DescribeConfigsResource(
        resource_type=holder.kind, resource_name=holder.name, configuration_keys=None
    )
    request = DescribeConfigsRequest(resources=[resource])
    if holder.broker_id is None:
        response = await client.request_any(request)
    else:
        response = await client.request_broker(holder.broker_id, request)
    for result in response.results:
        if result.error_code:
            if holder.kind == _TOPIC_RESOURCE:
                raise no_topic(holder.name, result.error_code, result.error_message)
            raise ReadRefused(holder.subject, result.error_code, result.error_message)
        return result.configs
    raise ReadRefused(holder.subject, ErrorCode.UNKNOWN_SERVER_ERROR, "the answer is empty")


async def alter_configs(
    client: Client, holder: ConfigHolder, changes: Mapping[str, str | None]
) -> None:
    """Change some settings, all or none of them. None: back to the default.

    Raises:
        RequestRefused: a setting or value is wrong, or there is no such topic or broker.
        RequestFailed: no answer; the settings may be changed.
    """
    resource = IncrementalAlterConfigsResource(
        resource_type=holder.kind,
        resource_name=holder.name,
        configs=[
            IncrementalAlterableConfig(
                name=name, config_operation=_DELETE if value is None else _SET, value=value
            )
            for name, value in changes.items()
        ],
    )
    request = IncrementalAlterConfigsRequest(resources=[resource])
    if holder.broker_id is None:
        response = await client.request_any(request)
    else:
        response = await client.request_broker(holder.broker_id, request)
    for result in response.responses:
        check(holder.subject, result.error_code, result.error_message)


async def add_partitions(client: Client, topic: str, count: int) -> None:
    """Raise a topic's number of partitions to `count`.

    Raises:
        RequestRefused: there is no such topic, or it has as many already.
        RequestFailed: no answer; the topic may have the partitions.
    """
    request = CreatePartitionsRequest(
        topics=[CreatePartitionsTopic(name=topic, count=count, assignments=None)],
        timeout_ms=client.settings.request_timeout_ms,
    )
    response = await client.request_any(request)
    client.forget(topic)
    for result in response.results:
        check(f"topic {topic}", result.error_code, result.error_message)


async def describe_cluster(client: Client) -> DescribeClusterResponse:
    """The brokers and the cluster id.

    Raises:
        RequestRefused: the broker refuses.
        RequestFailed: no answer.
    """
    response = await client.request_any(DescribeClusterRequest())
    check_read("cluster", response.error_code, response.error_message)
    return response


async def move_partition(client: Client, topic: str, partition: int, broker_id: int) -> None:
    """Give a partition to another broker.

    Raises:
        RequestRefused: there is no such partition or no such broker, or it cannot be moved now.
        RequestFailed: no answer; the partition may have moved.
    """
    wanted = ReassignablePartition(partition_index=partition, replicas=[broker_id])
    request = AlterPartitionReassignmentsRequest(
        topics=[ReassignableTopic(name=topic, partitions=[wanted])],
        timeout_ms=client.settings.request_timeout_ms,
    )
    response = await client.request_any(request)
    client.forget(topic)
    subject = f"partition {topic}-{partition}"
    for result in (each for answered in response.responses for each in answered.partitions):
        refused = _refusal(subject, result.error_code, result.error_message)
        if refused is not None:
            raise refused
        return
    raise ReadRefused(subject, ErrorCode.UNKNOWN_SERVER_ERROR, "the answer is empty")


async def drain_broker(client: Client, broker_id: int, *, draining: bool) -> None:
    """Begin or end the drain of a broker.

    Raises:
        RequestRefused: no live broker has the id, or no other one could take its partitions.
        RequestFailed: no answer; the request may be repeated.
    """
    request = DrainBrokersRequest(brokers=[BrokerDrain(broker_id=broker_id, draining=draining)])
    subject = f"broker {broker_id}"
    response = await client.request_any(request)
    check(subject, response.error_code, response.error_message)
    for result in response.brokers:
        check(subject, result.error_code, result.error_message)


async def draining_brokers(client: Client) -> frozenset[int]:
    """The ids of the brokers that are being drained.

    Raises:
        RequestRefused: the broker refuses.
        RequestFailed: no answer.
    """
    response = await client.request_any(DrainBrokersRequest(brokers=[]))
    check_read("cluster", response.error_code, response.error_message)
    return frozenset(response.draining)


async def cluster_features(client: Client, *, raise_to: int = NO_LEVEL) -> ClusterFeaturesResponse:
    """The versions of brokers and the cluster's level, after raising it if `raise_to` is given.

    Raises:
        RequestRefused: a live broker's release is too old for the level.
        RequestFailed: no answer; the request may be repeated.
    """
    response = await client.request_any(ClusterFeaturesRequest(raise_to=raise_to))
    check("cluster", response.error_code, response.error_message)
    return response


async def rebalance_brokers(client: Client) -> list[BrokerRebalance]:
    """Let every broker give away the partitions above its fair share; how many each one gave.

    Raises:
        RequestRefused: the broker refuses.
        RequestFailed: no answer; partitions may have moved. The request may be repeated.
    """
    response = await client.request_any(RebalanceBrokersRequest())
    check("cluster", response.error_code, response.error_message)
    return response.brokers


def _refusal(subject: str, code: int, message: str | None = None) -> RequestRefused | None:
    return None if code == ErrorCode.NONE else RequestRefused(subject, code, message)
