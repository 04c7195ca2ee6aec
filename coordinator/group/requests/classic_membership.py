"""JoinGroup, SyncGroup, Heartbeat and LeaveGroup on one group of the classic protocol."""

from __future__ import annotations

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
from tidelog.coordinator.group.records.log_records import GroupStored
from tidelog.coordinator.group.requests.classic_rebalance import (
    GroupTurn,
    Rebalancer,
    Timer,
    TimerKind,
)
from tidelog.coordinator.group.requests.limits import GroupLimits
from tidelog.coordinator.group.settings import GroupSettings
from tidelog.coordinator.group.state.classic_group import ClassicGroup, Member
from tidelog.coordinator.group.state.states import GroupState
from tidelog.coordinator.timers import Timers
from tidelog.protocol.error_codes import ErrorCode

NAME_LENGTH_MAX = 200
"""The characters of a client's name in a member id."""


class ClassicMembership:
    """The requests of the classic protocol. Each is answered at once or parked."""

    def __init__(
        self,
        settings: GroupSettings,
        timers: Timers[Timer],
        rebalancer: Rebalancer,
        limits: GroupLimits,
    ) -> None:
        self._settings = settings
        self._limits = limits
        self._timers = timers
        self._rebalancer = rebalancer

    # JoinGroup.

    def join(self, group: ClassicGroup, join: Join, token: Token, turn: GroupTurn) -> None:
        """Add the member, or reply with an error."""
        is_new = join.member_id == NO_MEMBER
        error = self._join_error(group, join)
        if error is not ErrorCode.NONE:
            turn.reply(token, JoinReply(error, join.member_id))
            if error is ErrorCode.GROUP_MAX_SIZE_REACHED and not is_new:
                self.refuse_member(group, join, turn)
        elif not is_new and join.member_id not in group.pending_joins:
            self._rejoin(group, join, token, turn)
        elif not is_new:
            self._add_member(group, join, join.member_id, token, turn)
        elif join.instance_id is not None:
            self._join_static(group, join, join.instance_id, token, turn)
        elif join.requires_known_id:
            self._require_member_id(group, join, token, turn)
        else:
            self._add_member(group, join, new_member_id(join), token, turn)

    def _join_error(self, group: ClassicGroup, join: Join) -> ErrorCode:
        if group.state is GroupState.DEAD:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        if not self._has_room(group, join):
            return ErrorCode.GROUP_MAX_SIZE_REACHED
        if not group.supports(join.protocol_type, join.protocols):
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        if join.member_id == NO_MEMBER:
            return ErrorCode.NONE
        if join.member_id in group.pending_joins and join.instance_id is None:
            return ErrorCode.NONE
        return group.identity_error(join.member_id, join.instance_id)

    def _has_room(self, group: ClassicGroup, join: Join) -> bool:
        member = group.members.get(join.member_id)
        if member is None and join.instance_id is not None:
            member = group.members.get(group.static_members.get(join.instance_id, ""))
        if group.state is GroupState.PREPARING_REBALANCE:
            # Members that do not rejoin must not keep others out.
            is_in = member is not None and member.joining is not None
            return is_in or group.joining_count < self._settings.members_max
        return member is not None or len(group.members) < self._settings.members_max

    def refuse_member(self, group: ClassicGroup, join: Join, turn: GroupTurn) -> None:
        """Remove a member, or an unused id, that a full group has no room for.

        Its client gives up. So the rebalance must not wait for it.
        """
        is_member = join.member_id in group.members
        if is_member and group.identity_error(join.member_id, join.instance_id):
            return
        self._rebalancer.remove_member(group, join.member_id, turn)
        self._rebalancer.members_removed(group, int(is_member), turn)

    def _require_member_id(
        self, group: ClassicGroup, join: Join, token: Token, turn: GroupTurn
    ) -> None:
        if len(group.pending_joins) >= self._settings.pending_members_max:
            turn.reply(token, JoinReply(ErrorCode.GROUP_MAX_SIZE_REACHED, NO_MEMBER))
            return
        member_id = new_member_id(join)
        group.pending_joins[member_id] = None
        timer = Timer(TimerKind.SESSION, group.group_id, member_id)
        self._timers.set(timer, turn.now.monotonic_ms + join.session_timeout_ms)
        turn.reply(token, JoinReply(ErrorCode.MEMBER_ID_REQUIRED, member_id))

    def _add_member(
        self, group: ClassicGroup, join: Join, member_id: str, token: Token, turn: GroupTurn
    ) -> None:
        if not group.members:
            group.protocol_type = join.protocol_type
        member = Member(
            member_id,
            join.instance_id,
            join.client_id,
            join.client_host,
            join.rebalance_timeout_ms,
            join.session_timeout_ms,
            join.protocols,
            is_new=True,
        )
        group.add(member)
        group.park_join(member, token)
        if group.initial_delay is not None:
            group.initial_delay.member_added = True
        # A new member sends no heartbeat before it knows its id, and a closed client stays
        # unnoticed while its join is parked. So its first join has a limit.
        within_ms = self._settings.new_member_join_timeout_ms
        self._rebalancer.expect_heartbeat(group, member, turn, within_ms)
        self._rebalancer.begin_or_go_on(group, turn)

    def _join_static(
        self, group: ClassicGroup, join: Join, instance_id: str, token: Token, turn: GroupTurn
    ) -> None:
        old_id = group.static_members.get(instance_id)
        if old_id is None:
            self._add_member(group, join, new_member_id(join), token, turn)
            return
        before, rebalancer = group.leader, self._rebalancer
        fenced = group.members[old_id]
        rebalancer.send_away(group, fenced, ErrorCode.FENCED_INSTANCE_ID, turn)
        self._timers.cancel(Timer(TimerKind.SESSION, group.group_id, old_id))
        member = group.replace_static(old_id, new_member_id(join), join.client_id, join.client_host)
        rebalancer.expect_heartbeat(group, member, turn)
        group.update(member, join.protocols, join.session_timeout_ms, join.rebalance_timeout_ms)
        if group.state is GroupState.STABLE and group.protocol == group.elected_protocol():
            turn.persist(GroupStored(group.group_id, group.stored()))
            turn.reply(token, self._resumed(group, member, join, before))
        else:
            # The leader may know the member by its old id, and its assignment would miss it. So the
            # generation ends.
            self._park_join(group, member, token, turn)
            if member.is_new:
                # Its first join goes on.
                within_ms = self._settings.new_member_join_timeout_ms
                rebalancer.expect_heartbeat(group, member, turn, within_ms)
            rebalancer.begin_or_go_on(group, turn)

    def _resumed(
        self, group: ClassicGroup, member: Member, join: Join, leader_before: str | None
    ) -> JoinReply:
        """The reply to a static member that returned into a stable group.

        A leader must not assign anew. If its version cannot express that, the reply names its old
        id as the leader.
        """
        reply = self._rebalancer.generation_reply(group, member)
        is_leader = group.leader == member.member_id
        return JoinReply(
            reply.error,
            reply.member_id,
            reply.generation,
            reply.protocol_type,
            reply.protocol,
            reply.leader if join.can_skip_assignment else leader_before or "",
            join.can_skip_assignment and is_leader,
            reply.members if join.can_skip_assignment else (),
        )

    def _rejoin(self, group: ClassicGroup, join: Join, token: Token, turn: GroupTurn) -> None:
        member, rebalancer = group.members[join.member_id], self._rebalancer
        is_leader = group.leader == member.member_id
        changed = member.protocols != join.protocols
        # Unchanged metadata: the answer to its first join was lost. But a leader of a stable group
        # rejoins when it has seen a change that affects the assignment.
        is_repeat = not changed and (
            group.state is GroupState.COMPLETING_REBALANCE
            or (group.state is GroupState.STABLE and not is_leader)
        )
        if is_repeat:
            turn.reply(token, rebalancer.generation_reply(group, member))
            return
        group.update(member, join.protocols, join.session_timeout_ms, join.rebalance_timeout_ms)
        self._park_join(group, member, token, turn)
        rebalancer.begin_or_go_on(group, turn)

    def _park_join(
        self, group: ClassicGroup, member: Member, token: Token, turn: GroupTurn
    ) -> None:
        superseded = group.park_join(member, token)
        if superseded is not None:
            # The client has asked again and reads no answer to the first request, which must end.
            reply = JoinReply(ErrorCode.REBALANCE_IN_PROGRESS, member.member_id)
            turn.reply(superseded, reply)

    # SyncGroup.

    def sync(self, group: ClassicGroup, sync: Sync, token: Token, turn: GroupTurn) -> None:
        """Give the member its assignment, now or once the leader has submitted it."""
        error = _sync_error(group, sync)
        if error is not ErrorCode.NONE:
            turn.reply(token, SyncReply(error))
            return
        member, rebalancer = group.members[sync.member_id], self._rebalancer
        rebalancer.synced(group, member)
        if group.state is GroupState.STABLE:
            rebalancer.expect_heartbeat(group, member, turn)
            turn.reply(token, rebalancer.assignment_reply(group, member))
            return
        rebalancer.answer_sync(member, SyncReply(ErrorCode.REBALANCE_IN_PROGRESS), turn)
        member.syncing = token
        if group.leader == member.member_id:
            self._take_assignment(group, sync, turn)

    def _take_assignment(self, group: ClassicGroup, sync: Sync, turn: GroupTurn) -> None:
        before = group.size_bytes
        group.assign(sync.assignments)
        group.transition(GroupState.STABLE, turn.now.time_ms)
        limit = self._limits.assignments(before, group.size_bytes)
        if limit is not None:
            group.assign({})
            self._rebalancer.answer_syncs(group, turn.refuse(limit), turn)
            self._rebalancer.begin(group, turn)
            return
        turn.persist(GroupStored(group.group_id, group.stored()))
        self._rebalancer.answer_syncs(group, ErrorCode.NONE, turn)

    # Heartbeat.

    def heartbeat(
        self, group: ClassicGroup, heartbeat: Heartbeat, token: Token, turn: GroupTurn
    ) -> None:
        """Keep the member's session, and tell it whether to rejoin."""
        error = _member_error(
            group, heartbeat.member_id, heartbeat.instance_id, heartbeat.generation
        )
        if error is ErrorCode.NONE:
            self._rebalancer.expect_heartbeat(group, group.members[heartbeat.member_id], turn)
            if group.state is GroupState.PREPARING_REBALANCE:
                error = ErrorCode.REBALANCE_IN_PROGRESS
        turn.reply(token, HeartbeatReply(error))

    # LeaveGroup.

    def leave(self, group: ClassicGroup, leave: Leave, token: Token, turn: GroupTurn) -> None:
        """Remove each of the members; the others rebalance once."""
        if group.state is GroupState.DEAD:
            turn.reply(token, LeaveReply(ErrorCode.COORDINATOR_NOT_AVAILABLE))
            return
        results = []
        members_before = len(group.members)
        for leaver in leave.members:
            member_id, error = _leaving(group, leaver)
            if error is ErrorCode.NONE:
                self._rebalancer.remove_member(group, member_id, turn)
            results.append((leaver, error))
        turn.reply(token, LeaveReply(ErrorCode.NONE, results))
        self._rebalancer.members_removed(group, members_before - len(group.members), turn)

    # Timeouts.

    def session_expired(self, group: ClassicGroup, member_id: str, turn: GroupTurn) -> None:
        """Remove a member without a heartbeat, or an unused id."""
        member = group.members.get(member_id)
        if member is not None and member.waits and not member.is_new:
            # The member waits for the coordinator; its session continues after the answer.
            return
        self._rebalancer.remove_member(group, member_id, turn)
        self._rebalancer.members_removed(group, 0 if member is None else 1, turn)


