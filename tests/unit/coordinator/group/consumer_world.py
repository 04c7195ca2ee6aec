"""A coordinator of consumer groups (KIP-848) with the topics of a cluster, and clients that follow
its answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from uuid import UUID

from tests.unit.coordinator.group.group_world import (
    GROUP,
    FakeTopic,
    FakeTopics,
    GroupWorld,
    find_topics,
)
from tidelog.coordinator.group.consumer_commands import (
    ConsumerDescription,
    ConsumerHeartbeat,
    ConsumerHeartbeatReply,
    DescribeConsumerGroup,
    DescribedConsumer,
)
from tidelog.coordinator.group.records.consumer_records import Assignment
from tidelog.coordinator.group.requests.limits import GroupBudgets
from tidelog.coordinator.group.settings import GroupSettings
from tidelog.coordinator.group.state.consumer_group import ConsumerGroup
from tidelog.identifiers import TopicId
from tidelog.protocol.error_codes import ErrorCode

SESSION_MS = GroupSettings().consumer_session_timeout_ms
HEARTBEAT_MS = GroupSettings().consumer_heartbeat_interval_ms
REBALANCE_MS = 60_000


class ConsumerWorld(GroupWorld):
    """The topic "t" has four partitions, "u" two."""

    def __init__(
        self, settings: GroupSettings | None = None, budgets: GroupBudgets | None = None
    ) -> None:
        super().__init__(settings, budgets)
        self.is_working = True
        """Whether work that heartbeats leave to a worker is done at once."""
        self._created = 0
        self.create(t=4, u=2)

    def create(self, **partitions: int) -> None:
        """Create topics. A name that exists becomes a new topic."""
        for name, count in partitions.items():
            self.drop(name)
            self._created += 1
            topic = FakeTopic(UUID(int=self._created), name, count)
            self.topics = FakeTopics({**self.topics.topics, topic.topic_id: topic})

    def grow(self, name: str, count: int) -> None:
        topic = self.topics.topic_named(name)
        assert topic is not None
        grown = topic._replace(partition_count=count)
        self.topics = FakeTopics({**self.topics.topics, topic.topic_id: grown})

    def drop(self, name: str) -> None:
        left = {each: topic for each, topic in self.topics.topics.items() if topic.name != name}
        self.topics = FakeTopics(left)

    def place(self, **partitions: Sequence[int]) -> Assignment:
        """An assignment by the names of topics."""
        return {self.id_of(name): frozenset(found) for name, found in partitions.items()}

    def id_of(self, name: str) -> TopicId:
        topic = self.topics.topic_named(name)
        assert topic is not None
        return topic.topic_id

    def beat(
        self,
        member_id: str,
        epoch: int,
        *,
        owned: Assignment | None = None,
        group_id: str = GROUP,
        instance_id: str | None = None,
        rack_id: str | None = None,
        rebalance_ms: int = -1,
        names: Sequence[str] | None = None,
        regex: str | None = None,
        assignor: str | None = None,
        version: int = 1,
    ) -> ConsumerHeartbeatReply:
        """One heartbeat, encoded and decoded as on the wire."""
        command = ConsumerHeartbeat(
            group_id=group_id,
            member_id=member_id,
            member_epoch=epoch,
            instance_id=instance_id,
            rack_id=rack_id,
            client_id="client",
            client_host="/host",
            rebalance_timeout_ms=rebalance_ms,
            topic_names=names,
            topic_regex=regex,
            server_assignor=assignor,
            owned=owned,
            brings_member_id=version >= 1,
            fresh_id="fresh",
            topics=self.topics,
            matches=find_topics({regex}, self.topics) if regex else None,
        )
        reply = self.ask(command, ConsumerHeartbeatReply)
        if self.is_working:
            self.do_work()
        return reply

    def enter(self, member_id: str, **options: object) -> ConsumerHeartbeatReply:
        """A first heartbeat, which subscribes to "t" unless a test names other topics."""
        rebalance_ms = options.pop("rebalance_ms", REBALANCE_MS)
        wanted = subscribing(options)
        return self.beat(member_id, 0, owned={}, rebalance_ms=rebalance_ms, **wanted)  # type: ignore[arg-type]

    def consumer(self, member_id: str, **options: object) -> FakeConsumer:
        """A client that has joined its group."""
        client = FakeConsumer(self, member_id, subscribing(options))
        client.join()
        return client

    def settle(self, *clients: FakeConsumer) -> None:
        """Send heartbeats until no assignment changes."""
        for _ in range(20):
            before = len(self.log), self.work_done
            for client in clients:
                client.beat()
            if (len(self.log), self.work_done) == before:
                return
        raise AssertionError("the group does not come to rest")

    @property
    def consumer_group(self) -> ConsumerGroup:
        return self.machine.consumer_groups[GROUP]

    def describe_consumers(self, group_id: str = GROUP) -> ConsumerDescription:
        return self.ask(DescribeConsumerGroup(group_id), ConsumerDescription)

    def member(self, member_id: str) -> DescribedConsumer:
        """The member in a description of the group."""
        members = self.describe_consumers().members
        return next(each for each in members if each.member_id == member_id)


def subscribing(options: dict[str, object]) -> dict[str, object]:
    """The subscription: to "t" unless a test names other topics."""
    return options if {"names", "regex"} & options.keys() else {"names": ["t"], **options}


@dataclass
class FakeConsumer:
    """A client that gives up at once the partitions that are taken from it, and reports it."""

    world: ConsumerWorld
    member_id: str
    options: dict[str, object] = field(default_factory=dict)
    epoch: int = 0
    owned: Assignment = field(default_factory=dict)
    error: ErrorCode = ErrorCode.NONE
    has_heard: bool = True
    """False if the last answer was lost: then the client repeats all its fields, and the
    coordinator answers with the whole assignment."""

    @property
    def instance_id(self) -> str | None:
        found = self.options.get("instance_id")
        return found if isinstance(found, str) else None

    def join(self) -> None:
        self.owned = {}
        self.hear(self.world.enter(self.member_id, **self.options))

    def beat(self) -> None:
        self.hear(self.ask())

    def ask(self) -> ConsumerHeartbeatReply:
        """Send a heartbeat. Its answer is lost unless the caller passes it to `hear`."""
        everything = {} if self.has_heard else {"rebalance_ms": REBALANCE_MS, **self.options}
        self.has_heard = False
        everything["instance_id"] = self.instance_id
        return self.world.beat(self.member_id, self.epoch, owned=self.owned, **everything)  # type: ignore[arg-type]

    def hear(self, reply: ConsumerHeartbeatReply) -> None:
        self.error, self.has_heard = reply.error, True
        if reply.error is ErrorCode.NONE:
            self.epoch = reply.member_epoch
            if reply.assignment is not None:
                self.owned = reply.assignment

    def leave(self) -> ConsumerHeartbeatReply:
        return self.world.beat(self.member_id, -1, instance_id=self.instance_id)

    def go_away(self) -> ConsumerHeartbeatReply:
        return self.world.beat(self.member_id, -2, instance_id=self.instance_id)

    def has(self, topic: str = "t") -> list[int]:
        """The partitions of a topic that the client may consume."""
        found = self.world.topics.topic_named(topic)
        return [] if found is None else sorted(self.owned.get(found.topic_id, ()))
