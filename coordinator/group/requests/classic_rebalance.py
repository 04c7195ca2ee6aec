"""The rebalance of a group of the classic protocol: from one generation to the next.

A rebalance waits until all members have joined, or the longest of their rebalance timeouts has
passed. Then the generation begins, and its leader has the same time to submit the assignment.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from tidelog.coordinator.decision import Decision, Turn
from tidelog.coordinator.group.commands import GroupWork, JoinReply, Reply, SyncReply
from tidelog.coordinator.group.records.log_records import GroupRecord, GroupStored
from tidelog.coordinator.group.settings import GroupSettings
from tidelog.coordinator.group.state.classic_group import ClassicGroup, InitialDelay, Member
from tidelog.coordinator.group.state.states import GroupState
from tidelog.coordinator.timers import Timers
from tidelog.protocol.error_codes import ErrorCode


@dataclass(frozen=True, slots=True)
class GroupDecision(Decision[GroupRecord, Reply]):
    """A decision, with its slow work for a worker."""

    work: Sequence[GroupWork] = ()


@dataclass(slots=True)
class GroupTurn(Turn[GroupRecord, Reply]):
    """A decision in progress."""

    work: list[GroupWork] = field(default_factory=list)

    def decision(self) -> GroupDecision:
        return GroupDecision(
            self.records,
            self.replies,
            self.replies_when_appended,
            self.producer,
            self.limits,
            self.work,
        )


class TimerKind(Enum):
    """The event that a group's timer triggers."""

    SESSION = "session"
    """A member has sent no heartbeat; it is removed."""
    JOIN = "join"
    """The joined members form the generation."""
    SYNC = "sync"
    """Members without a sync are removed."""
    CONSUMER_SESSION = "consumer session"
    """A consumer group's member has sent no heartbeat; it is removed."""
    CONSUMER_REBALANCE = "consumer rebalance"
    """A consumer group's member has not revoked its partitions; it is removed."""
    DOWNGRADE = "downgrade"
    """Check whether all members of a consumer group use the classic protocol."""
    SWEEP = "sweep"
    """Search some groups for expired offsets."""
    FORGET = "forget"
    """Remove some of the offsets in deleted topics."""


class Timer(NamedTuple):
    """The key of a timer of a group, or of one of its members."""

    kind: TimerKind
    group_id: str = ""
    member_id: str = ""


