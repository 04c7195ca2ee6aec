"""Adopt (20001), Tidelog's own: staged batches become part of a transaction."""

from __future__ import annotations

from uuid import UUID

from tidelog.protocol.fields import array, int16, int32, int64, string, uuid
from tidelog.protocol.message import Request, Response, Struct


class AdoptPartition(Struct):
    """A partition with its staged objects, in log order."""

    partition_index: int = int32()
    staged_ids: list[UUID] = array(uuid)


class AdoptTopic(Struct):
    """Partitions of one topic. The receiving broker must lead them."""

    topic_id: UUID = uuid()
    partitions: list[AdoptPartition] = array(AdoptPartition)


class AdoptRequest(Request["AdoptResponse"], api_key=20_001, versions=(0, 0), flexible=0):
    """Adopt staged batches, for each partition all or none. The broker answers once they are
    durable.
    """

    transactional_id: str = string()
    producer_id: int = int64()
    producer_epoch: int = int16()
    topics: list[AdoptTopic] = array(AdoptTopic)


class AdoptPartitionResult(Struct):
    """The result for one partition.

    `base_offset` is that of the first added record. It is -1 if the transaction already had all of
    them.
    """

    partition_index: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable="0+", default=None)
    base_offset: int = int64(default=-1)
    record_count: int = int64(default=0)


class AdoptTopicResult(Struct):
    """The partitions of one topic."""

    topic_id: UUID = uuid()
    partitions: list[AdoptPartitionResult] = array(AdoptPartitionResult)


class AdoptResponse(Response, api_key=20_001, versions=(0, 0), flexible=0):
    """Results by partition."""

    topics: list[AdoptTopicResult] = array(AdoptTopicResult)