def new_member_id(join: Join) -> str:
    """A member id in Kafka's form, with a shortened name."""
    return f"{(join.instance_id or join.client_id)[:NAME_LENGTH_MAX]}-{join.fresh_id}"


def _member_error(
    group: ClassicGroup, member_id: str, instance_id: str | None, generation: int
) -> ErrorCode:
    if group.state is GroupState.DEAD:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    error = group.identity_error(member_id, instance_id)
    if error is ErrorCode.NONE and generation != group.generation:
        return ErrorCode.ILLEGAL_GENERATION
    return error


def _sync_error(group: ClassicGroup, sync: Sync) -> ErrorCode:
    error = _member_error(group, sync.member_id, sync.instance_id, sync.generation)
    if error is not ErrorCode.NONE:
        return error
    if sync.protocol_type not in (None, group.protocol_type):
        return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    if sync.protocol not in (None, group.protocol):
        return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    if group.state is GroupState.PREPARING_REBALANCE:
        return ErrorCode.REBALANCE_IN_PROGRESS
    return ErrorCode.NONE


def _leaving(group: ClassicGroup, leaver: Leaver) -> tuple[str, ErrorCode]:
    """The leaving member's id, and why it cannot leave."""
    member_id, instance_id = leaver
    if member_id == NO_MEMBER:
        if instance_id is None or instance_id not in group.static_members:
            return member_id, ErrorCode.UNKNOWN_MEMBER_ID
        return group.static_members[instance_id], ErrorCode.NONE
    if member_id in group.pending_joins and instance_id is None:
        return member_id, ErrorCode.NONE
    return member_id, group.identity_error(member_id, instance_id)
