"""ConsumerGroupHeartbeat on one consumer group (KIP-848).

Members join, stay and leave, the target assignment follows (`targets`), and each member moves to it
step by step.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from tidelog.coordinator.decision import Token
from tidelog.coordinator.group.commands import NO_MEMBER
from tidelog.coordinator.group.consumer_commands import (
    JOIN_EPOCH,
    NOT_CHANGED_MS,
    STATIC_LEAVE_EPOCH,
    ClusterTopics,
    ConsumerHeartbeat,
    ConsumerHeartbeatReply,
)
from tidelog.coordinator.group.records.consumer_records import (
    Assignment,
    ConsumerGroupStored,
    ConsumerMemberStored,
    ConsumerSubscription,
    CurrentAssignment,
    CurrentStored,
    MemberState,
    TargetStored,
)
from tidelog.coordinator.group.requests.classic_rebalance import GroupTurn, Timer, TimerKind
from tidelog.coordinator.group.requests.reconciliation import is_within, reconcile
from tidelog.coordinator.group.requests.targets import Caller, TargetAssignments
from tidelog.coordinator.group.settings import GroupSettings, TimeoutsOf
from tidelog.coordinator.group.state.consumer_group import ConsumerGroup
from tidelog.coordinator.patterns import InvalidPattern, check_length
from tidelog.coordinator.timers import Timers
from tidelog.protocol.error_codes import ErrorCode


class MembershipRefusal(NamedTuple):
    """Why a request is refused."""

    error: ErrorCode
    message: str


class ConsumerMembership:
    """Heartbeats, and their timeouts. It holds no state but timers."""

    def __init__(
        self,
        settings: GroupSettings,
        timers: Timers[Timer],
        timeouts_of: TimeoutsOf,
        targets: TargetAssignments,
    ) -> None:
        self._settings = settings
        self._targets = targets
        self._timers = timers
        self._timeouts_of = timeouts_of

    def refusal(self, heartbeat: ConsumerHeartbeat) -> MembershipRefusal | None:
        """Why a request is invalid for every group; None if it is valid."""
        fault = _fault(heartbeat)
        if fault is not None:
            return MembershipRefusal(ErrorCode.INVALID_REQUEST, fault)
        assignors = self._settings.consumer_assignors
        if heartbeat.server_assignor is not None and heartbeat.server_assignor not in assignors:
            return MembershipRefusal(
                ErrorCode.UNSUPPORTED_ASSIGNOR,
                f"ServerAssignor {heartbeat.server_assignor} is not supported. Supported assignors:"
                f" {', '.join(assignors)}.",
            )
        try:
            check_length(heartbeat.topic_regex or "", self._settings.regex_length_max)
        except InvalidPattern as error:
            return MembershipRefusal(ErrorCode.INVALID_REGULAR_EXPRESSION, str(error))
        return None

    # Joining and staying.

    def heartbeat(
        self, group: ConsumerGroup, heartbeat: ConsumerHeartbeat, token: Token, turn: GroupTurn
    ) -> None:
        """Add the member or keep its session, and reply with its assignment."""
        caller = self._caller(group, heartbeat)
        if isinstance(caller, MembershipRefusal):
            turn.reply(token, ConsumerHeartbeatReply(*caller))
            return
        if heartbeat.matches is not None:
            group.store_matches(heartbeat.matches)
        subscription = _updated(caller.subscription, heartbeat)
        current = self.advance(group, caller, subscription, heartbeat.owned, heartbeat.topics, turn)
        is_told = heartbeat.is_full or current.assigned != caller.current.assigned
        turn.reply(
            token,
            ConsumerHeartbeatReply(
                ErrorCode.NONE,
                None,
                caller.member_id,
                current.epoch,
                self._timeouts_of(group.group_id).heartbeat_interval_ms,
                current.assigned if is_told else None,
            ),
        )

    def advance(
        self,
        group: ConsumerGroup,
        caller: Caller,
        subscription: ConsumerSubscription,
        owned: Assignment | None,
        topics: ClusterTopics,
        turn: GroupTurn,
    ) -> CurrentAssignment:
        """Apply a member's subscription and reported partitions; return its next current
        assignment.

        `owned` of None: the member did not report. The result is one step nearer to the target.
        """
        if caller.replaces is not None:
            self._replace(group, caller, turn)
        group_id, member_id = group.group_id, caller.member_id
        if subscription != caller.subscription:
            turn.persist(ConsumerMemberStored(group_id, member_id, subscription))
        epoch, target = self._targets.target_of(group, topics, caller, subscription, turn)
        current = reconcile(caller.current, epoch, target, group.is_free, owned)
        if current != caller.current:
            turn.persist(CurrentStored(group_id, member_id, current))
            rebalance = Timer(TimerKind.CONSUMER_REBALANCE, group_id, member_id)
            if current.state is MemberState.UNREVOKED_PARTITIONS:
                self._set_timer(rebalance, subscription.rebalance_timeout_ms, turn)
            else:
                self._timers.cancel(rebalance)
        self.expect_heartbeat(group, member_id, subscription, turn)
        return current

    def _caller(
        self, group: ConsumerGroup, heartbeat: ConsumerHeartbeat
    ) -> Caller | MembershipRefusal:
        member_id = heartbeat.member_id or heartbeat.fresh_id
        joins = heartbeat.member_epoch == JOIN_EPOCH
        holder = group.static_members.get(heartbeat.instance_id or "")
        is_known = member_id in group.subscriptions or (joins and holder is not None)
        if not is_known and self.is_full(group):
            return MembershipRefusal(
                ErrorCode.GROUP_MAX_SIZE_REACHED,
                "The consumer group has reached its maximum capacity of"
                f" {self._settings.consumer_members_max} members.",
            )
        if heartbeat.instance_id is not None and joins and holder is not None:
            return self._returned(group, member_id, holder, heartbeat)
        if heartbeat.instance_id is not None and not joins:
            refusal = _static_refusal(group, member_id, heartbeat.instance_id)
        elif not joins and member_id not in group.subscriptions:
            refusal = _unknown(group, member_id)
        else:
            refusal = None
        if refusal is not None:
            return refusal
        current = group.current(member_id)
        if not (joins and heartbeat.instance_id is not None):
            refusal = _epoch_refusal(heartbeat, current)
        subscription = group.subscriptions.get(member_id)
        return refusal or Caller(member_id, subscription, current, group.target(member_id))

    def _returned(
        self, group: ConsumerGroup, member_id: str, holder: str, heartbeat: ConsumerHeartbeat
    ) -> Caller | MembershipRefusal:
        """The caller of a static member that joins with a known instance id.

        Only if the known member pauses, or uses the classic protocol, in which static members never
        announce a pause. A member that is in the group already asks again, as a dynamic one may:
        the answer to its first request may have been lost.
        """
        subscription, current = group.subscriptions[holder], group.current(holder)
        if current.epoch == STATIC_LEAVE_EPOCH or subscription.classic is not None:
            return successor(group, member_id, holder)
        if holder == member_id:
            refusal = _epoch_refusal(heartbeat, current)
            return refusal or Caller(member_id, subscription, current, group.target(member_id))
        return MembershipRefusal(
            ErrorCode.UNRELEASED_INSTANCE_ID,
            f"Static member {member_id} with instance id {heartbeat.instance_id} cannot join the"
            f" group because the instance id is owned by {holder} member.",
        )

    def is_full(self, group: ConsumerGroup) -> bool:
        return len(group.subscriptions) >= self._settings.consumer_members_max

    def _replace(self, group: ConsumerGroup, caller: Caller, turn: GroupTurn) -> None:
        """Give a returned static member its old place and assignments."""
        assert caller.replaces is not None
        assert caller.subscription is not None
        self._cancel_timers(group, caller.replaces)
        turn.records.extend(group.member_removals(caller.replaces))
        group_id, member_id = group.group_id, caller.member_id
        turn.persist(ConsumerMemberStored(group_id, member_id, caller.subscription))
        turn.persist(TargetStored(group_id, member_id, caller.target))
        turn.persist(CurrentStored(group_id, member_id, caller.current))

    # Leaving.

    def leave(
        self, group: ConsumerGroup, heartbeat: ConsumerHeartbeat, token: Token, turn: GroupTurn
    ) -> None:
        """Remove a member, or pause a static one, which keeps its assignment."""
        member_id, instance_id = heartbeat.member_id, heartbeat.instance_id
        if instance_id is not None:
            refusal = _static_refusal(group, member_id, instance_id)
        else:
            refusal = None if member_id in group.subscriptions else _unknown(group, member_id)
        if refusal is not None:
            turn.reply(token, ConsumerHeartbeatReply(*refusal))
            return
        if heartbeat.member_epoch == STATIC_LEAVE_EPOCH:
            away = replace(
                group.current(member_id),
                epoch=STATIC_LEAVE_EPOCH,
                state=MemberState.STABLE,
                pending_revocation={},
            )
            self._timers.cancel(Timer(TimerKind.CONSUMER_REBALANCE, group.group_id, member_id))
            turn.persist(CurrentStored(group.group_id, member_id, away))
        else:
            self.remove_member(group, member_id, turn)
        reply = ConsumerHeartbeatReply(ErrorCode.NONE, None, member_id, heartbeat.member_epoch)
        turn.reply(token, reply)

    def remove_member(self, group: ConsumerGroup, member_id: str, turn: GroupTurn) -> None:
        """Remove a member, if it exists.

        The other members get its partitions at their next heartbeats.
        """
        if member_id not in group.subscriptions:
            return
        self._cancel_timers(group, member_id)
        turn.records.extend(group.member_removals(member_id))
        epoch = group.epoch + 1
        turn.persist(ConsumerGroupStored(group.group_id, epoch, group.metadata_hash))
        self.check_downgrade(group, turn)

    def forget(self, group: ConsumerGroup) -> None:
        """Cancel all timers of a group that is no longer a consumer group."""
        for member_id in group.subscriptions:
            self._cancel_timers(group, member_id)

    # Time.

    def loaded(self, group: ConsumerGroup, turn: GroupTurn) -> None:
        """Start all members' timeouts: the times of their last heartbeats are unknown."""
        self.check_downgrade(group, turn)
        for member_id, subscription in group.subscriptions.items():
            self.expect_heartbeat(group, member_id, subscription, turn)
            if group.current(member_id).state is MemberState.UNREVOKED_PARTITIONS:
                timer = Timer(TimerKind.CONSUMER_REBALANCE, group.group_id, member_id)
                self._set_timer(timer, subscription.rebalance_timeout_ms, turn)

    def expect_heartbeat(
        self,
        group: ConsumerGroup,
        member_id: str,
        subscription: ConsumerSubscription,
        turn: GroupTurn,
    ) -> None:
        """Restart the member's session timeout.

        A member of the classic protocol determines its own timeout.
        """
        if subscription.classic is not None:
            timeout_ms = subscription.classic.session_timeout_ms
        else:
            timeout_ms = self._timeouts_of(group.group_id).session_ms
        timer = Timer(TimerKind.CONSUMER_SESSION, group.group_id, member_id)
        self._set_timer(timer, timeout_ms, turn)

    def check_downgrade(self, group: ConsumerGroup, turn: GroupTurn) -> None:
        """Check after this turn whether all members use the classic protocol."""
        self._set_timer(Timer(TimerKind.DOWNGRADE, group.group_id), 0, turn)

    def _set_timer(self, timer: Timer, within_ms: int, turn: GroupTurn) -> None:
        self._timers.set(timer, turn.now.monotonic_ms + within_ms)

    def _cancel_timers(self, group: ConsumerGroup, member_id: str) -> None:
        for kind in (TimerKind.CONSUMER_SESSION, TimerKind.CONSUMER_REBALANCE):
            self._timers.cancel(Timer(kind, group.group_id, member_id))


