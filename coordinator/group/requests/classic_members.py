"""JoinGroup, SyncGroup, Heartbeat and LeaveGroup on a consumer group (KIP-848, online migration).

Members of the classic protocol share the group with members of the consumer protocol. The
coordinator assigns, so no member leads. A join is answered at once, with the member's epoch as its
generation, and a sync returns the assignment. Other members learn changes by a heartbeat; these
members learn them by another join, which heartbeats tell them to send.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from tidelog.coordinator.decision import Token
from tidelog.coordinator.group.commands import (
    NO_MEMBER,
    Heartbeat,
    HeartbeatReply,
    Join,
    JoinReply,
    Leave,
    Leaver,
    LeaveReply,
    Sync,
    SyncReply,
)
from tidelog.coordinator.group.consumer_commands import ClusterTopics
from tidelog.coordinator.group.records.consumer_records import (
    Assignment,
    ClassicProtocols,
    ConsumerSubscription,
    CurrentAssignment,
    MemberState,
)
from tidelog.coordinator.group.records.subscription import (
    CONSUMER_PROTOCOL_TYPE,
    Subscription,
    SupportedProtocol,
    assignment_for,
    subscription_in,
)
from tidelog.coordinator.group.requests.classic_membership import new_member_id
from tidelog.coordinator.group.requests.classic_rebalance import GroupTurn, Timer, TimerKind
from tidelog.coordinator.group.requests.consumer_membership import ConsumerMembership, successor
from tidelog.coordinator.group.requests.targets import Caller
from tidelog.coordinator.group.state.classic_group import Member, identity_error
from tidelog.coordinator.group.state.consumer_group import ConsumerGroup
from tidelog.coordinator.timers import Timers
from tidelog.protocol.error_codes import ErrorCode


class ClassicMembers:
    """The classic protocol's requests to consumer groups. It holds no state but timers."""

    def __init__(self, timers: Timers[Timer], membership: ConsumerMembership) -> None:
        self._timers = timers
        self._membership = membership

    # JoinGroup.

    def join(self, group: ConsumerGroup, join: Join, token: Token, turn: GroupTurn) -> None:
        """Add or advance the member, or reply with an error."""
        said = consumer_subscription(join.protocol_type, join.protocols)
        if said is None or not _supports(group, join):
            reply = JoinReply(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, join.member_id)
            turn.reply(token, reply)
            return
        caller = self._caller(group, join)
        if isinstance(caller, ErrorCode):
            turn.reply(token, JoinReply(caller, join.member_id))
            return
        is_named = join.member_id != NO_MEMBER or join.instance_id is not None
        if join.requires_known_id and not is_named:
            # The id is not stored: a join with it adds the member.
            turn.reply(token, JoinReply(ErrorCode.MEMBER_ID_REQUIRED, caller.member_id))
            return
        subscription = classic_subscription(join, said)
        owned = by_topic_id(said.owned, join.topics)
        current = self._membership.advance(group, caller, subscription, owned, join.topics, turn)
        # A join without the revocation must not put off the end of the time for it.
        is_revoking = current.state is MemberState.UNREVOKED_PARTITIONS
        self._expect_request(group, caller.member_id, subscription, turn, once=is_revoking)
        # This member may replace the last one of the consumer protocol.
        self._membership.check_downgrade(group, turn)
        turn.reply(
            token,
            JoinReply(
                ErrorCode.NONE,
                caller.member_id,
                current.epoch,
                CONSUMER_PROTOCOL_TYPE,
                join.protocols[0].name,
            ),
        )

    def _caller(self, group: ConsumerGroup, join: Join) -> Caller | ErrorCode:
        holder = group.static_members.get(join.instance_id or "")
        member_id = join.member_id or new_member_id(join)
        if join.instance_id is not None and join.member_id != NO_MEMBER:
            error = identity_error(
                group.subscriptions, group.static_members, member_id, join.instance_id
            )
            if error is not ErrorCode.NONE:
                return error
        elif holder is not None:
            return successor(group, member_id, holder)
        if member_id not in group.subscriptions and self._membership.is_full(group):
            return ErrorCode.GROUP_MAX_SIZE_REACHED
        before = group.subscriptions.get(member_id)
        return Caller(member_id, before, group.current(member_id), group.target(member_id))

    # SyncGroup.

    def sync(self, group: ConsumerGroup, sync: Sync, token: Token, turn: GroupTurn) -> None:
        """Reply with the member's assignment."""
        error = _member_error(group, sync.member_id, sync.instance_id, sync.generation)
        subscription = group.subscriptions.get(sync.member_id)
        classic = None if subscription is None else subscription.classic
        if error is not ErrorCode.NONE or subscription is None or classic is None:
            turn.reply(token, SyncReply(error))
            return
        protocol = classic.protocols[0]
        is_of_type = sync.protocol_type in (None, CONSUMER_PROTOCOL_TYPE)
        if not is_of_type or sync.protocol not in (None, protocol.name):
            turn.reply(token, SyncReply(ErrorCode.INCONSISTENT_GROUP_PROTOCOL))
            return
        current = group.current(sync.member_id)
        is_revoking = current.state is MemberState.UNREVOKED_PARTITIONS
        # While the target is late, another join would not advance the member, and its client joins
        # again without a pause. A heartbeat tells it to join.
        if current.epoch < group.assignment_epoch and not is_revoking:
            self._expect_request(group, sync.member_id, subscription, turn, once=True)
            turn.reply(token, SyncReply(ErrorCode.REBALANCE_IN_PROGRESS))
            return
        if not is_revoking:
            self._timers.cancel(_deadline(group, sync.member_id))
        self._membership.expect_heartbeat(group, sync.member_id, subscription, turn)
        assigned = _by_name(current.assigned, sync.topics)
        assignment = assignment_for(protocol.metadata, assigned)
        reply = SyncReply(ErrorCode.NONE, CONSUMER_PROTOCOL_TYPE, protocol.name, assignment)
        turn.reply(token, reply)

    # Heartbeat.

    def heartbeat(
        self, group: ConsumerGroup, heartbeat: Heartbeat, token: Token, turn: GroupTurn
    ) -> None:
        """Keep the member's session, and tell it whether to join again."""
        member_id = heartbeat.member_id
        error = _member_error(group, member_id, heartbeat.instance_id, heartbeat.generation)
        if error is ErrorCode.NONE:
            subscription = group.subscriptions[member_id]
            self._membership.expect_heartbeat(group, member_id, subscription, turn)
            if _must_rejoin(group, member_id, group.current(member_id)):
                self._expect_request(group, member_id, subscription, turn, once=True)
                error = ErrorCode.REBALANCE_IN_PROGRESS
        turn.reply(token, HeartbeatReply(error))

    def _expect_request(
        self,
        group: ConsumerGroup,
        member_id: str,
        subscription: ConsumerSubscription,
        turn: GroupTurn,
        *,
        once: bool = False,
    ) -> None:
        """Give the member its rebalance timeout to join or to sync.

        `once`: only if no such timeout is running.
        """
        timer = _deadline(group, member_id)
        if not (once and timer in self._timers):
            at_ms = turn.now.monotonic_ms + subscription.rebalance_timeout_ms
            self._timers.set(timer, at_ms)

    # LeaveGroup.

    def leave(self, group: ConsumerGroup, leave: Leave, token: Token, turn: GroupTurn) -> None:
        """Remove each of the members, of either protocol."""
        results = []
        for leaver in leave.members:
            member_id, error = _leaving(group, leaver)
            if error is ErrorCode.NONE:
                self._membership.remove_member(group, member_id, turn)
            results.append((leaver, error))
        turn.reply(token, LeaveReply(ErrorCode.NONE, results))


