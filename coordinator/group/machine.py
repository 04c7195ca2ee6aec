"""The group coordinator of one partition of `__consumer_offsets`.

It serves every group that hashes to the partition. Pure. Only `apply` changes the stored state
(groups as of their last assignment, committed offsets): a leader calls it with its own decisions, a
successor with the records of the log. `decide` changes the rest (joining members, sessions,
timers), which is lost with the leader: clients repeat their requests (rule C8).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import chain

from tidelog.coordinator.decision import Now, Token
from tidelog.coordinator.group.commands import (
    NO_MEMBER,
    Command,
    CommitOffsets,
    CommitTransactionalOffsets,
    DeleteGroup,
    DeleteOffsets,
    DescribedMember,
    DescribeGroup,
    DescribeGroupReply,
    ErrorReply,
    FetchOffsets,
    ForgetTopics,
    GroupListing,
    Heartbeat,
    HeartbeatReply,
    Join,
    JoinReply,
    Leave,
    LeaveReply,
    ListGroups,
    ListGroupsReply,
    PatternsFound,
    Sync,
    SyncReply,
    TargetMade,
)
from tidelog.coordinator.group.consumer_commands import (
    JOIN_EPOCH,
    ConsumerHeartbeat,
    ConsumerHeartbeatReply,
    DescribeConsumerGroup,
)
from tidelog.coordinator.group.records.log_records import (
    GroupRecord,
    GroupRemoved,
    GroupStored,
    OffsetPending,
    OffsetRemoved,
    OffsetStored,
    StoredGroup,
    TransactionEnded,
)
from tidelog.coordinator.group.requests.classic_members import ClassicMembers
from tidelog.coordinator.group.requests.classic_membership import ClassicMembership
from tidelog.coordinator.group.requests.classic_rebalance import (
    GroupDecision,
    GroupTurn,
    Rebalancer,
    Timer,
    TimerKind,
)
from tidelog.coordinator.group.requests.consumer_groups import ConsumerGroups, is_empty, not_found
from tidelog.coordinator.group.requests.consumer_membership import MembershipRefusal
from tidelog.coordinator.group.requests.limits import GroupBudgets, GroupLimits, unlimited
from tidelog.coordinator.group.requests.migration import Migration
from tidelog.coordinator.group.requests.offset_requests import OffsetRequests
from tidelog.coordinator.group.requests.removals import GroupRemovals
from tidelog.coordinator.group.settings import GroupSettings, TimeoutsOf
from tidelog.coordinator.group.state.classic_group import ClassicGroup
from tidelog.coordinator.group.state.committed_offsets import CommittedOffsets
from tidelog.coordinator.group.state.consumer_group import ConsumerGroup
from tidelog.coordinator.group.state.states import GroupState
from tidelog.coordinator.timers import Timers
from tidelog.identifiers import TopicId
from tidelog.protocol.error_codes import ErrorCode

CLASSIC_TYPE = "classic"


class GroupMachine:
    """All groups of one partition.

    A caller applies the stored records and calls `loaded`. Then it calls `decide` and `tick`, and
    applies each decision's records before the next call.
    """

    def __init__(
        self,
        settings: GroupSettings,
        timeouts_of: TimeoutsOf | None = None,
        budgets: GroupBudgets | None = None,
        is_deleted: Callable[[str, TopicId | None], bool] = lambda topic, topic_id: False,
    ) -> None:
        """`timeouts_of` returns a consumer group's timeouts; the machine calls it at each
        heartbeat.

        `budgets`: shared with the other coordinators of the broker. `is_deleted`: whether a stored
        offset's topic is deleted, by name and, if the offset has it, id.
        """
        self._settings = settings
        self._limits = GroupLimits(settings, budgets or unlimited())
        self._timers: Timers[Timer] = Timers()
        self._rebalancer = Rebalancer(settings, self._timers)
        self._membership = ClassicMembership(settings, self._timers, self._rebalancer, self._limits)
        self._groups: dict[str, ClassicGroup] = {}
        self._stored: dict[str, StoredGroup] = {}
        self._offsets = CommittedOffsets()
        self._consumers = ConsumerGroups(
            settings, self._timers, timeouts_of or settings.consumer_timeouts, self._limits
        )
        self._classic_members = ClassicMembers(self._timers, self._consumers.membership)
        self._migration = Migration(settings, self._rebalancer, self._groups, self._consumers)
        self._removals = GroupRemovals(
            settings,
            self._timers,
            self._groups,
            self._stored,
            self._consumers,
            self._offsets,
            self._rebalancer,
            is_deleted,
            self._measure,
        )
        self._offset_requests = OffsetRequests(
            settings,
            self._groups,
            self._consumers,
            self._offsets,
            self._rebalancer,
            self._limits,
            self._removals,
        )

    @property
    def stored_groups(self) -> Mapping[str, StoredGroup]:
        """The groups in the log's state. The caller must not change them."""
        return self._stored

    @property
    def offsets(self) -> CommittedOffsets:
        """The committed offsets in the log's state."""
        return self._offsets

    @property
    def groups(self) -> Mapping[str, ClassicGroup]:
        """The groups of the classic protocol. The caller must not change them."""
        return self._groups

    @property
    def consumer_groups(self) -> Mapping[str, ConsumerGroup]:
        """The consumer groups (KIP-848). The caller must not change them."""
        return self._consumers.by_id

    # The stored state.

    def apply(self, record: GroupRecord) -> None:
        """Apply a record."""
        match record:
            case OffsetStored():
                self._offsets.store(record)
            case OffsetRemoved():
                self._offsets.remove(record)
            case OffsetPending():
                self._offsets.hold(record)
            case TransactionEnded():
                self._offsets.end(record)
            case GroupStored(group_id, group):
                self._stored[group_id] = group
            case GroupRemoved(group_id):
                self._stored.pop(group_id, None)
            case _:
                self._consumers.apply(record)
                self._measure(record.group_id)
        self._limits.hold(self._offsets)

    def close(self) -> None:
        """Give the used room back: the machine gets no more calls."""
        self._limits.close()

    def _measure(self, group_id: str) -> None:
        group, consumers = self._groups.get(group_id), self._consumers.get(group_id)
        self._limits.measure(group_id, group, consumers)
        self._limits.hold(self._offsets)

    def capture(self) -> Iterator[GroupRecord]:
        """The records that bring a new machine into the present state."""
        stored = self._stored.copy().items()
        consumer_groups = list(self._consumers.records())
        return chain(map(GroupStored._make, stored), consumer_groups, self._offsets.capture())

    def release(self) -> None:
        """End a capture."""
        self._offsets.release()

    def loaded(self, now: Now) -> GroupDecision:
        """Every stored record was applied: the groups continue.

        Each member gets its full session timeout, since the time of its last heartbeat is unknown.
        From now on the machine removes offsets of topics that were deleted without a ready
        coordinator.
        """
        turn = GroupTurn(now)
        for group_id, stored in self._stored.items():
            group = self._groups[group_id] = ClassicGroup.from_stored(group_id, stored)
            for member in group.members.values():
                self._rebalancer.expect_heartbeat(group, member, turn)
            if len(group.members) > self._settings.members_max:
                # The limit is lower than the one that the members joined under.
                self._rebalancer.begin(group, turn)
        for consumer_group in self._consumers:
            self._consumers.membership.loaded(consumer_group, turn)
        for group_id in self._offsets.group_ids():
            if group_id not in self._groups and group_id not in self._consumers:
                self._groups[group_id] = ClassicGroup(group_id)
        for group_id in self._groups:
            self._measure(group_id)
        self._removals.begin(turn)
        return turn.decision()

    # Time.

    def next_deadline_ms(self) -> int | None:
        """When the next call of `tick` is due, on the monotonic clock."""
        return self._timers.next_deadline()

    def tick(self, now: Now) -> GroupDecision | None:
        """The decision on one expired timer; None if no timer has expired."""
        timer = self._timers.pop_due(now.monotonic_ms)
        if timer is None:
            return None
        turn = GroupTurn(now)
        group = self._groups.get(timer.group_id)
        match timer.kind:
            case TimerKind.SWEEP:
                self._removals.sweep(turn)
            case TimerKind.FORGET:
                self._removals.remove_more_offsets(turn)
            case TimerKind.SESSION if group is not None:
                self._membership.session_expired(group, timer.member_id, turn)
            case TimerKind.JOIN if group is not None:
                self._rebalancer.join_timer_expired(group, turn)
            case TimerKind.SYNC if group is not None:
                self._rebalancer.sync_timer_expired(group, turn)
            case TimerKind.DOWNGRADE:
                consumer_group = self._consumers.get(timer.group_id)
                if consumer_group is not None:
                    self._migration.downgrade(consumer_group, turn)
            case _:
                self._consumers.timer_expired(timer, turn)
        self._measure(timer.group_id)
        return turn.decision()

    # Requests.

    def decide(self, command: Command, token: Token, now: Now) -> GroupDecision:
        """The decision on a request, answered under `token`, perhaps by a later decision."""
        turn = GroupTurn(now)
        match command:
            case Join():
                self._join(command, token, turn)
            case Sync():
                self._sync(command, token, turn)
            case Heartbeat():
                self._heartbeat(command, token, turn)
            case Leave():
                self._leave(command, token, turn)
            case CommitOffsets() | CommitTransactionalOffsets():
                self._offset_requests.commit(command, token, turn)
            case FetchOffsets():
                turn.reply(token, self._offset_requests.fetch(command))
            case DeleteOffsets():
                self._offset_requests.delete(command, token, turn)
            case ConsumerHeartbeat():
                self._consumer_heartbeat(command, token, turn)
            case DescribeConsumerGroup(group_id):
                turn.reply(token, self._consumers.describe(group_id))
            case DeleteGroup(group_id):
                turn.reply(token, self._removals.delete(group_id, turn))
            case DescribeGroup(group_id):
                turn.reply(token, _description(self._groups.get(group_id)))
            case ListGroups():
                turn.reply(token, self._list(command))
            case ForgetTopics(topics):
                self._removals.forget(topics, turn)
                turn.reply(token, ErrorReply(ErrorCode.NONE))
            case PatternsFound():
                self._consumers.patterns_found(command, turn)
                turn.reply(token, ErrorReply(ErrorCode.NONE))
            case TargetMade(target):
                self._consumers.target_made(target, turn)
                turn.reply(token, ErrorReply(ErrorCode.NONE))
        concerned: str | None = getattr(command, "group_id", None)
        if concerned is not None:
            self._measure(concerned)
        return turn.decision()

    def _join(self, join: Join, token: Token, turn: GroupTurn) -> None:
        settings = self._settings
        group = self._groups.get(join.group_id)
        consumer_group = self._consumers.get(join.group_id)
        error = ErrorCode.NONE
        if not join.group_id:
            error = ErrorCode.INVALID_GROUP_ID
        elif not (
            settings.session_timeout_ms_min
            <= join.session_timeout_ms
            <= settings.session_timeout_ms_max
        ):
            error = ErrorCode.INVALID_SESSION_TIMEOUT
        elif (limit := self._limits.join(join, group, consumer_group)) is not None:
            error = turn.refuse(limit)
        elif self._removals.is_deleting(join.group_id, turn.now):
            error = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        elif consumer_group is not None and not is_empty(consumer_group):
            self._classic_members.join(consumer_group, join, token, turn)
            return
        elif group is None and join.member_id != NO_MEMBER:
            error = ErrorCode.UNKNOWN_MEMBER_ID
        if error is not ErrorCode.NONE:
            turn.reply(token, JoinReply(error, join.member_id))
            is_full = error is ErrorCode.GROUP_MAX_SIZE_REACHED
            # A member whose data grows too much stays as it was.
            if is_full and group is not None and join.member_id in group.pending_joins:
                self._membership.refuse_member(group, join, turn)
            return
        group = group or ClassicGroup(join.group_id)
        self._membership.join(group, join, token, turn)
        if group.is_unused:
            return
        self._groups[join.group_id] = group
        if consumer_group is not None:
            turn.records.extend(consumer_group.removals())

    def _sync(self, sync: Sync, token: Token, turn: GroupTurn) -> None:
        group, consumers = self._groups.get(sync.group_id), self._consumers.get(sync.group_id)
        if group is not None:
            self._membership.sync(group, sync, token, turn)
        elif consumers is not None:
            self._classic_members.sync(consumers, sync, token, turn)
        else:
            turn.reply(token, SyncReply(_missing(sync.group_id)))

    def _heartbeat(self, heartbeat: Heartbeat, token: Token, turn: GroupTurn) -> None:
        group_id = heartbeat.group_id
        group, consumers = self._groups.get(group_id), self._consumers.get(group_id)
        if group is not None:
            self._membership.heartbeat(group, heartbeat, token, turn)
        elif consumers is not None:
            self._classic_members.heartbeat(consumers, heartbeat, token, turn)
        else:
            turn.reply(token, HeartbeatReply(_missing(group_id)))

    def _leave(self, leave: Leave, token: Token, turn: GroupTurn) -> None:
        group, consumers = self._groups.get(leave.group_id), self._consumers.get(leave.group_id)
        if group is not None:
            self._membership.leave(group, leave, token, turn)
        elif consumers is not None:
            self._classic_members.leave(consumers, leave, token, turn)
        elif not leave.group_id:
            turn.reply(token, LeaveReply(ErrorCode.INVALID_GROUP_ID))
        else:
            unknown = [(each, ErrorCode.UNKNOWN_MEMBER_ID) for each in leave.members]
            turn.reply(token, LeaveReply(ErrorCode.NONE, unknown))

    def _consumer_heartbeat(
        self, heartbeat: ConsumerHeartbeat, token: Token, turn: GroupTurn
    ) -> None:
        refusal = self._consumers.membership.refusal(heartbeat) or self._limit_met(heartbeat, turn)
        if refusal is None:
            refusal = self._find_or_open(heartbeat, turn)
        if refusal is not None:
            turn.reply(token, ConsumerHeartbeatReply(*refusal))
            return
        group = self._consumers.open(heartbeat.group_id)
        if heartbeat.member_epoch < JOIN_EPOCH:
            self._consumers.membership.leave(group, heartbeat, token, turn)
        else:
            self._consumers.membership.heartbeat(group, heartbeat, token, turn)

    def _limit_met(self, heartbeat: ConsumerHeartbeat, turn: GroupTurn) -> MembershipRefusal | None:
        group_id = heartbeat.group_id
        group, consumers = self._groups.get(group_id), self._consumers.get(group_id)
        limit = self._limits.heartbeat(heartbeat, group, consumers)
        return None if limit is None else MembershipRefusal(turn.refuse(limit), limit.why)

    def _find_or_open(
        self, heartbeat: ConsumerHeartbeat, turn: GroupTurn
    ) -> MembershipRefusal | None:
        """Find or create the group that a member joins, unless it is being deleted.

        A classic group becomes a consumer group; one with members only if the migration policy
        allows it.
        """
        group_id = heartbeat.group_id
        group = self._groups.get(group_id)
        if heartbeat.member_epoch == JOIN_EPOCH and self._removals.is_deleting(group_id, turn.now):
            message = f"Group {group_id} is being deleted."
            return MembershipRefusal(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, message)
        if group_id in self._consumers:
            return None
        is_occupied = group is not None and group.state is not GroupState.EMPTY
        if heartbeat.member_epoch == JOIN_EPOCH and group is not None and is_occupied:
            is_stored = group_id in self._stored
            if self._migration.upgrade(group, heartbeat.topics, is_stored, turn):
                return None
        if heartbeat.member_epoch != JOIN_EPOCH or is_occupied:
            message = not_found(heartbeat, is_classic=group is not None)
            return MembershipRefusal(ErrorCode.GROUP_ID_NOT_FOUND, message)
        if group is not None:
            self._removals.remove(group, turn)
        return None

    def _list(self, listed: ListGroups) -> ListGroupsReply:
        states, types = _lower(listed.states), _lower(listed.types)
        every = self._consumers.listings() + [
            GroupListing(group.group_id, group.protocol_type or "", group.state.value, CLASSIC_TYPE)
            for group in self._groups.values()
        ]
        return ListGroupsReply(
            [
                each
                for each in every
                if (not states or each.state.lower() in states)
                and (not types or each.group_type in types)
            ]
        )


def _lower(names: frozenset[str]) -> frozenset[str]:
    return frozenset([name.lower() for name in names])


def _missing(group_id: str) -> ErrorCode:
    return ErrorCode.UNKNOWN_MEMBER_ID if group_id else ErrorCode.INVALID_GROUP_ID


def _description(group: ClassicGroup | None) -> DescribeGroupReply:
    if group is None:
        return DescribeGroupReply(ErrorCode.GROUP_ID_NOT_FOUND, GroupState.DEAD.value)
    is_stable = group.state is GroupState.STABLE
    return DescribeGroupReply(
        ErrorCode.NONE,
        group.state.value,
        group.protocol_type or "",
        (group.protocol or "") if is_stable else "",
        [
            DescribedMember(
                member.member_id,
                member.instance_id,
                member.client_id,
                member.client_host,
                member.metadata(group.protocol) if is_stable else b"",
                member.assignment if is_stable else b"",
            )
            for member in group.members.values()
        ],
    )
