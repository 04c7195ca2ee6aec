"""Members of both protocols in one group come, go, fall silent, lose answers and change their
protocol, while the broker dies, in any order. No partition ever has two owners, and in the end the
members share all partitions."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tests.unit.coordinator.group.classic_client import ALL, ClassicClient, classic_group
from tests.unit.coordinator.group.consumer_world import HEARTBEAT_MS, ConsumerWorld, FakeConsumer
from tests.unit.coordinator.group.group_world import GROUP
from tidelog.coordinator.group.settings import GroupSettings
from tidelog.coordinator.group.state.consumer_group import ConsumerGroup
from tidelog.protocol.error_codes import ErrorCode

CLIENTS = 4
ROUNDS_MAX = 40
NUMBERS = st.integers(0, CLIENTS - 1)


class MixedGroupStories(RuleBasedStateMachine):
    """One member is always there, so that the group stays a consumer group. `test_migration` covers
    the conversion back."""

    def __init__(self) -> None:
        super().__init__()
        self.world = ConsumerWorld(GroupSettings(downgrades=False))
        self.lives = 0
        old = [ClassicClient(self.world, is_cooperative=True) for _ in range(2)]
        classic_group(self.world, *old)
        self.steady = self.world.consumer("steady")
        self.clients: list[ClassicClient | FakeConsumer] = [*old]
        for number in range(2, CLIENTS):
            self.clients.append(self.process(number))
            self.enter(number)

    def process(self, number: int) -> FakeConsumer:
        self.lives += 1
        static: dict[str, object] = {"instance_id": "i"} if number == 2 else {}
        return FakeConsumer(self.world, f"m{self.lives}", {"names": ["t"], **static})

    # Steps of clients.

    @rule(number=NUMBERS)
    def enter(self, number: int) -> None:
        client = self.clients[number]
        if isinstance(client, ClassicClient):
            client.enter()
        else:
            client.join()
        self.mind(client)

    @rule(number=NUMBERS)
    def beat(self, number: int) -> None:
        client = self.clients[number]
        client.beat()
        self.mind(client)

    @rule()
    def all_beat(self) -> None:
        for number in range(CLIENTS):
            self.beat(number)

    @rule(number=NUMBERS)
    def join_and_lose_the_answer(self, number: int) -> None:
        client = self.clients[number]
        if isinstance(client, ClassicClient):
            group = self.group
            if group is not None and client.member_id not in group.subscriptions:
                # A removed member gives up its partitions before it joins again.
                client.owned = {}
            client.ask_to_join()
        else:
            client.ask()

    @rule(number=NUMBERS, speaks=st.sampled_from(["consumer", "eager", "cooperative"]))
    def start_again(self, number: int, speaks: str) -> None:
        """The process dies; its successor may speak another protocol."""
        if speaks == "consumer":
            self.clients[number] = self.process(number)
            return
        is_cooperative = speaks == "cooperative"
        instance_id = "i" if number == 2 else None
        self.clients[number] = ClassicClient(self.world, is_cooperative, instance_id)

    @rule(number=NUMBERS)
    def leave(self, number: int) -> None:
        client = self.clients[number]
        client.owned = {}
        if isinstance(client, ClassicClient):
            self.world.leave(client.member_id)
            client.member_id = ""
        else:
            client.leave()
            client.epoch = 0

    def mind(self, client: ClassicClient | FakeConsumer) -> None:
        """A client that is fenced gives everything up and has to join."""
        if client.error in (ErrorCode.NONE, ErrorCode.REBALANCE_IN_PROGRESS):
            return
        client.owned = {}
        if isinstance(client, FakeConsumer):
            client.epoch = 0
        elif client.error is not ErrorCode.ILLEGAL_GENERATION:
            client.member_id = ""

    # Other steps.

    @rule(milliseconds=st.sampled_from([3_000, 9_999, 10_000, 45_000, 60_000]))
    def wait(self, milliseconds: int) -> None:
        for passed in range(0, milliseconds, HEARTBEAT_MS):
            self.world.advance(min(HEARTBEAT_MS, milliseconds - passed))
            self.steady.beat()
            assert self.steady.error is ErrorCode.NONE

    @rule(from_snapshot=st.booleans())
    def restart(self, from_snapshot: bool) -> None:
        before = self.world.describe_consumers()
        if from_snapshot:
            self.world.log = list(self.world.machine.capture())
            self.world.machine.release()
        self.world.restart()
        assert self.world.describe_consumers() == before

    def teardown(self) -> None:
        """After any history the remaining members come to rest, with all partitions assigned."""
        for _ in range(ROUNDS_MAX):
            self.wait(3_000)
            for number in range(CLIENTS):
                self.beat(number)
                if self.clients[number].error is not ErrorCode.NONE:
                    self.enter(number)
        everybody = [*self.clients, self.steady]
        owned = [number for client in everybody for number in client.has()]
        assert sorted(owned) == ALL

    # Invariants.

    @property
    def group(self) -> ConsumerGroup | None:
        return self.world.machine.consumer_groups.get(GROUP)

    def held_by(self, group: ConsumerGroup, member_id: str) -> set[int]:
        topic_id, current = self.world.id_of("t"), group.current(member_id)
        assigned = current.assigned.get(topic_id, frozenset())
        return set(assigned | current.pending_revocation.get(topic_id, frozenset()))

    @invariant()
    def usage_counts_against_the_limits(self) -> None:
        self.world.check_usage()

    @invariant()
    def every_partition_has_one_holder_at_most(self) -> None:
        if self.group is not None:
            held = [self.held_by(self.group, each) for each in self.group.subscriptions]
            assert sum(map(len, held)) == len(set[int]().union(*held))

    @invariant()
    def members_have_only_partitions_that_the_coordinator_knows(self) -> None:
        """So no two members ever consume the same partition."""
        if self.group is None:
            return
        for client in [*self.clients, self.steady]:
            if client.member_id in self.group.subscriptions:
                assert set(client.has()) <= self.held_by(self.group, client.member_id)


TestMixedGroupStories = MixedGroupStories.TestCase
TestMixedGroupStories.settings = settings(stateful_step_count=30)