class Rebalancer:
    """Moves groups through their states. It holds no state but timers."""

    def __init__(self, settings: GroupSettings, timers: Timers[Timer]) -> None:
        self._settings = settings
        self._timers = timers

    # Rebalancing.

    def begin_or_go_on(self, group: ClassicGroup, turn: GroupTurn) -> None:
        """Begin a rebalance after a change of members, or complete the running one if possible."""
        if group.state is GroupState.PREPARING_REBALANCE:
            self._complete_if_all_joined(group, turn)
        else:
            self.begin(group, turn)

    def begin(self, group: ClassicGroup, turn: GroupTurn) -> None:
        """Make all members join again. An empty group first waits for more members."""
        if group.state is GroupState.COMPLETING_REBALANCE:
            group.assign({})
            self.answer_syncs(group, ErrorCode.REBALANCE_IN_PROGRESS, turn)
        self._timers.cancel(Timer(TimerKind.SYNC, group.group_id))
        is_initial = group.state is GroupState.EMPTY
        group.transition(GroupState.PREPARING_REBALANCE, turn.now.time_ms)
        if not is_initial:
            self._complete_or_wait(group, turn)
            return
        delay_ms = self._settings.initial_rebalance_delay_ms
        self._extend(group, InitialDelay(delay_ms, group.rebalance_timeout_ms - delay_ms), turn)

    def join_timer_expired(self, group: ClassicGroup, turn: GroupTurn) -> None:
        """Complete the join phase, unless an empty group still gets members."""
        delay = group.initial_delay
        if delay is not None and delay.member_added and delay.remaining_ms > 0:
            next_ms = min(self._settings.initial_rebalance_delay_ms, delay.remaining_ms)
            self._extend(group, InitialDelay(next_ms, delay.remaining_ms - next_ms), turn)
        else:
            self._complete_join(group, turn)

    def sync_timer_expired(self, group: ClassicGroup, turn: GroupTurn) -> None:
        """Remove the members without a sync in time."""
        silent = list(group.pending_syncs)
        for member_id in silent:
            self.remove_member(group, member_id, turn)
        if silent:
            self.begin(group, turn)

    def _extend(self, group: ClassicGroup, delay: InitialDelay, turn: GroupTurn) -> None:
        group.initial_delay = delay
        self._set_timer(Timer(TimerKind.JOIN, group.group_id), delay.delay_ms, turn)

    def _complete_if_all_joined(self, group: ClassicGroup, turn: GroupTurn) -> None:
        if group.initial_delay is None:
            self._complete_or_wait(group, turn)

    def _complete_or_wait(self, group: ClassicGroup, turn: GroupTurn) -> None:
        timer = Timer(TimerKind.JOIN, group.group_id)
        if group.all_joined:
            self._complete_join(group, turn)
        elif timer not in self._timers:
            self._set_timer(timer, group.rebalance_timeout_ms, turn)

    def _complete_join(self, group: ClassicGroup, turn: GroupTurn) -> None:
        timer = Timer(TimerKind.JOIN, group.group_id)
        self._timers.cancel(timer)
        group.initial_delay = None
        # Static members may be late: only their session timeout removes them (KIP-345).
        absent = [m for m in group.members.values() if m.joining is None and m.instance_id is None]
        for member in absent:
            self.remove_member(group, member.member_id, turn)
        if group.members and not group.elect_joined_leader():
            # The first one that joins gives the others the same time again. A timer set here would
            # only fire again, at once and without end if the members' rebalance timeout is 0.
            return
        group.begin_generation(turn.now.time_ms)
        if group.state is GroupState.EMPTY:
            turn.persist(GroupStored(group.group_id, group.stored()))
        else:
            self._announce_generation(group, turn)

    def _announce_generation(self, group: ClassicGroup, turn: GroupTurn) -> None:
        timeout_ms = group.rebalance_timeout_ms
        self._set_timer(Timer(TimerKind.SYNC, group.group_id), timeout_ms, turn)
        for member in group.members.values():
            self.answer_join(group, member, self.generation_reply(group, member), turn)
            self.expect_heartbeat(group, member, turn)
            member.is_new = False
            group.pending_syncs[member.member_id] = None

    def generation_reply(self, group: ClassicGroup, member: Member) -> JoinReply:
        """The generation, in the reply to this member."""
        is_leader = group.leader == member.member_id
        return JoinReply(
            ErrorCode.NONE,
            member.member_id,
            group.generation,
            group.protocol_type,
            group.protocol,
            group.leader or "",
            members=group.joined_members() if is_leader else (),
        )

    # Members.

    def remove_member(self, group: ClassicGroup, member_id: str, turn: GroupTurn) -> None:
        """Remove a member; its parked requests fail with UNKNOWN_MEMBER_ID."""
        self._timers.cancel(Timer(TimerKind.SESSION, group.group_id, member_id))
        member = group.members.get(member_id)
        if member is not None:
            self.send_away(group, member, ErrorCode.UNKNOWN_MEMBER_ID, turn)
        group.remove(member_id)

    def forget(self, group: ClassicGroup) -> None:
        """Cancel all timers of a group that leaves the classic protocol."""
        for kind in (TimerKind.JOIN, TimerKind.SYNC):
            self._timers.cancel(Timer(kind, group.group_id))
        for member_id in (*group.members, *group.pending_joins):
            self._timers.cancel(Timer(TimerKind.SESSION, group.group_id, member_id))

    def members_removed(self, group: ClassicGroup, members: int, turn: GroupTurn) -> None:
        """Rebalance after this number of members were removed.

        0: only unused ids were removed, which the rebalance need no longer wait for.
        """
        if members and group.state in (GroupState.STABLE, GroupState.COMPLETING_REBALANCE):
            self.begin(group, turn)
        elif group.state is GroupState.PREPARING_REBALANCE:
            self._complete_if_all_joined(group, turn)

    def send_away(
        self, group: ClassicGroup, member: Member, error: ErrorCode, turn: GroupTurn
    ) -> None:
        """Fail the member's parked requests with an error."""
        self.answer_join(group, member, JoinReply(error, member.member_id), turn)
        self.answer_sync(member, SyncReply(error), turn)

    def answer_join(
        self, group: ClassicGroup, member: Member, reply: JoinReply, turn: GroupTurn
    ) -> None:
        """Answer the member's parked join, if there is one."""
        token = group.park_join(member, None)
        if token is not None:
            turn.reply(token, reply)

    def answer_sync(self, member: Member, reply: SyncReply, turn: GroupTurn) -> bool:
        """Answer the member's parked sync; False if there is none."""
        token, member.syncing = member.syncing, None
        if token is not None:
            turn.reply(token, reply)
        return token is not None

    def answer_syncs(self, group: ClassicGroup, error: ErrorCode, turn: GroupTurn) -> None:
        """Answer all parked syncs with assignments, or with an error."""
        for member in group.members.values():
            reply = SyncReply(error)
            if error is ErrorCode.NONE:
                reply = self.assignment_reply(group, member)
            if self.answer_sync(member, reply, turn):
                self.expect_heartbeat(group, member, turn)

    def assignment_reply(self, group: ClassicGroup, member: Member) -> SyncReply:
        return SyncReply(ErrorCode.NONE, group.protocol_type, group.protocol, member.assignment)

    def expect_heartbeat(
        self, group: ClassicGroup, member: Member, turn: GroupTurn, within_ms: int | None = None
    ) -> None:
        """Restart the member's session timeout."""
        timer = Timer(TimerKind.SESSION, group.group_id, member.member_id)
        timeout_ms = member.session_timeout_ms if within_ms is None else within_ms
        self._set_timer(timer, timeout_ms, turn)

    def synced(self, group: ClassicGroup, member: Member) -> None:
        """Note the member's sync; cancel the sync timer if it was the last."""
        group.pending_syncs.pop(member.member_id, None)
        if not group.pending_syncs:
            self._timers.cancel(Timer(TimerKind.SYNC, group.group_id))

    def _set_timer(self, timer: Timer, within_ms: int, turn: GroupTurn) -> None:
        self._timers.set(timer, turn.now.monotonic_ms + within_ms)