def classic_subscription(member: Join | Member, said: Subscription) -> ConsumerSubscription:
    """A member of the classic protocol, as a consumer group stores it."""
    return ConsumerSubscription(
        member.instance_id,
        said.rack_id,
        member.client_id,
        member.client_host,
        tuple(sorted(said.topics)),
        None,
        member.rebalance_timeout_ms,
        None,
        ClassicProtocols(member.session_timeout_ms, member.protocols),
    )


def consumer_subscription(
    protocol_type: str | None, protocols: Sequence[SupportedProtocol]
) -> Subscription | None:
    """A classic member's subscription, by the first of its protocols.

    None if it is not in the format of Kafka's consumers.
    """
    if protocol_type != CONSUMER_PROTOCOL_TYPE or not protocols:
        return None
    return subscription_in(protocols[0].metadata)


def by_topic_id(owned: dict[str, frozenset[int]], topics: ClusterTopics) -> Assignment:
    """Partitions by the ids of their topics, without deleted topics."""
    known = [(topics.topic_named(name), numbers) for name, numbers in owned.items()]
    return {topic.topic_id: numbers for topic, numbers in known if topic is not None and numbers}


def _by_name(assigned: Assignment, topics: ClusterTopics) -> dict[str, frozenset[int]]:
    return {
        topics.topics[topic_id].name: numbers
        for topic_id, numbers in assigned.items()
        if topic_id in topics.topics
    }


def _supports(group: ConsumerGroup, join: Join) -> bool:
    """Whether all other classic members support one of the protocols.

    They must be able to continue if only they are left.
    """
    itself = {join.member_id, group.static_members.get(join.instance_id or "")}
    others = [
        each.classic
        for member_id, each in group.subscriptions.items()
        if each.classic is not None and member_id not in itself
    ]
    support = Counter(name for each in others for name in {p.name for p in each.protocols})
    return any(support[each.name] == len(others) for each in join.protocols)


def _must_rejoin(group: ConsumerGroup, member_id: str, current: CurrentAssignment) -> bool:
    """Whether another join would advance the member."""
    if current.epoch < group.epoch or current.state is MemberState.UNREVOKED_PARTITIONS:
        return True
    if current.state is MemberState.STABLE:
        return False
    return all(
        number in current.assigned.get(topic_id, ()) or group.is_free(topic_id, number)
        for topic_id, numbers in group.target(member_id).items()
        for number in numbers
    )


def _member_error(
    group: ConsumerGroup, member_id: str, instance_id: str | None, generation: int
) -> ErrorCode:
    """Why a classic member may not continue; NONE if it may."""
    error = identity_error(group.subscriptions, group.static_members, member_id, instance_id)
    if error is not ErrorCode.NONE:
        return error
    if group.subscriptions[member_id].classic is None:
        return ErrorCode.UNKNOWN_MEMBER_ID
    if generation != group.current(member_id).epoch:
        return ErrorCode.ILLEGAL_GENERATION
    return ErrorCode.NONE


def _leaving(group: ConsumerGroup, leaver: Leaver) -> tuple[str, ErrorCode]:
    """The leaving member's id, and why it cannot leave."""
    member_id, instance_id = leaver
    if member_id == NO_MEMBER and instance_id is not None:
        member_id = group.static_members.get(instance_id, NO_MEMBER)
    return member_id, identity_error(
        group.subscriptions, group.static_members, member_id, instance_id
    )


def _deadline(group: ConsumerGroup, member_id: str) -> Timer:
    return Timer(TimerKind.CONSUMER_REBALANCE, group.group_id, member_id)
