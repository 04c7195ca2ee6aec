"""The invariants of a group. Clients come, go, fall silent, repeat themselves and are fenced, and
the broker dies, in any order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.unit.coordinator.group.group_world import GROUP, GroupWorld
from tidelog.coordinator.decision import Token
from tidelog.coordinator.group.commands import (
    DeleteGroup,
    DeleteReply,
    JoinReply,
    Leaver,
    SyncReply,
)
from tidelog.coordinator.group.records.log_records import GroupRemoved, GroupStored
from tidelog.coordinator.group.records.subscription import SupportedProtocol
from tidelog.coordinator.group.requests.classic_rebalance import Timer, TimerKind
from tidelog.coordinator.group.settings import GroupSettings
from tidelog.coordinator.group.state.classic_group import ClassicGroup
from tidelog.coordinator.group.state.states import GroupState
from tidelog.protocol.error_codes import ErrorCode

PROTOCOLS = (
    (SupportedProtocol("range", b"r"), SupportedProtocol("sticky", b"s")),
    (SupportedProtocol("sticky", b"s2"), SupportedProtocol("range", b"r2")),
    (SupportedProtocol("range", b"r3"),),
)
SETTINGS = GroupSettings(members_max=4, pending_members_max=3)
CLIENTS = 5
PRODUCERS = (1, 2)
SESSION_MS = 10_000


@dataclass
class Client:
    """A consumer with its own knowledge of its membership."""

    instance_id: str | None
    member_id: str = ""
    joining: Token | None = None
    syncing: Token | None = None
    joined: JoinReply | None = None

    @property
    def generation(self) -> int:
        return self.joined.generation if self.joined is not None else -1


class Written(NamedTuple):
    """An offset, and its place in the log."""

    position: int
    offset: int


class GroupStories(RuleBasedStateMachine):
    """The rules are steps of clients and time. The invariants are Kafka's promises."""

    def __init__(self) -> None:
        super().__init__()
        self.world = GroupWorld(SETTINGS)
        self.clients = [Client(f"i{n}" if n < 2 else None) for n in range(CLIENTS)]
        self.handed_in: dict[tuple[int, int], dict[str, bytes]] = {}
        """By life of the group and generation, the leader's assignment that counted."""
        self.told: dict[tuple[int, int], tuple[str | None, str | None]] = {}
        self.committed: Written | None = None
        self.pending: dict[int, Written] = {}
        """The offsets in each producer's open transaction."""
        self.seen_records = 0
        self.life = 0
        """Counts deletions, since a group that is created again begins with a new count of
        generations."""
        self.abandoned: set[Token] = set()

    # Steps of clients.

    @rule(
        number=st.integers(0, CLIENTS - 1),
        choice=st.integers(0, 2),
        version=st.sampled_from([3, 4, 9]),
    )
    def join(self, number: int, choice: int, version: int) -> None:
        client = self.clients[number]
        client.joining = self.world.join(
            client.member_id,
            instance_id=client.instance_id,
            protocols=PROTOCOLS[choice],
            version=version,
        )
        self.hear()

    @rule(number=st.integers(0, CLIENTS - 1))
    def sync(self, number: int) -> None:
        client = self.clients[number]
        if client.joined is None:
            return
        joined, assignments = client.joined, {}
        if joined.leader == client.member_id and not joined.skip_assignment:
            tag = f"{self.world.last_token}".encode()
            assignments = {each.member_id: tag + each.member_id.encode() for each in joined.members}
        before = self.group
        accepts = before is not None and before.state is GroupState.COMPLETING_REBALANCE
        client.syncing = self.world.sync(
            client.member_id, client.generation, assignments, instance_id=client.instance_id
        )
        after = self.group
        if accepts and after is not None and after.state is GroupState.STABLE:
            assert (self.life, after.generation) not in self.handed_in, "assigned twice"
            self.handed_in[self.life, after.generation] = {
                member_id: member.assignment for member_id, member in after.members.items()
            }
        self.hear()

    @rule(number=st.integers(0, CLIENTS - 1))
    def heartbeat(self, number: int) -> None:
        client = self.clients[number]
        error = self.world.heartbeat(client.member_id, client.generation, client.instance_id)
        if error is ErrorCode.NONE:
            assert self.group is not None
            assert self.group.generation == client.generation
        self.forget_if_unknown(client, error)

    @rule(number=st.integers(0, CLIENTS - 1))
    def commit(self, number: int) -> None:
        client = self.clients[number]
        offset = self.world.last_token
        error = self.world.commit(
            offset, client.member_id, client.generation, instance_id=client.instance_id
        )
        if error is ErrorCode.NONE:
            group = self.group
            assert group is not None
            assert group.state is GroupState.EMPTY or client.generation == group.generation
            self.committed = Written(len(self.world.log), offset)
        self.forget_if_unknown(client, error)

    @rule(number=st.integers(0, CLIENTS - 1), producer=st.sampled_from(PRODUCERS))
    def commit_in_transaction(self, number: int, producer: int) -> None:
        client = self.clients[number]
        offset = self.world.last_token
        error = self.world.commit_in_transaction(
            offset,
            client.member_id,
            client.generation,
            producer_id=producer,
            instance_id=client.instance_id,
        )
        if error is ErrorCode.NONE:
            group = self.group
            assert group is not None
            is_fenced = client.member_id or client.instance_id or client.generation >= 0
            if group.state is not GroupState.EMPTY and is_fenced:
                assert client.generation == group.generation
            self.pending[producer] = Written(len(self.world.log), offset)
        self.forget_if_unknown(client, error)

    @rule(producer=st.sampled_from(PRODUCERS), commit=st.booleans())
    def end_transaction(self, producer: int, commit: bool) -> None:
        self.world.end_transaction(producer, commit=commit)
        held = self.pending.pop(producer, None)
        if held is not None and commit:
            self.committed = max(held, self.committed or held)

    @rule(number=st.integers(0, CLIENTS - 1))
    def leave(self, number: int) -> None:
        client = self.clients[number]
        self.world.leave(Leaver(client.member_id, client.instance_id))
        client.member_id, client.joined = "", None
        self.hear()

    @rule(number=st.integers(0, CLIENTS - 1))
    def start_again(self, number: int) -> None:
        """The process dies; its successor knows only its instance id."""
        self.clients[number] = Client(self.clients[number].instance_id)

    @rule(milliseconds=st.sampled_from([1, 1_000, 3_000, SESSION_MS - 1, SESSION_MS, 60_000]))
    def wait(self, milliseconds: int) -> None:
        self.world.advance(milliseconds)
        self.hear()

    @rule()
    def sweep(self) -> None:
        self.world.advance(SETTINGS.offsets_check_interval_ms)
        self.hear()

    @rule()
    def delete(self) -> None:
        if self.world.ask(DeleteGroup(GROUP), DeleteReply).error is ErrorCode.NONE:
            self.committed = None
            self.pending.clear()
        self.hear()

    @rule()
    @precondition(lambda self: self.world.log)
    def restart(self) -> None:
        """Parked requests are lost; their clients ask again."""
        self.abandoned |= set(self.parked())
        for client in self.clients:
            client.joining = client.syncing = None
        self.world.restart()
        # A generation without an assignment was never stored: its number is given again.
        stored = self.world.machine.stored_groups.get(GROUP)
        last = 0 if stored is None else stored.generation
        self.told = {
            (life, generation): told
            for (life, generation), told in self.told.items()
            if (life, generation) <= (self.life, last)
        }

    # Answers to clients.

    @property
    def group(self) -> ClassicGroup | None:
        return self.world.machine.groups.get(GROUP)

    def parked(self) -> list[Token]:
        return [
            Token(number)
            for number in range(1, self.world.last_token + 1)
            if number not in self.world.replies and number not in self.abandoned
        ]

    def hear(self) -> None:
        self.note_removals()
        for client in self.clients:
            if client.joining is not None and client.joining in self.world.replies:
                self.hear_join(client, self.world.joined(client.joining))
                client.joining = None
            if client.syncing is not None and client.syncing in self.world.replies:
                self.hear_sync(client, self.world.synced(client.syncing))
                client.syncing = None

    def note_removals(self) -> None:
        for record in self.world.log[self.seen_records :]:
            if isinstance(record, GroupRemoved):
                self.life += 1
        self.seen_records = len(self.world.log)

    def hear_join(self, client: Client, reply: JoinReply) -> None:
        if reply.error is ErrorCode.MEMBER_ID_REQUIRED:
            client.member_id = reply.member_id
        self.forget_if_unknown(client, reply.error)
        if reply.error is not ErrorCode.NONE:
            return
        client.member_id, client.joined = reply.member_id, reply
        assert reply.protocol in {"range", "sticky"}
        if reply.members:
            assert reply.leader == reply.member_id or reply.skip_assignment
            assert reply.member_id in {each.member_id for each in reply.members}
            assert len(reply.members) <= CLIENTS

    def hear_sync(self, client: Client, reply: SyncReply) -> None:
        self.forget_if_unknown(client, reply.error)
        if reply.error is not ErrorCode.NONE:
            return
        assignments = self.handed_in[self.life, client.generation]
        # A static member has the assignment of the one that it was.
        assert reply.assignment in {*assignments.values()}
        if client.instance_id is None:
            assert reply.assignment == assignments[client.member_id]

    def forget_if_unknown(self, client: Client, error: ErrorCode) -> None:
        if error in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID):
            client.member_id, client.joined = "", None
        if error is ErrorCode.ILLEGAL_GENERATION:
            client.joined = None

    # Invariants.

    @invariant()
    def usage_counts_against_the_limits(self) -> None:
        self.world.check_usage()

    @invariant()
    def no_request_waits_for_ever(self) -> None:
        """Every request without an answer is one that a member waits for."""
        group = self.group
        members = [] if group is None else list(group.members.values())
        held = [each.joining for each in members] + [each.syncing for each in members]
        assert sorted(each for each in held if each is not None) == self.parked()

    @invariant()
    def the_group_is_whole(self) -> None:
        group = self.group
        if group is None:
            return
        assert len(group.members) <= SETTINGS.members_max + SETTINGS.pending_members_max
        assert all(member_id == each.member_id for member_id, each in group.members.items())
        assert group.leader is None if not group.members else group.leader in group.members
        assert group.joining_count == sum(m.joining is not None for m in group.members.values())
        static = {m.instance_id: m.member_id for m in group.members.values() if m.instance_id}
        assert group.static_members == static
        assert set(group.pending_syncs) <= set(group.members)
        assert not set(group.pending_joins) & set(group.members)
        if group.state is GroupState.EMPTY:
            assert not group.members
        elif group.state is not GroupState.PREPARING_REBALANCE:
            assert group.members
            assert group.joining_count == 0
        if group.state is not GroupState.COMPLETING_REBALANCE:
            assert all(member.syncing is None for member in group.members.values())

    @invariant()
    def something_will_happen(self) -> None:
        """No state waits without a timer, and no member that owes a heartbeat is forgotten."""
        group, timers = self.group, self.world.machine._timers
        if group is None:
            return
        join, sync = Timer(TimerKind.JOIN, GROUP), Timer(TimerKind.SYNC, GROUP)
        assert (join in timers) == (group.state is GroupState.PREPARING_REBALANCE)
        if group.state is GroupState.COMPLETING_REBALANCE:
            assert sync in timers or not group.pending_syncs
        for member in group.members.values():
            if not member.waits or member.is_new:
                assert Timer(TimerKind.SESSION, GROUP, member.member_id) in timers
        for member_id in group.pending_joins:
            assert Timer(TimerKind.SESSION, GROUP, member_id) in timers

    @invariant()
    def a_stable_group_equals_the_stored_group(self) -> None:
        group = self.group
        if group is not None and group.state is GroupState.STABLE:
            assert self.world.machine.stored_groups[GROUP] == group.stored()

    @invariant()
    def one_generation_has_one_leader_and_one_protocol(self) -> None:
        group = self.group
        if group is None or group.state not in (GroupState.COMPLETING_REBALANCE, GroupState.STABLE):
            return
        known = self.told.setdefault(
            (self.life, group.generation), (group.protocol, group.protocol_type)
        )
        assert known == (group.protocol, group.protocol_type)

    @invariant()
    def every_stored_transition_is_legal(self) -> None:
        """Generations never go back. A generation is stored as stable, and perhaps as empty after
        that."""
        before: GroupStored | None = None
        for record in self.world.log:
            if isinstance(record, GroupRemoved):
                before = None
            if not isinstance(record, GroupStored):
                continue
            if before is not None:
                old, new = before.group, record.group
                assert new.generation >= old.generation
                same = new.generation == old.generation
                # The same generation again: a static member under a new id.
                assert not same or (old.members and len(new.members) == len(old.members))
                assert new.state_timestamp_ms >= old.state_timestamp_ms
            assert bool(record.group.members) == (record.group.protocol is not None)
            before = record

    @invariant()
    def the_last_commit_is_found(self) -> None:
        offsets = self.world.machine.offsets
        found = offsets.get(GROUP, "t", 0)
        if found is None:
            # The offset may have expired, but not while it is pending. No older offset takes its
            # place.
            assert self.committed is None or not self.pending
            self.committed = None
            return
        assert self.committed is not None
        assert found.offset == self.committed.offset

    @invariant()
    def pending_offsets_are_unstable(self) -> None:
        offsets = self.world.machine.offsets
        assert offsets.is_pending(GROUP, "t", 0) == bool(self.pending)
        assert not self.pending or self.group is not None


TestGroupStories = GroupStories.TestCase
TestGroupStories.settings = settings(stateful_step_count=60)
