"""The invariants of a consumer group. Clients come, go, fall silent, lose answers and come back,
while topics change and the broker dies, in any order."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.unit.coordinator.group.consumer_world import (
    HEARTBEAT_MS,
    REBALANCE_MS,
    ConsumerWorld,
    FakeConsumer,
)
from tests.unit.coordinator.group.group_world import GROUP, find_topics
from tidelog.coordinator.group.records.consumer_records import Assignment, MemberState
from tidelog.coordinator.group.requests.classic_rebalance import Timer, TimerKind
from tidelog.coordinator.group.settings import GroupSettings
from tidelog.coordinator.group.state.consumer_group import ConsumerGroup, ConsumerGroupState
from tidelog.identifiers import TopicPartition
from tidelog.protocol.error_codes import ErrorCode

SETTINGS = GroupSettings(consumer_members_max=4)
CLIENTS = 5
ROUNDS_MAX = 60
SUBSCRIPTIONS: tuple[dict[str, object], ...] = (
    {"names": ["t"]},
    {"names": ["t", "u"]},
    {"names": ["u", "later"], "assignor": "range"},
    {"regex": "t|l.*"},
    {"names": []},
)
NUMBERS = st.integers(0, CLIENTS - 1)


def places(*assignments: Assignment) -> set[TopicPartition]:
    return {
        TopicPartition(topic_id, number)
        for assignment in assignments
        for topic_id, numbers in assignment.items()
        for number in numbers
    }


class ConsumerGroupStories(RuleBasedStateMachine):
    """The rules are steps of clients, topics and time. The invariants are the promises of
    KIP-848."""

    def __init__(self) -> None:
        super().__init__()
        self.world = ConsumerWorld(SETTINGS)
        self.clients = [self.process(number, 0) for number in range(CLIENTS)]
        self.lives = CLIENTS
        for client in self.clients[:3]:
            client.options |= {"names": ["t"]}
            client.join()

    def process(self, number: int, life: int) -> FakeConsumer:
        options: dict[str, object] = {"instance_id": f"i{number}"} if number < 2 else {}
        return FakeConsumer(self.world, f"m{number}-{life}", options)

    # Steps of clients.

    @rule(number=NUMBERS, choice=st.integers(0, len(SUBSCRIPTIONS) - 1))
    def join(self, number: int, choice: int) -> None:
        client = self.clients[number]
        static = {"instance_id": client.instance_id} if client.instance_id else {}
        client.options = SUBSCRIPTIONS[choice] | static
        client.join()
        self.mind(client)

    @rule(is_lost=st.booleans())
    def all_beat(self, is_lost: bool) -> None:
        for number in range(CLIENTS):
            self.beat(number, is_lost)

    @rule(number=NUMBERS, is_lost=st.booleans())
    def beat(self, number: int, is_lost: bool) -> None:
        client = self.clients[number]
        if client.epoch == 0:
            self.join(number, number % len(SUBSCRIPTIONS))
            return
        reply = client.ask()
        if is_lost:
            return
        before = client.epoch
        client.hear(reply)
        if reply.error is ErrorCode.NONE:
            assert reply.member_epoch >= before
        self.mind(client)

    @rule(number=NUMBERS, choice=st.integers(0, len(SUBSCRIPTIONS) - 1))
    def subscribe(self, number: int, choice: int) -> None:
        client = self.clients[number]
        if client.epoch == 0:
            return
        wanted = {"names": [], "regex": ""} | SUBSCRIPTIONS[choice]
        static = {"instance_id": client.instance_id} if client.instance_id else {}
        client.options = wanted | static
        client.hear(
            self.world.beat(
                client.member_id,
                client.epoch,
                owned=client.owned,
                instance_id=client.instance_id,
                # After a lost answer the client repeats all its fields.
                rebalance_ms=-1 if client.has_heard else REBALANCE_MS,
                **wanted,  # type: ignore[arg-type]
            )
        )
        self.mind(client)

    @rule(number=NUMBERS)
    def leave(self, number: int) -> None:
        client = self.clients[number]
        client.owned = {}
        client.leave()
        client.epoch = 0

    @rule(number=st.integers(0, 1))
    def go_away(self, number: int) -> None:
        client = self.clients[number]
        client.owned = {}
        client.go_away()
        client.epoch = 0

    @rule(number=NUMBERS)
    def start_again(self, number: int) -> None:
        """The process dies; its successor has another member id."""
        self.lives += 1
        self.clients[number] = self.process(number, self.lives)

    def mind(self, client: FakeConsumer) -> None:
        """A client that is fenced gives everything up and has to join."""
        if client.error is not ErrorCode.NONE:
            client.owned, client.epoch = {}, 0

    # Other steps.

    @rule(milliseconds=st.sampled_from([5_000, 44_999, 45_000, 60_000]))
    def wait(self, milliseconds: int) -> None:
        self.world.advance(milliseconds)

    @rule(name=st.sampled_from(["t", "u", "later", "other"]), count=st.integers(1, 5))
    def create(self, name: str, count: int) -> None:
        self.world.create(**{name: count})

    @rule(name=st.sampled_from(["t", "u", "later"]))
    def drop(self, name: str) -> None:
        self.world.drop(name)

    @rule(more=st.integers(1, 3))
    @precondition(lambda self: self.world.topics.topic_named("t") is not None)
    def grow(self, more: int) -> None:
        topic = self.world.topics.topic_named("t")
        assert topic is not None
        self.world.grow("t", topic.partition_count + more)

    @rule(from_snapshot=st.booleans())
    @precondition(lambda self: self.world.log)
    def restart(self, from_snapshot: bool) -> None:
        before = self.world.describe_consumers()
        if from_snapshot:
            self.world.log = list(self.world.machine.capture())
            self.world.machine.release()
        self.world.restart()
        assert self.world.describe_consumers() == before

    def teardown(self) -> None:
        """After any history the remaining members come to rest, with all partitions assigned."""
        group = self.group
        if group is None:
            return
        alive = [each for each in self.clients if each.epoch > 0]
        known = {each.member_id for each in alive}
        for member_id in set(group.subscriptions) - known:
            self.world.beat(member_id, -1, instance_id=group.subscriptions[member_id].instance_id)
        for _ in range(ROUNDS_MAX):
            self.world.advance(HEARTBEAT_MS)
            for client in alive:
                # A fenced client may join again when the session of its former membership has
                # ended.
                if client.epoch > 0:
                    client.beat()
                else:
                    client.join()
                self.mind(client)
        if group.subscriptions:
            assert group.state is ConsumerGroupState.STABLE
            for client in alive:
                if client.member_id in group.subscriptions:
                    assert client.owned == group.target(client.member_id)
            targets = [group.target(member_id) for member_id in group.subscriptions]
            assert places(*targets) == self.wanted(group)

    def wanted(self, group: ConsumerGroup) -> set[TopicPartition]:
        """All partitions of the topics to which a member subscribes."""
        topics = self.world.topics
        members = group.subscriptions.values()
        patterns = {each.topic_regex for each in members if each.topic_regex}
        found = find_topics(patterns, topics).names.values()
        names = {name for each in members for name in each.topic_names}.union(*found)
        return {
            TopicPartition(topic.topic_id, number)
            for topic in topics.topics.values()
            if topic.name in names
            for number in range(topic.partition_count)
        }

    # Invariants.

    @property
    def group(self) -> ConsumerGroup | None:
        return self.world.machine.consumer_groups.get(GROUP)

    @invariant()
    def usage_counts_against_the_limits(self) -> None:
        self.world.check_usage()

    @invariant()
    def every_partition_has_one_holder_at_most(self) -> None:
        group = self.group
        if group is None:
            return
        seen: set[TopicPartition] = set()
        for member_id in group.subscriptions:
            current = group.current(member_id)
            held = places(current.assigned, current.pending_revocation)
            assert not held & seen
            seen |= held
        assert {place for place in seen if group.is_free(*place)} == set()

    @invariant()
    def clients_have_only_partitions_that_the_coordinator_knows(self) -> None:
        """So no two members ever consume the same partition."""
        group = self.group
        if group is None:
            return
        for client in self.clients:
            if client.member_id in group.subscriptions:
                current = group.current(client.member_id)
                held = places(current.assigned, current.pending_revocation)
                assert places(client.owned) <= held

    @invariant()
    def epochs_are_in_order(self) -> None:
        group = self.group
        if group is None:
            return
        assert group.assignment_epoch <= group.epoch
        for member_id in group.subscriptions:
            current = group.current(member_id)
            assert current.epoch <= group.epoch
            if current.state is MemberState.UNREVOKED_PARTITIONS:
                assert current.pending_revocation
            else:
                assert not current.pending_revocation
        assert len(group.subscriptions) <= SETTINGS.consumer_members_max

    @invariant()
    def static_members_are_found_by_their_instances(self) -> None:
        group = self.group
        if group is not None:
            found = {
                each.instance_id: member_id
                for member_id, each in group.subscriptions.items()
                if each.instance_id
            }
            assert found == group.static_members

    @invariant()
    def the_target_gives_each_partition_to_one_member(self) -> None:
        group = self.group
        if group is None or group.epoch > group.assignment_epoch:
            return
        given = [place for each in group.subscriptions for place in places(group.target(each))]
        assert len(given) == len(set(given))

    @invariant()
    def something_will_happen(self) -> None:
        """The silence of each member will be noticed, and each refusal to give a partition up."""
        group, timers = self.group, self.world.machine._timers
        if group is None:
            return
        for member_id in group.subscriptions:
            assert Timer(TimerKind.CONSUMER_SESSION, GROUP, member_id) in timers
            waits = group.current(member_id).state is MemberState.UNREVOKED_PARTITIONS
            assert (Timer(TimerKind.CONSUMER_REBALANCE, GROUP, member_id) in timers) == waits


TestConsumerGroupStories = ConsumerGroupStories.TestCase
TestConsumerGroupStories.settings = settings(stateful_step_count=60)
