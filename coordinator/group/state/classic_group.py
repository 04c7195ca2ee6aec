"""One group of the classic protocol: its members, its generation, its state.

Pure data and its invariants. `classic_rebalance` and `classic_membership` decide requests.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from tidelog.coordinator.decision import Token
from tidelog.coordinator.group.commands import JoinedMember
from tidelog.coordinator.group.records.log_records import NO_TIMESTAMP, StoredGroup, StoredMember
from tidelog.coordinator.group.records.subscription import (
    CONSUMER_PROTOCOL_TYPE,
    SupportedProtocol,
    subscribed_topics,
)
from tidelog.coordinator.group.state.sizes import (
    GROUP_BYTES,
    ID_BYTES,
    MEMBER_BYTES,
    protocols_bytes,
    texts_bytes,
)
from tidelog.coordinator.group.state.states import (
    PREVIOUS_STATES,
    GroupState,
    InvalidGroupTransition,
)
from tidelog.protocol.error_codes import ErrorCode


@dataclass(slots=True)
class Member:
    """A member of a group. `joining` and `syncing` are its parked requests."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    protocols: tuple[SupportedProtocol, ...]
    assignment: bytes = b""
    is_new: bool = False
    """It has not learned of a generation yet."""
    joining: Token | None = None
    syncing: Token | None = None

    def metadata(self, protocol: str | None) -> bytes:
        """Its subscription for a protocol."""
        return next((each.metadata for each in self.protocols if each.name == protocol), b"")

    @property
    def size_bytes(self) -> int:
        """Its approximate memory."""
        texts = texts_bytes(self.member_id, self.instance_id, self.client_id, self.client_host)
        return MEMBER_BYTES + texts + protocols_bytes(self.protocols) + len(self.assignment)

    @property
    def waits(self) -> bool:
        """Whether a request is parked, so that it need not send heartbeats."""
        return self.joining is not None or self.syncing is not None


@dataclass(slots=True)
class InitialDelay:
    """The delay of an empty group's first rebalance, for more members."""

    delay_ms: int
    remaining_ms: int
    member_added: bool = False
    """Whether one joined since the delay began; it is then extended."""