def _fault(heartbeat: ConsumerHeartbeat) -> str | None:
    """The invalid field of a request, in Kafka's words; None if all are valid."""
    for value, name in (
        (heartbeat.group_id, "GroupId"),
        (heartbeat.instance_id, "InstanceId"),
        (heartbeat.rack_id, "RackId"),
    ):
        if value is not None and not value.strip():
            return f"{name} can't be empty."
    epoch = heartbeat.member_epoch
    if epoch < STATIC_LEAVE_EPOCH:
        return "MemberEpoch is invalid."
    if (epoch != JOIN_EPOCH or heartbeat.brings_member_id) and heartbeat.member_id == NO_MEMBER:
        return "MemberId can't be empty."
    if epoch == STATIC_LEAVE_EPOCH and heartbeat.instance_id is None:
        return "InstanceId can't be null."
    if epoch == JOIN_EPOCH:
        if heartbeat.rebalance_timeout_ms == NOT_CHANGED_MS:
            return "RebalanceTimeoutMs must be provided in first request."
        if heartbeat.owned is None or heartbeat.owned:
            return "TopicPartitions must be empty when (re-)joining."
        if heartbeat.topic_names is None and heartbeat.topic_regex is None:
            return (
                "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when"
                " (re-)joining."
            )
    return None


