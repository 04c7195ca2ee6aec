"""One group coordinator in virtual time. The world keeps its records, as a log would."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple, TypeVar
from uuid import UUID

from tidelog.coordinator.decision import BatchProducer, Decision, LimitMet, Now, Token
from tidelog.coordinator.group.assign.target_assignment import make_target
from tidelog.coordinator.group.commands import (
    Command,
    CommitOffsets,
    CommitTransactionalOffsets,
    DescribeGroup,
    DescribeGroupReply,
    FetchOffsets,
    GroupWork,
    Heartbeat,
    HeartbeatReply,
    Join,
    JoinReply,
    Leave,
    Leaver,
    LeaveReply,
    OffsetsReply,
    OffsetToCommit,
    PartitionErrors,
    PatternLookup,
    PatternsFound,
    Reply,
    Sync,
    SyncReply,
    TargetMade,
)
from tidelog.coordinator.group.consumer_commands import ClusterTopics, Matches
from tidelog.coordinator.group.machine import GroupMachine
from tidelog.coordinator.group.records.log_records import (
    GroupRecord,
    OffsetPending,
    TransactionEnded,
    decode_record,
    encode_record,
)
from tidelog.coordinator.group.records.subscription import SupportedProtocol
from tidelog.coordinator.group.requests.classic_rebalance import GroupDecision
from tidelog.coordinator.group.requests.limits import GroupBudgets, unlimited
from tidelog.coordinator.group.settings import ConsumerTimeouts, GroupSettings
from tidelog.coordinator.group.state.classic_group import ClassicGroup
from tidelog.coordinator.group.state.sizes import (
    GROUP_BYTES,
    ID_BYTES,
    TOPIC_NAME_BYTES,
    assignment_bytes,
    offset_bytes,
    pending_bytes,
    subscription_bytes,
)
from tidelog.coordinator.group.state.states import GroupState
from tidelog.coordinator.patterns import matching
from tidelog.identifiers import TopicId
from tidelog.protocol.error_codes import ErrorCode

R = TypeVar("R", bound=Reply)

GROUP = "g"
OLD, NEW = UUID(int=1), UUID(int=2)
"""Ids of topics."""
RANGE = (SupportedProtocol("range", b"range metadata"),)
SESSION_MS = 10_000
REBALANCE_MS = 60_000
DELAY_MS = GroupSettings().initial_rebalance_delay_ms
START_MS = 1_700_000_000_000


class FakeTopic(NamedTuple):
    """A topic, as the coordinator sees it."""

    topic_id: TopicId
    name: str
    partition_count: int


class FakeTopics:
    """The topics of a cluster; another object after each change."""

    def __init__(self, topics: Mapping[TopicId, FakeTopic]) -> None:
        self.topics = topics

    def topic_named(self, name: str) -> FakeTopic | None:
        return next((each for each in self.topics.values() if each.name == name), None)


def find_topics(patterns: Iterable[str], topics: ClusterTopics) -> Matches:
    """The topics that the expressions name."""
    names = [each.name for each in topics.topics.values()]
    return Matches(topics.topics, {each: frozenset(matching(each, names)) for each in patterns})


class GroupWorld:
    """Asks a machine, applies its decisions, and remembers the answers."""

    def __init__(
        self, settings: GroupSettings | None = None, budgets: GroupBudgets | None = None
    ) -> None:
        self.settings = settings or GroupSettings()
        self.budgets = budgets or unlimited()
        self.limits: list[LimitMet] = []
        self.topics = FakeTopics({})
        self.monotonic_ms = 0
        self.log: list[GroupRecord] = []
        self.replies: dict[Token, Reply] = {}
        self.last_token = Token(0)
        self._ids = 0
        self.timeouts: dict[str, ConsumerTimeouts] = {}
        """By id, the consumer groups with timeouts that differ from the defaults."""
        self.work: list[GroupWork] = []
        self.work_done = 0
        self.deleted: set[tuple[str, TopicId | None]] = set()
        """Topics, by name and id, that the cluster no longer has."""
        self.machine = self._machine()
        self._take(self.machine.loaded(self.now))

    def _machine(self) -> GroupMachine:
        def timeouts_of(group_id: str) -> ConsumerTimeouts:
            default = self.settings.consumer_timeouts(group_id)
            return self.timeouts.get(group_id, default)

        return GroupMachine(
            self.settings,
            timeouts_of,
            self.budgets,
            lambda topic, topic_id: (topic, topic_id) in self.deleted,
        )

    @property
    def now(self) -> Now:
        return Now(self.monotonic_ms, START_MS + self.monotonic_ms)

    def submit(self, command: Command) -> Token:
        """Ask. The answer may come later."""
        self.last_token = token = Token(self.last_token + 1)
        self._take(self.machine.decide(command, token, self.now))
        return token

    def ask(self, command: Command, kind: type[R]) -> R:
        """Ask a command that is answered at once."""
        reply = self.replies[self.submit(command)]
        assert isinstance(reply, kind)
        return reply

    def reply(self, token: Token, kind: type[R]) -> R:
        """The answer to a request."""
        reply = self.replies[token]
        assert isinstance(reply, kind)
        return reply

    def is_parked(self, token: Token) -> bool:
        return token not in self.replies

    def advance(self, milliseconds: int) -> None:
        """Let time pass, timer by timer."""
        end = self.monotonic_ms + milliseconds
        while True:
            deadline = self.machine.next_deadline_ms()
            if deadline is None or deadline > end:
                break
            self.monotonic_ms = max(self.monotonic_ms, deadline)
            decision = self.machine.tick(self.now)
            assert decision is not None
            self._take(decision)
        self.monotonic_ms = end

    def restart(self) -> None:
        """The broker dies; a new one has only the log."""
        self.work.clear()
        self.machine.close()
        self.machine = self._machine()
        for record in self.log:
            self.machine.apply(logged(record))
        self._take(self.machine.loaded(self.now))

    def end_transaction(self, producer_id: int = 1, *, commit: bool) -> None:
        """The coordinator of transactions appends a marker to the group's partition."""
        record = TransactionEnded(producer_id, commit)
        self.log.append(record)
        self.machine.apply(record)

    def _take(self, decision: Decision[GroupRecord, Reply]) -> None:
        for record in decision.records:
            is_pending = isinstance(record, OffsetPending)
            assert is_pending == (decision.producer is not None), "transactions have own batches"
            self.log.append(record)
            self.machine.apply(record)
        for token, reply in decision.replies:
            assert token not in self.replies, "answered twice"
            self.replies[token] = reply
        assert isinstance(decision, GroupDecision)
        self.work += decision.work
        self.limits += decision.limits

    def do_work(self) -> None:
        """Do the work of the machine's decisions, and pass its results to the machine."""
        work, self.work = self.work, []
        self.work_done += len(work)
        for each in work:
            if isinstance(each, PatternLookup):
                found = find_topics(each.patterns, each.topics)
                self.submit(PatternsFound(each.group_id, found))
            else:
                self.submit(TargetMade(make_target(each)))

    def check_usage(self) -> None:
        """Compare the usage that counts against the limits with the memory in use."""
        machine = self.machine
        sizes = [
            GROUP_BYTES
            + len(group_id)
            + sum(member.size_bytes for member in group.members.values())
            + ID_BYTES * len(group.pending_joins)
            for group_id, group in machine.groups.items()
        ]
        for group_id, consumers in machine.consumer_groups.items():
            matched = sum(map(len, consumers.matches.values()))
            sizes.append(GROUP_BYTES + len(group_id) + TOPIC_NAME_BYTES * matched)
            for member_id, said in consumers.subscriptions.items():
                current = consumers.current(member_id)
                sizes += [
                    len(member_id) + subscription_bytes(said),
                    assignment_bytes(consumers.target(member_id)),
                    assignment_bytes(current.assigned),
                    assignment_bytes(current.pending_revocation),
                ]
        offsets = machine._offsets
        for group_id in offsets.group_ids():
            for partitions in offsets.of_group(group_id).values():
                sizes += map(offset_bytes, partitions.values())
            for producers in offsets._pending.get(group_id, {}).values():
                sizes += map(pending_bytes, producers.values())
        assert self.budgets.size_bytes.held == sum(sizes)
        groups = machine.groups.keys() | machine.consumer_groups.keys()
        assert self.budgets.groups.held == len(groups)

    # Groups.

    @property
    def group(self) -> ClassicGroup:
        return self.machine.groups[GROUP]

    @property
    def state(self) -> GroupState:
        return self.group.state

    def describe(self) -> DescribeGroupReply:
        return self.ask(DescribeGroup(GROUP), DescribeGroupReply)

    # Requests, with defaults for fields that a test does not care about.

    def join_command(
        self,
        member_id: str = "",
        *,
        group_id: str = GROUP,
        instance_id: str | None = None,
        protocols: tuple[SupportedProtocol, ...] = RANGE,
        protocol_type: str = "consumer",
        session_ms: int = SESSION_MS,
        rebalance_ms: int = REBALANCE_MS,
        version: int = 3,
    ) -> Join:
        self._ids += 1
        return Join(
            group_id=group_id,
            member_id=member_id,
            instance_id=instance_id,
            client_id="client",
            client_host="/host",
            session_timeout_ms=session_ms,
            rebalance_timeout_ms=rebalance_ms,
            protocol_type=protocol_type,
            protocols=protocols,
            requires_known_id=version >= 4,
            can_skip_assignment=version >= 9,
            fresh_id=str(self._ids),
            topics=self.topics,
        )

    def join(self, member_id: str = "", **options: object) -> Token:
        return self.submit(self.join_command(member_id, **options))  # type: ignore[arg-type]

    def joined(self, token: Token) -> JoinReply:
        return self.reply(token, JoinReply)

    def join_refused(self, member_id: str = "", **options: object) -> ErrorCode:
        return self.joined(self.join(member_id, **options)).error

    def sync(
        self,
        member_id: str,
        generation: int,
        assignments: Mapping[str, bytes] | None = None,
        *,
        instance_id: str | None = None,
        protocol_type: str | None = None,
        protocol: str | None = None,
        group_id: str = GROUP,
    ) -> Token:
        return self.submit(
            Sync(
                group_id=group_id,
                generation=generation,
                member_id=member_id,
                instance_id=instance_id,
                protocol_type=protocol_type,
                protocol=protocol,
                assignments=assignments or {},
                topics=self.topics,
            )
        )

    def synced(self, token: Token) -> SyncReply:
        return self.reply(token, SyncReply)

    def heartbeat(
        self, member_id: str, generation: int, instance_id: str | None = None, group_id: str = GROUP
    ) -> ErrorCode:
        command = Heartbeat(group_id, generation, member_id, instance_id)
        return self.ask(command, HeartbeatReply).error

    def leave(self, *members: str | Leaver, group_id: str = GROUP) -> LeaveReply:
        leavers = [Leaver(each, None) if isinstance(each, str) else each for each in members]
        return self.ask(Leave(group_id, leavers), LeaveReply)

    def commit(
        self,
        offset: int,
        member_id: str = "",
        generation: int = -1,
        *,
        instance_id: str | None = None,
        topic: str = "t",
        metadata: str = "",
        retention_ms: int | None = None,
        version: int = 9,
        group_id: str = GROUP,
        partition: int = 0,
        topic_id: TopicId | None = None,
    ) -> ErrorCode:
        command = CommitOffsets(
            group_id=group_id,
            generation=generation,
            member_id=member_id,
            instance_id=instance_id,
            retention_ms=retention_ms,
            knows_missing_group=version >= 9,
            offsets=[OffsetToCommit(topic, partition, offset, 5, metadata, topic_id)],
        )
        reply = self.ask(command, PartitionErrors)
        (only,) = reply.partitions
        return only[2]

    def commit_in_transaction(
        self,
        offset: int,
        member_id: str = "",
        generation: int = -1,
        *,
        producer_id: int = 1,
        instance_id: str | None = None,
        topic: str = "t",
        metadata: str = "",
        group_id: str = GROUP,
        topic_id: TopicId | None = None,
    ) -> ErrorCode:
        command = CommitTransactionalOffsets(
            group_id=group_id,
            generation=generation,
            member_id=member_id,
            instance_id=instance_id,
            producer=BatchProducer(producer_id, 0, 1),
            offsets=[OffsetToCommit(topic, 0, offset, 5, metadata, topic_id)],
        )
        (only,) = self.ask(command, PartitionErrors).partitions
        return only[2]

    def stable_offset(self, topic: str = "t", group_id: str = GROUP) -> int | ErrorCode | None:
        """The offset that a client gets when it asks for stable offsets only."""
        fetch = FetchOffsets(group_id, {topic: [0]}, require_stable=True)
        reply = self.ask(fetch, OffsetsReply)
        if (topic, 0) in reply.unstable:
            assert reply.topics[topic][0] is None
            return ErrorCode.UNSTABLE_OFFSET_COMMIT
        found = reply.topics[topic][0]
        return None if found is None else found.offset

    def committed(
        self, topic: str = "t", group_id: str = GROUP, *, partition: int = 0
    ) -> int | None:
        reply = self.ask(FetchOffsets(group_id, {topic: [partition]}), OffsetsReply)
        found = reply.topics[topic][partition]
        return None if found is None else found.offset

    # Groups in the states of the tables.

    def preparing(self) -> str:
        """A member waits for further members. Returns its id."""
        self.join()
        assert self.state is GroupState.PREPARING_REBALANCE
        return next(iter(self.group.members))

    def completing(self, count: int = 1, **options: object) -> list[str]:
        """A generation of this many members has begun. Returns their ids, the leader first."""
        tokens = [self.join(**options) for _ in range(count)]
        # Members that came during the delay extend it once.
        self.advance(DELAY_MS * (1 if count == 1 else 2))
        assert self.state is GroupState.COMPLETING_REBALANCE
        return [self.joined(token).member_id for token in tokens]

    def stable(self, count: int = 1, **options: object) -> list[str]:
        """A group of this many members that have their assignments. Returns their ids, the leader
        first."""
        members = self.completing(count, **options)
        generation = self.group.generation
        assignments = {member: f"assigned {member}".encode() for member in members}
        tokens = [self.sync(member, generation) for member in members[1:]]
        tokens.append(self.sync(members[0], generation, assignments))
        assert self.state is GroupState.STABLE
        for token in tokens:
            assert self.synced(token).error is ErrorCode.NONE
        return members


def logged(record: GroupRecord) -> GroupRecord:
    """The record as a reader of the log gets it: there, the end of a transaction is a marker."""
    match record:
        case TransactionEnded():
            return record
        case OffsetPending(producer_id):
            return decode_record(*encode_record(record), producer_id)
        case _:
            return decode_record(*encode_record(record))
