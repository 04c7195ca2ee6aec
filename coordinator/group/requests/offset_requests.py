"""Routes OffsetCommit, TxnOffsetCommit, OffsetFetch and OffsetDelete to groups of either type."""

from __future__ import annotations

from tidelog.coordinator.decision import Token
from tidelog.coordinator.group.commands import (
    CommitOffsets,
    CommitTransactionalOffsets,
    DeleteOffsets,
    FetchOffsets,
    OffsetsReply,
    PartitionErrors,
)
from tidelog.coordinator.group.requests.classic_rebalance import GroupTurn, Rebalancer
from tidelog.coordinator.group.requests.consumer_groups import ConsumerGroups
from tidelog.coordinator.group.requests.group_offsets import (
    commit_error,
    commit_offsets,
    commit_transactional_offsets,
    consumer_commit_error,
    consumer_fetch_error,
    delete_offsets,
    fetch_offsets,
    missing_group_error,
    transactional_commit_error,
)
from tidelog.coordinator.group.requests.limits import GroupLimits
from tidelog.coordinator.group.requests.removals import GroupRemovals
from tidelog.coordinator.group.settings import GroupSettings
from tidelog.coordinator.group.state.classic_group import ClassicGroup
from tidelog.coordinator.group.state.committed_offsets import CommittedOffsets
from tidelog.protocol.error_codes import ErrorCode


class OffsetRequests:
    """The requests about committed offsets. It shares the coordinator's groups."""

    def __init__(
        self,
        settings: GroupSettings,
        classic: dict[str, ClassicGroup],
        consumers: ConsumerGroups,
        offsets: CommittedOffsets,
        rebalancer: Rebalancer,
        limits: GroupLimits,
        removals: GroupRemovals,
    ) -> None:
        self._settings = settings
        self._classic = classic
        self._consumers = consumers
        self._offsets = offsets
        self._rebalancer = rebalancer
        self._limits = limits
        self._removals = removals

    def commit(
        self, commit: CommitOffsets | CommitTransactionalOffsets, token: Token, turn: GroupTurn
    ) -> None:
        """Store offsets, committed or pending. A commit from outside creates a missing group."""
        group_id = commit.group_id
        is_new = group_id not in self._consumers and group_id not in self._classic
        error = self._commit_error(commit)
        if error is ErrorCode.NONE:
            limit = self._limits.commit(commit, self._offsets, opens_group=is_new)
            if limit is not None:
                error = turn.refuse(limit)
        if error is not ErrorCode.NONE:
            failed = [(each.topic, each.partition, error) for each in commit.offsets]
            turn.reply(token, PartitionErrors(error, failed))
            return
        if is_new:
            self._classic[group_id] = ClassicGroup(group_id)
        if isinstance(commit, CommitTransactionalOffsets):
            commit_transactional_offsets(commit, token, self._settings, turn)
            return
        group = self._classic.get(group_id)
        member = None if group is None else group.members.get(commit.member_id)
        if group is not None and member is not None:
            self._rebalancer.expect_heartbeat(group, member, turn)
        commit_offsets(commit, token, self._settings, self._offsets, turn)

    def _commit_error(self, commit: CommitOffsets | CommitTransactionalOffsets) -> ErrorCode:
        consumer_group = self._consumers.get(commit.group_id)
        if consumer_group is not None:
            return consumer_commit_error(consumer_group, commit)
        group = self._classic.get(commit.group_id)
        if group is None:
            return missing_group_error(commit)
        if isinstance(commit, CommitTransactionalOffsets):
            return transactional_commit_error(group, commit)
        return commit_error(group, commit)

    def fetch(self, fetch: FetchOffsets) -> OffsetsReply:
        group = self._consumers.get(fetch.group_id)
        error = ErrorCode.NONE if group is None else consumer_fetch_error(group, fetch)
        if error is not ErrorCode.NONE:
            return OffsetsReply(error, {})
        return fetch_offsets(fetch, self._offsets, self._removals.is_gone)

    def delete(self, delete: DeleteOffsets, token: Token, turn: GroupTurn) -> None:
        """Delete offsets that no member needs."""
        group = self._consumers.get(delete.group_id) or self._classic.get(delete.group_id)
        if group is None:
            turn.reply(token, PartitionErrors(ErrorCode.GROUP_ID_NOT_FOUND))
        else:
            delete_offsets(group, delete, token, self._offsets, turn)