def successor(group: ConsumerGroup, member_id: str, holder: str) -> Caller:
    """The caller of a static member with a new id, in the place of `holder`, its old id."""
    anew = replace(group.current(holder), epoch=JOIN_EPOCH, previous_epoch=JOIN_EPOCH)
    return Caller(member_id, group.subscriptions[holder], anew, group.target(holder), holder)


def _static_refusal(
    group: ConsumerGroup, member_id: str, instance_id: str
) -> MembershipRefusal | None:
    holder = group.static_members.get(instance_id)
    if holder is None:
        return MembershipRefusal(
            ErrorCode.UNKNOWN_MEMBER_ID, f"Instance id {instance_id} is unknown."
        )
    if holder != member_id:
        return MembershipRefusal(
            ErrorCode.FENCED_INSTANCE_ID,
            f"Static member {member_id} with instance id {instance_id} was fenced by member"
            f" {holder}.",
        )
    return None


def _unknown(group: ConsumerGroup, member_id: str) -> MembershipRefusal:
    return MembershipRefusal(
        ErrorCode.UNKNOWN_MEMBER_ID,
        f"Member {member_id} is not a member of group {group.group_id}.",
    )


def _epoch_refusal(
    heartbeat: ConsumerHeartbeat, current: CurrentAssignment
) -> MembershipRefusal | None:
    """Why a member is fenced.

    The previous epoch is valid if the member owns only assigned partitions: the answer with the
    newer epoch may have been lost.
    """
    epoch = heartbeat.member_epoch
    if epoch == current.epoch:
        return None
    is_ahead = epoch > current.epoch
    is_previous = not is_ahead and epoch == current.previous_epoch
    if is_previous and is_within(heartbeat.owned, current.assigned):
        return None
    return MembershipRefusal(
        ErrorCode.FENCED_MEMBER_EPOCH,
        f"The consumer group member has a {'greater' if is_ahead else 'smaller'} member epoch"
        f" ({epoch}) than the one known by the group coordinator ({current.epoch}). The member must"
        " abandon all its partitions and rejoin.",
    )


def _updated(
    before: ConsumerSubscription | None, heartbeat: ConsumerHeartbeat
) -> ConsumerSubscription:
    old = before or ConsumerSubscription(None, None, "", "", (), None, NOT_CHANGED_MS, None)
    names, regex = heartbeat.topic_names, heartbeat.topic_regex
    timeout_ms = heartbeat.rebalance_timeout_ms
    return ConsumerSubscription(
        heartbeat.instance_id if heartbeat.instance_id is not None else old.instance_id,
        heartbeat.rack_id if heartbeat.rack_id is not None else old.rack_id,
        heartbeat.client_id,
        heartbeat.client_host,
        old.topic_names if names is None else tuple(sorted(set(names))),
        # An empty expression removes the previous one.
        old.topic_regex if regex is None else regex or None,
        old.rebalance_timeout_ms if timeout_ms == NOT_CHANGED_MS else timeout_ms,
        heartbeat.server_assignor if heartbeat.server_assignor is not None else old.server_assignor,
    )