@dataclass(slots=True)
class ClassicGroup:
    """A group. Its members stay in the order of their arrival."""

    group_id: str
    state: GroupState = GroupState.EMPTY
    state_timestamp_ms: int = NO_TIMESTAMP
    generation: int = 0
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str | None = None
    members: dict[str, Member] = field(default_factory=dict)
    static_members: dict[str, str] = field(default_factory=dict)
    """Member ids by instance id."""
    pending_joins: dict[str, None] = field(default_factory=dict)
    """Ids that no member has joined with yet, in order."""
    pending_syncs: dict[str, None] = field(default_factory=dict)
    """Members that have not requested this generation's assignment, in order."""
    initial_delay: InitialDelay | None = None
    _joining: int = 0
    _support: Counter[str] = field(default_factory=Counter)
    """The number of members that support each protocol, without those that none supports."""
    _member_bytes: int = 0

    @classmethod
    def from_stored(cls, group_id: str, stored: StoredGroup) -> ClassicGroup:
        """The group in its stored state: stable with members, empty without."""
        group = cls(
            group_id,
            GroupState.STABLE if stored.members else GroupState.EMPTY,
            stored.state_timestamp_ms,
            stored.generation,
            stored.protocol_type or None,
            stored.protocol,
        )
        for each in stored.members:
            protocols = (SupportedProtocol(stored.protocol or "", each.subscription),)
            group.add(
                Member(
                    each.member_id,
                    each.instance_id,
                    each.client_id,
                    each.client_host,
                    each.rebalance_timeout_ms,
                    each.session_timeout_ms,
                    protocols,
                    each.assignment,
                )
            )
        if stored.leader in group.members:
            group.leader = stored.leader
        return group

    def stored(self) -> StoredGroup:
        """The stored form of the group."""
        return StoredGroup(
            self.protocol_type or "",
            self.generation,
            self.protocol,
            self.leader,
            self.state_timestamp_ms,
            tuple(
                [
                    StoredMember(
                        member.member_id,
                        member.instance_id,
                        member.client_id,
                        member.client_host,
                        member.rebalance_timeout_ms,
                        member.session_timeout_ms,
                        member.metadata(self.protocol),
                        member.assignment,
                    )
                    for member in self.members.values()
                ]
            ),
        )

    # State.

    def transition(self, target: GroupState, time_ms: int) -> None:
        """Enter a state. Raises InvalidGroupTransition."""
        if self.state not in PREVIOUS_STATES[target]:
            raise InvalidGroupTransition(self.group_id, self.state, target)
        self.state = target
        self.state_timestamp_ms = time_ms

    def begin_generation(self, time_ms: int) -> None:
        """Form the next generation of the joined members; without members the group is empty."""
        self.generation += 1
        self.pending_syncs.clear()
        if self.members:
            self.protocol = self.elected_protocol()
            self.transition(GroupState.COMPLETING_REBALANCE, time_ms)
        else:
            self.protocol = None
            self.transition(GroupState.EMPTY, time_ms)

    @property
    def is_unused(self) -> bool:
        """Whether it has neither members nor pending ids."""
        return not self.members and not self.pending_joins

    @property
    def size_bytes(self) -> int:
        """Its approximate memory, without its offsets."""
        ids = len(self.pending_joins) * ID_BYTES
        return GROUP_BYTES + len(self.group_id) + self._member_bytes + ids

    # Members.

    def add(self, member: Member) -> None:
        """Add a member. The first one leads."""
        assert member.member_id not in self.members
        self.members[member.member_id] = member
        if member.instance_id is not None:
            self.static_members[member.instance_id] = member.member_id
        if self.leader is None:
            self.leader = member.member_id
        self.pending_joins.pop(member.member_id, None)
        self._joining += member.joining is not None
        self._support.update(_names(member.protocols))
        self._member_bytes += member.size_bytes

    def remove(self, member_id: str) -> Member | None:
        """Remove a member or a pending id. If the leader goes, another member leads."""
        self.pending_joins.pop(member_id, None)
        self.pending_syncs.pop(member_id, None)
        member = self.members.pop(member_id, None)
        if member is None:
            return None
        if member.instance_id is not None:
            self.static_members.pop(member.instance_id, None)
        self._member_bytes -= member.size_bytes
        self._joining -= member.joining is not None
        self._support -= Counter(_names(member.protocols))
        if self.leader == member_id:
            self.leader = next(iter(self.members), None)
        return member

    def replace_static(self, old_id: str, new_id: str, client_id: str, client_host: str) -> Member:
        """Give a returned static member its new id, in its old place, with its assignment.

        Its parked requests must have been answered.
        """
        member = self.members[old_id]
        assert not member.waits
        self.members = {
            new_id if member_id == old_id else member_id: each
            for member_id, each in self.members.items()
        }
        self._member_bytes -= member.size_bytes
        member.member_id = new_id
        member.client_id = client_id
        member.client_host = client_host
        self._member_bytes += member.size_bytes
        assert member.instance_id is not None
        self.static_members[member.instance_id] = new_id
        if old_id in self.pending_syncs:
            del self.pending_syncs[old_id]
            self.pending_syncs[new_id] = None
        if self.leader == old_id:
            self.leader = new_id
        return member

    def update(
        self,
        member: Member,
        protocols: tuple[SupportedProtocol, ...],
        session_timeout_ms: int,
        rebalance_timeout_ms: int,
    ) -> None:
        """Update a member's data when it joins again."""
        self._support -= Counter(_names(member.protocols))
        self._support.update(_names(protocols))
        self._member_bytes += protocols_bytes(protocols) - protocols_bytes(member.protocols)
        member.protocols = protocols
        member.session_timeout_ms = session_timeout_ms
        member.rebalance_timeout_ms = rebalance_timeout_ms

    def park_join(self, member: Member, token: Token | None) -> Token | None:
        """Park the member's join (None: none); return the previously parked one."""
        before, member.joining = member.joining, token
        self._joining += (token is not None) - (before is not None)
        return before

    def identity_error(self, member_id: str, instance_id: str | None) -> ErrorCode:
        """Why this is not a member of the group; NONE if it is."""
        return identity_error(self.members, self.static_members, member_id, instance_id)

    @property
    def joining_count(self) -> int:
        """The number of members with a parked join."""
        return self._joining

    @property
    def all_joined(self) -> bool:
        """Whether every member has joined and no id is pending."""
        return self._joining == len(self.members) and not self.pending_joins

    @property
    def rebalance_timeout_ms(self) -> int:
        """The longest rebalance timeout of any member."""
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    def elect_joined_leader(self) -> bool:
        """Make sure that the leader has joined; False if no member has."""
        if self.leader is not None and self.members[self.leader].joining is not None:
            return True
        for member in self.members.values():
            if member.joining is not None:
                self.leader = member.member_id
                return True
        return False

    def joined_members(self) -> tuple[JoinedMember, ...]:
        """The leader's list of members."""
        return tuple(
            [
                JoinedMember(each.member_id, each.instance_id, each.metadata(self.protocol))
                for each in self.members.values()
            ]
        )

    # Protocols.

    def supports(self, protocol_type: str, protocols: Sequence[SupportedProtocol]) -> bool:
        """Whether a member with these protocols can join.

        The type must be the group's, and all members must support at least one of the protocols.
        """
        if self.state is GroupState.EMPTY:
            return bool(protocol_type) and bool(protocols)
        return protocol_type == self.protocol_type and any(
            self._support[each.name] == len(self.members) for each in protocols
        )

    def elected_protocol(self) -> str:
        """The protocol with most votes; of several, the one with the first vote.

        Each member votes for the first of its protocols that all support.
        """
        members = len(self.members)
        votes: Counter[str] = Counter()
        for member in self.members.values():
            votes[next(p.name for p in member.protocols if self._support[p.name] == members)] += 1
        return votes.most_common(1)[0][0]

    def may_consume(self, topic: str) -> bool:
        """Whether a member subscribes to the topic, or has unreadable metadata."""
        if not self.members:
            return False
        for member in self.members.values():
            topics = subscribed_topics(member.metadata(self.protocol))
            if topics is None or topic in topics:
                return True
        return False

    def subscriptions(self) -> frozenset[str] | None:
        """All topics that its consumers subscribe to; None if unknown."""
        if self.protocol_type != CONSUMER_PROTOCOL_TYPE:
            return None
        found: set[str] = set()
        for member in self.members.values():
            topics = subscribed_topics(member.metadata(self.protocol))
            if topics is None:
                return None
            found |= topics
        return frozenset(found)

    def assign(self, assignments: Mapping[str, bytes]) -> None:
        """Set the leader's assignments; members without one get none."""
        for member in self.members.values():
            before = len(member.assignment)
            member.assignment = assignments.get(member.member_id, b"")
            self._member_bytes += len(member.assignment) - before


def _names(protocols: Iterable[SupportedProtocol]) -> set[str]:
    return {each.name for each in protocols}


def identity_error(
    members: Container[str],
    static_members: Mapping[str, str],
    member_id: str,
    instance_id: str | None,
) -> ErrorCode:
    """Why this is not one of a group's members; NONE if it is."""
    if instance_id is not None:
        holder = static_members.get(instance_id)
        if holder is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if holder != member_id:
            return ErrorCode.FENCED_INSTANCE_ID
    return ErrorCode.NONE if member_id in members else ErrorCode.UNKNOWN_MEMBER_ID
