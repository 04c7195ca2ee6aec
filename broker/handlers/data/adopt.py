"""Adopt (20001), Tidelog's own: staged batches become part of a transaction."""

from __future__ import annotations

import asyncio

from tidelog.broker.append.adopter import AdoptFailed
from tidelog.broker.coordinate.transaction_admission import Wanted
from tidelog.broker.handlers.request_context import RequestContext
from tidelog.broker.handlers.services import DataServices
from tidelog.broker.partitions.partitions import PartitionError
from tidelog.broker.topics.topic_creation import INTERNAL_TOPICS
from tidelog.coordinator.transaction.commands import Identity
from tidelog.coordinator.transaction.transaction import OWN_EPOCHS_FROM
from tidelog.identifiers import ProducerEpoch, ProducerId, TopicId
from tidelog.protocol.error_codes import ErrorCode
from tidelog.protocol.schemas.own.adopt import (
    AdoptPartition,
    AdoptPartitionResult,
    AdoptRequest,
    AdoptResponse,
    AdoptTopicResult,
)
from tidelog.security.acl_codes import AclOperation, ResourceType

_REFUSALS_BY_STATE = frozenset({ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.INVALID_TXN_STATE})
"""Refusals that reveal the partition's state (`may_refuse_by_state`)."""


async def adopt(
    broker: DataServices, request: AdoptRequest, context: RequestContext
) -> AdoptResponse:
    """Adopt in each partition all of its staged objects or none; answered when durable."""
    identity = Identity(ProducerId(request.producer_id), ProducerEpoch(request.producer_epoch))
    # Second version only: with the first, a late request could begin the next transaction.
    wanted = Wanted(request.transactional_id, identity, OWN_EPOCHS_FROM)
    topics = []
    for topic in request.topics:
        results = await asyncio.gather(
            *(_adopted(broker, wanted, topic.topic_id, each, context) for each in topic.partitions)
        )
        topics.append(AdoptTopicResult(topic_id=topic.topic_id, partitions=results))
    return AdoptResponse(topics=topics)


async def _adopted(
    broker: DataServices,
    wanted: Wanted,
    topic_id: TopicId,
    asked: AdoptPartition,
    context: RequestContext,
) -> AdoptPartitionResult:
    result = AdoptPartitionResult(partition_index=asked.partition_index)
    try:
        partition = broker.partitions.identified(topic_id, asked.partition_index)
        if context.access is not None and not context.access.may(
            AclOperation.WRITE, ResourceType.TOPIC, partition.topic_name
        ):
            # The guard did not know the topic: it was created while this request waited.
            raise PartitionError(
                ErrorCode.TOPIC_AUTHORIZATION_FAILED, "the client may not write to the topic"
            )
        if partition.topic_name in INTERNAL_TOPICS:
            raise PartitionError(
                ErrorCode.INVALID_TOPIC_EXCEPTION,
                f"{partition.topic_name} is an internal topic; only brokers write to it",
            )
        found = await broker.adopter.adopt(partition, wanted, asked.staged_ids)
    except PartitionError as error:
        result.error_code, result.error_message = error.code, str(error)
        return result
    if isinstance(found, AdoptFailed):
        result.error_code, result.error_message = found
        if found.code in _REFUSALS_BY_STATE and not await broker.may_refuse_by_state():
            result.error_code = ErrorCode.NOT_LEADER_OR_FOLLOWER
            result.error_message = "another broker may lead the partition; nothing was adopted"
        return result
    result.base_offset, result.record_count = found
    return result
