"""OffsetCommit, TxnOffsetCommit, OffsetFetch, OffsetDelete and the expiry of offsets, on one
group."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TypeAlias

from tidelog.coordinator.decision import Token, Turn
from tidelog.coordinator.group.commands import (
    NO_GENERATION,
    NO_MEMBER,
    CommitOffsets,
    CommitTransactionalOffsets,
    DeleteOffsets,
    FetchOffsets,
    OffsetsReply,
    OffsetToCommit,
    PartitionErrors,
    Reply,
)
from tidelog.coordinator.group.records.log_records import (
    NO_TIMESTAMP,
    CommittedOffset,
    GroupRecord,
    OffsetPending,
    OffsetRemoved,
    OffsetStored,
)
from tidelog.coordinator.group.records.subscription import CONSUMER_PROTOCOL_TYPE
from tidelog.coordinator.group.settings import GroupSettings
from tidelog.coordinator.group.state.classic_group import ClassicGroup
from tidelog.coordinator.group.state.committed_offsets import CommittedOffsets
from tidelog.coordinator.group.state.consumer_group import ConsumerGroup
from tidelog.coordinator.group.state.states import GroupState
from tidelog.protocol.error_codes import ErrorCode

_TIME_MS_MAX = 2**63 - 1
"""The latest time that a record can hold."""
IsGone: TypeAlias = Callable[[str, CommittedOffset], bool]
"""Whether an offset, committed under a topic's name, is of a deleted topic."""
SINK_PROGRESS_TOPIC = "__consumer_offsets"
"""An offset in this topic is an exactly-once sink's progress (H7), which never expires.

Otherwise a query that pauses longer than the retention would commit its last batch again.
"""


def commit_error(group: ClassicGroup, commit: CommitOffsets) -> ErrorCode:
    """Why these offsets may not be committed; NONE if they may."""
    if group.state is GroupState.DEAD:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    if commit.generation < 0 and group.state is GroupState.EMPTY:
        # The commit comes from an administrator, or a consumer without group management.
        return ErrorCode.NONE
    is_anonymous = commit.member_id == NO_MEMBER and commit.instance_id is None
    if commit.generation < 0 and is_anonymous:
        return ErrorCode.UNKNOWN_MEMBER_ID
    error = group.identity_error(commit.member_id, commit.instance_id)
    if error is not ErrorCode.NONE:
        return error
    if commit.generation != group.generation:
        return ErrorCode.ILLEGAL_GENERATION
    if group.state is GroupState.COMPLETING_REBALANCE:
        return ErrorCode.REBALANCE_IN_PROGRESS
    return ErrorCode.NONE


def transactional_commit_error(
    group: ClassicGroup, commit: CommitTransactionalOffsets
) -> ErrorCode:
    """Why these offsets may not be part of the transaction; NONE if they may.

    Only a member that names itself can be fenced. The transaction continues during a rebalance.
    """
    if group.state is GroupState.DEAD:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    if commit.generation < 0 and group.state is GroupState.EMPTY:
        return ErrorCode.NONE
    if commit.generation < 0 and commit.member_id == NO_MEMBER and commit.instance_id is None:
        return ErrorCode.NONE
    error = group.identity_error(commit.member_id, commit.instance_id)
    if error is ErrorCode.NONE and commit.generation != group.generation:
        return ErrorCode.ILLEGAL_GENERATION
    return error


def consumer_commit_error(
    group: ConsumerGroup, commit: CommitOffsets | CommitTransactionalOffsets
) -> ErrorCode:
    """Why these offsets may not be committed to a consumer group; NONE if they may.

    Transactional commits are fenced with a code that their clients know.
    """
    is_transactional = isinstance(commit, CommitTransactionalOffsets)
    if commit.generation < 0 and not group.subscriptions:
        return ErrorCode.NONE
    is_anonymous = commit.member_id == NO_MEMBER and commit.instance_id is None
    if is_transactional and commit.generation < 0 and is_anonymous:
        return ErrorCode.NONE
    member = group.subscriptions.get(commit.member_id)
    if member is None:
        return ErrorCode.UNKNOWN_MEMBER_ID
    is_classic = is_transactional or member.classic is not None
    if isinstance(commit, CommitOffsets) and not (is_classic or commit.knows_missing_group):
        # Version 9 added both error codes.
        return ErrorCode.UNSUPPORTED_VERSION
    if commit.generation != group.current(commit.member_id).epoch:
        return ErrorCode.ILLEGAL_GENERATION if is_classic else ErrorCode.STALE_MEMBER_EPOCH
    return ErrorCode.NONE


