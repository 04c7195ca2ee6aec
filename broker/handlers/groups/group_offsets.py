"""OffsetCommit (8), OffsetFetch (9) and OffsetDelete (47): committed offsets of groups."""

from __future__ import annotations

from collections.abc import Awaitable, Iterator, Sequence
from functools import partial
from typing import Protocol

from tidelog.broker.handlers.groups.group_requests import ask, reply_of
from tidelog.broker.handlers.request_context import RequestContext
from tidelog.broker.handlers.services import GroupServices
from tidelog.coordinator.cluster.state.state import ClusterState
from tidelog.coordinator.group.commands import (
    CommitOffsets,
    DeleteOffsets,
    FetchOffsets,
    OffsetsReply,
    OffsetToCommit,
    PartitionErrors,
    Reply,
)
from tidelog.coordinator.group.records.log_records import NO_LEADER_EPOCH, CommittedOffset
from tidelog.coordinator.runtime import CoordinatorRefused
from tidelog.protocol.error_codes import ErrorCode
from tidelog.protocol.made_list import made_list
from tidelog.protocol.schemas.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
)

NO_OFFSET = -1
NO_RETENTION = -1
GROUP_BATCHES_FROM = 8
GROUP_ERROR_FROM = 2
MISSING_GROUP_FROM = 9
SLICE_GROUPS = 4
"""Groups whose offsets a slice looks up."""


class RequestedOffset(Protocol):
    """The fields that all requests have for the offset of a partition."""

    partition_index: int
    committed_offset: int
    committed_leader_epoch: int
    committed_metadata: str | None


class RequestedTopic(Protocol):
    """The offsets of one topic."""

    name: str

    @property
    def partitions(self) -> Sequence[RequestedOffset]: ...


