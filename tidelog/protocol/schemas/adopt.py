"""Adopt (20001), Tidelog's own: staged batches become part of a transaction."""

from __future__ import annotations

from uuid import UUID

from tidelog.protocol.fields import array, int16, int32, int64, string, uuid
from tidelog.protocol.message import Request, Response, Struct


class AdoptPartition(Struct):
    """A partition with its staged objects, in the order in which it is to have them."""

    partition_index: int = int32()
    staged_ids: list[UUID] = array(uuid)


class AdoptTopic(Struct):
    """Partitions of one topic, which the broker that is asked must lead."""

    topic_id: UUID = uuid()
    partitions: list[AdoptPartition] = array(AdoptPartition)


class AdoptRequest(Request["AdoptResponse"], api_key=20_001, versions=(0, 0), flexible=0):
    """Answered when what was adopted is durable: of each partition all or nothing."""

    transactional_id: str = string()
    producer_id: int = int64()
    producer_epoch: int = int16()
    topics: list[AdoptTopic] = array(AdoptTopic)


class AdoptPartitionResult(Struct):
    """What became of one partition. `base_offset`: of the first record that this request added, -1
    where it added none because the transaction had all of it already."""

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