def consumer_fetch_error(group: ConsumerGroup, fetch: FetchOffsets) -> ErrorCode:
    """Why the caller may not read a consumer group's offsets; NONE if it may."""
    if fetch.member_id is None and fetch.member_epoch < 0:
        return ErrorCode.NONE
    if fetch.member_id is None or fetch.member_id not in group.subscriptions:
        return ErrorCode.UNKNOWN_MEMBER_ID
    if fetch.member_epoch != group.current(fetch.member_id).epoch:
        return ErrorCode.STALE_MEMBER_EPOCH
    return ErrorCode.NONE


def missing_group_error(commit: CommitOffsets | CommitTransactionalOffsets) -> ErrorCode:
    """Why a commit may not create the missing group; NONE if it may."""
    if commit.generation <= NO_GENERATION:
        return ErrorCode.NONE
    if isinstance(commit, CommitOffsets) and commit.knows_missing_group:
        return ErrorCode.GROUP_ID_NOT_FOUND
    return ErrorCode.ILLEGAL_GENERATION


def commit_offsets(
    commit: CommitOffsets,
    token: Token,
    settings: GroupSettings,
    offsets: CommittedOffsets,
    turn: Turn[GroupRecord, Reply],
) -> None:
    """Store the offsets of an allowed commit, except those with too much metadata.

    Those that yield to a later commit are not stored and are no error. A commit that may yield
    counts as of just before `unless_since_ms`: a later one that waited too must not yield to it.
    """
    now_ms = turn.now.time_ms
    committed_ms = now_ms if commit.unless_since_ms is None else commit.unless_since_ms - 1
    expires_ms = NO_TIMESTAMP
    if commit.retention_ms is not None:
        expires_ms = min(now_ms + commit.retention_ms, _TIME_MS_MAX)
    results = []
    for each in commit.offsets:
        error = _metadata_error(each, settings)
        if error is ErrorCode.NONE and not _yields(commit, each, offsets):
            committed = _committed(each, committed_ms, expires_ms)
            turn.persist(OffsetStored(commit.group_id, each.topic, each.partition, committed))
        results.append((each.topic, each.partition, error))
    turn.reply(token, PartitionErrors(ErrorCode.NONE, results, now_ms))


def _yields(commit: CommitOffsets, offset: OffsetToCommit, offsets: CommittedOffsets) -> bool:
    """Whether the partition keeps the offset of a later commit."""
    if commit.unless_since_ms is None:
        return False
    found = offsets.get(commit.group_id, offset.topic, offset.partition)
    return (
        found is not None
        and found.topic_id == offset.topic_id
        and found.commit_timestamp_ms >= commit.unless_since_ms
    )


def commit_transactional_offsets(
    commit: CommitTransactionalOffsets,
    token: Token,
    settings: GroupSettings,
    turn: Turn[GroupRecord, Reply],
) -> None:
    """Store the offsets of an allowed transactional commit as pending.

    Those with too much metadata are refused.
    """
    producer = commit.producer
    results = []
    for each in commit.offsets:
        error = _metadata_error(each, settings)
        if error is ErrorCode.NONE:
            committed = _committed(each, turn.now.time_ms)
            turn.producer = producer
            turn.persist(
                OffsetPending(
                    producer.producer_id, commit.group_id, each.topic, each.partition, committed
                )
            )
        results.append((each.topic, each.partition, error))
    turn.reply(token, PartitionErrors(ErrorCode.NONE, results))


def _metadata_error(offset: OffsetToCommit, settings: GroupSettings) -> ErrorCode:
    if len(offset.metadata) > settings.offset_metadata_characters_max:
        return ErrorCode.OFFSET_METADATA_TOO_LARGE
    return ErrorCode.NONE


def _committed(
    offset: OffsetToCommit, now_ms: int, expires_ms: int = NO_TIMESTAMP
) -> CommittedOffset:
    return CommittedOffset(
        offset.offset, offset.leader_epoch, offset.metadata, now_ms, expires_ms, offset.topic_id
    )


def fetch_offsets(
    fetch: FetchOffsets, offsets: CommittedOffsets, is_gone: IsGone | None
) -> OffsetsReply:
    """A group's committed offsets; a group that does not exist has none.

    `is_gone`: whether an offset is of a deleted topic and about to be removed; None if no such
    offset is left.

    A request for all stable offsets also gets partitions with only pending ones. Otherwise the
    client would overlook a partition's first commit.
    """
    found = offsets.of_group(fetch.group_id)
    if is_gone is not None:
        found = _without_gone(found, is_gone)
    unstable = frozenset(offsets.pending_places(fetch.group_id) if fetch.require_stable else ())
    topics: dict[str, dict[int, CommittedOffset | None]]
    if fetch.topics is None:
        # Copies cost little, and later commits must not appear in the answer.
        topics = {topic: {**each} for topic, each in found.items()}
        for topic, number in unstable:
            topics.setdefault(topic, {})[number] = None
    else:
        topics = {
            topic: {
                number: None if (topic, number) in unstable else found.get(topic, {}).get(number)
                for number in numbers
            }
            for topic, numbers in fetch.topics.items()
        }
    return OffsetsReply(ErrorCode.NONE, topics, unstable)


def _without_gone(
    found: Mapping[str, Mapping[int, CommittedOffset]], is_gone: IsGone
) -> Mapping[str, Mapping[int, CommittedOffset]]:
    kept = {
        topic: {
            number: committed for number, committed in each.items() if not is_gone(topic, committed)
        }
        for topic, each in found.items()
    }
    return {topic: each for topic, each in kept.items() if each}


def delete_offsets(
    group: ClassicGroup | ConsumerGroup,
    delete: DeleteOffsets,
    token: Token,
    offsets: CommittedOffsets,
    turn: Turn[GroupRecord, Reply],
) -> None:
    """Delete offsets in topics that no member consumes."""
    is_opaque = isinstance(group, ClassicGroup) and group.protocol_type != CONSUMER_PROTOCOL_TYPE
    if is_opaque and group.state is not GroupState.EMPTY:
        # The coordinator cannot read the subscriptions of its members.
        turn.reply(token, PartitionErrors(ErrorCode.NON_EMPTY_GROUP))
        return
    results = []
    consumed = {topic: group.may_consume(topic) for topic, _ in delete.partitions}
    for topic, partition in delete.partitions:
        error = ErrorCode.NONE
        if consumed[topic]:
            error = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
        elif offsets.holds(delete.group_id, topic, partition):
            turn.persist(OffsetRemoved(delete.group_id, topic, partition))
        results.append((topic, partition, error))
    turn.reply(token, PartitionErrors(ErrorCode.NONE, results))


def expired_offsets(
    group: ClassicGroup | ConsumerGroup,
    offsets: CommittedOffsets,
    settings: GroupSettings,
    now_ms: int,
) -> Iterable[OffsetRemoved]:
    """The records that remove a group's expired offsets (KIP-211, KIP-496).

    - A classic group without members keeps its offsets for the retention after it became empty. One
      that never had members (it only holds offsets) keeps them from their commit on.
    - A consumer group without members keeps them from their commit on, as in Kafka.
    - A group with members keeps the offsets of subscribed topics; others expire from their commit
      on.
    """
    since_ms: int | None = None
    keep: frozenset[str] = frozenset()
    if isinstance(group, ConsumerGroup):
        found = offsets.of_group(group.group_id)
        keep = frozenset([topic for topic in found if group.may_consume(topic)])
    elif group.protocol_type is not None:
        if group.state is GroupState.EMPTY:
            if group.state_timestamp_ms != NO_TIMESTAMP:
                since_ms = group.state_timestamp_ms
        else:
            subscribed = group.subscriptions()
            if group.state is not GroupState.STABLE or subscribed is None:
                return ()
            keep = subscribed
    retention_ms = settings.offsets_retention_ms
    keep |= {SINK_PROGRESS_TOPIC}
    return offsets.expired(group.group_id, now_ms, retention_ms, since_ms=since_ms, keep=keep)