class RequestedOffsets:
    """The offsets that a request is to commit. Only those of existing partitions are."""

    def __init__(self, state: ClusterState, topics: Sequence[RequestedTopic]) -> None:
        self._topics = topics
        self._unknown = {
            (topic.name, each.partition_index)
            for topic in topics
            for each in topic.partitions
            if not state.has_partition(topic.name, each.partition_index)
        }
        found = map(state.topic_named, [each.name for each in topics])
        ids = {topic.name: topic.topic_id for topic in found if topic is not None}
        self.existing = [
            OffsetToCommit(
                topic.name,
                each.partition_index,
                each.committed_offset,
                each.committed_leader_epoch,
                each.committed_metadata or "",
                ids[topic.name],
            )
            for topic in topics
            for each in topic.partitions
            if (topic.name, each.partition_index) not in self._unknown
        ]

    @property
    def are_known(self) -> bool:
        """Whether all of the partitions exist by this broker's view."""
        return not self._unknown

    def codes(self, reply: PartitionErrors) -> Iterator[tuple[str, list[tuple[int, ErrorCode]]]]:
        """For each topic its partitions and their error codes, in the order of the request."""
        codes = dict.fromkeys(self._unknown, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        codes = {**_codes(reply), **codes}
        for topic in self._topics:
            numbers = [each.partition_index for each in topic.partitions]
            yield (
                topic.name,
                [(each, codes.get((topic.name, each), reply.error)) for each in numbers],
            )


def offset_commit(
    broker: GroupServices, request: OffsetCommitRequest, context: RequestContext
) -> Awaitable[OffsetCommitResponse]:
    """Store offsets of existing partitions; answered when durable."""
    broker.coordinators.groups.note_use(request.group_id, context.client_id)
    offsets = RequestedOffsets(broker.metadata.state, request.topics)
    asked = _ask_to_commit(broker, request, context, offsets.existing)
    if offsets.are_known:
        return _committed(offsets, asked)
    return _commit_the_others(broker, request, context, offsets, asked)


async def _commit_the_others(
    broker: GroupServices,
    request: OffsetCommitRequest,
    context: RequestContext,
    offsets: RequestedOffsets,
    asked: Awaitable[Reply],
) -> OffsetCommitResponse:
    """Commit the others when the view is renewed: another broker may have created them.

    The known ones are committed already, in the order of the connection's requests. A later commit
    may have found the others known meanwhile: its offsets stay.
    """
    reply = await _commit_reply(asked)
    await broker.renewal.renewed()
    renewed = RequestedOffsets(broker.metadata.state, request.topics)
    known = {(each.topic, each.partition) for each in offsets.existing}
    new = [each for each in renewed.existing if (each.topic, each.partition) not in known]
    if new and reply.error is ErrorCode.NONE:
        asked = _ask_to_commit(broker, request, context, new, unless_since_ms=reply.decided_ms)
        second = await _commit_reply(asked)
        codes = _codes(second)
        told = [
            (each.topic, each.partition, codes.get((each.topic, each.partition), second.error))
            for each in new
        ]
        reply = PartitionErrors(ErrorCode.NONE, [*reply.partitions, *told])
    return _commit_response(renewed, reply)


def _ask_to_commit(
    broker: GroupServices,
    request: OffsetCommitRequest,
    context: RequestContext,
    offsets: Sequence[OffsetToCommit],
    *,
    unless_since_ms: int | None = None,
) -> Awaitable[Reply]:
    retention_ms = request.retention_time_ms
    command = CommitOffsets(
        group_id=request.group_id,
        generation=request.generation_id_or_member_epoch,
        member_id=request.member_id,
        instance_id=request.group_instance_id,
        retention_ms=None if retention_ms == NO_RETENTION else retention_ms,
        knows_missing_group=context.api_version >= MISSING_GROUP_FROM,
        offsets=offsets,
        unless_since_ms=unless_since_ms,
    )
    return ask(broker, request.group_id, command)


async def _committed(offsets: RequestedOffsets, asked: Awaitable[Reply]) -> OffsetCommitResponse:
    return _commit_response(offsets, await _commit_reply(asked))


async def _commit_reply(asked: Awaitable[Reply]) -> PartitionErrors:
    try:
        return await reply_of(PartitionErrors, asked)
    except CoordinatorRefused as error:
        return PartitionErrors(error.code)


def _commit_response(offsets: RequestedOffsets, reply: PartitionErrors) -> OffsetCommitResponse:
    return OffsetCommitResponse(
        topics=[
            OffsetCommitResponseTopic(
                name=name,
                partitions=[
                    OffsetCommitResponsePartition(partition_index=number, error_code=code)
                    for number, code in codes
                ],
            )
            for name, codes in offsets.codes(reply)
        ]
    )


def _codes(reply: PartitionErrors) -> dict[tuple[str, int], ErrorCode]:
    return {(topic, partition): error for topic, partition, error in reply.partitions}


async def offset_fetch(
    broker: GroupServices, request: OffsetFetchRequest, context: RequestContext
) -> OffsetFetchResponse:
    """Committed offsets, of several groups from version 8 on."""
    version = context.api_version
    if version >= GROUP_BATCHES_FROM:
        stable = request.require_stable
        # A group named more than once is answered once.
        groups = {each.group_id: each for each in request.groups}
        asked = await broker.turns.list_of(
            ((each, _ask_for_offsets(broker, each, stable)) for each in groups.values()),
            SLICE_GROUPS,
        )
        return OffsetFetchResponse(groups=[await _group(each, reply) for each, reply in asked])
    topics = None
    if request.topics is not None:
        topics = [
            OffsetFetchRequestTopics(name=each.name, partition_indexes=each.partition_indexes)
            for each in request.topics
        ]
    group = OffsetFetchRequestGroup(group_id=request.group_id, topics=topics)
    asked_one = _ask_for_offsets(broker, group, request.require_stable)
    return await _only_group(group, asked_one, version)


def _ask_for_offsets(
    broker: GroupServices, group: OffsetFetchRequestGroup, require_stable: bool
) -> Awaitable[Reply]:
    topics: dict[str, list[int]] | None = None
    if group.topics is not None:
        topics = {}
        for each in group.topics:
            # A request may name a topic twice, with other partitions.
            topics.setdefault(each.name, []).extend(each.partition_indexes)
    command = FetchOffsets(
        group.group_id, topics, require_stable, group.member_id, group.member_epoch
    )
    return ask(broker, group.group_id, command)


async def _group(
    group: OffsetFetchRequestGroup, asked: Awaitable[Reply]
) -> OffsetFetchResponseGroup:
    try:
        reply = await reply_of(OffsetsReply, asked)
    except CoordinatorRefused as error:
        return OffsetFetchResponseGroup(group_id=group.group_id, error_code=error.code)
    return OffsetFetchResponseGroup(
        group_id=group.group_id,
        error_code=reply.error,
        topics=[
            OffsetFetchResponseTopics(
                name=name,
                partitions=made_list(tuple(partitions.items()), partial(_fetched, reply, name)),
            )
            for name, partitions in reply.topics.items()
        ],
    )


def _fetched(
    reply: OffsetsReply, topic: str, of_partition: tuple[int, CommittedOffset | None]
) -> OffsetFetchResponsePartitions:
    number, found = of_partition
    return OffsetFetchResponsePartitions(
        partition_index=number,
        committed_offset=found.offset if found else NO_OFFSET,
        committed_leader_epoch=found.leader_epoch if found else NO_LEADER_EPOCH,
        metadata=found.metadata if found else "",
        error_code=_stability(reply, topic, number),
    )


async def _only_group(
    group: OffsetFetchRequestGroup, asked: Awaitable[Reply], version: int
) -> OffsetFetchResponse:
    try:
        reply = await reply_of(OffsetsReply, asked)
    except CoordinatorRefused as refusal:
        topics = {}
        if version < GROUP_ERROR_FROM:
            # This version has no other place for the error.
            topics = {
                each.name: dict.fromkeys(each.partition_indexes) for each in group.topics or ()
            }
        reply = OffsetsReply(refusal.code, topics)
    return OffsetFetchResponse(
        error_code=reply.error,
        topics=[
            OffsetFetchResponseTopic(
                name=name,
                partitions=made_list(
                    tuple(partitions.items()), partial(_fetched_by_only, reply, name)
                ),
            )
            for name, partitions in reply.topics.items()
        ],
    )


def _fetched_by_only(
    reply: OffsetsReply, topic: str, of_partition: tuple[int, CommittedOffset | None]
) -> OffsetFetchResponsePartition:
    fetched = _fetched(reply, topic, of_partition)
    return OffsetFetchResponsePartition(
        partition_index=fetched.partition_index,
        committed_offset=fetched.committed_offset,
        committed_leader_epoch=fetched.committed_leader_epoch,
        metadata=fetched.metadata,
        error_code=reply.error or fetched.error_code,
    )


def _stability(reply: OffsetsReply, topic: str, partition: int) -> ErrorCode:
    is_unstable = (topic, partition) in reply.unstable
    return ErrorCode.UNSTABLE_OFFSET_COMMIT if is_unstable else ErrorCode.NONE


def offset_delete(
    broker: GroupServices, request: OffsetDeleteRequest, context: RequestContext
) -> Awaitable[OffsetDeleteResponse]:
    """Delete committed offsets of partitions that no member consumes."""
    state = broker.metadata.state
    partitions = []
    for asked in request.topics:
        topic = state.topic_named(asked.name)
        count = 0 if topic is None else topic.partition_count
        partitions += [
            (asked.name, each.partition_index)
            for each in asked.partitions
            if 0 <= each.partition_index < count
        ]
    command = DeleteOffsets(request.group_id, partitions)
    return _offsets_deleted(request, ask(broker, request.group_id, command))


async def _offsets_deleted(
    request: OffsetDeleteRequest, asked: Awaitable[Reply]
) -> OffsetDeleteResponse:
    try:
        reply = await reply_of(PartitionErrors, asked)
    except CoordinatorRefused as error:
        reply = PartitionErrors(error.code)
    if reply.error is not ErrorCode.NONE:
        return OffsetDeleteResponse(error_code=reply.error)
    codes = _codes(reply)
    return OffsetDeleteResponse(
        topics=[
            OffsetDeleteResponseTopic(
                name=topic.name,
                partitions=[
                    OffsetDeleteResponsePartition(
                        partition_index=each.partition_index,
                        error_code=codes.get(
                            (topic.name, each.partition_index),
                            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                        ),
                    )
                    for each in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )
