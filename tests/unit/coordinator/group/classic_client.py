"""A consumer that speaks the classic protocol, and groups of such consumers."""

from __future__ import annotations

from dataclasses import dataclass, field

from tests.unit.coordinator.group.consumer_world import ConsumerWorld
from tests.unit.coordinator.group.group_world import DELAY_MS
from tidelog.coordinator.decision import Token
from tidelog.coordinator.group.commands import JoinReply
from tidelog.coordinator.group.records.record_coding import encoded
from tidelog.coordinator.group.records.subscription import (
    ConsumerProtocolSubscription,
    SupportedProtocol,
    TopicPartitionNumbers,
    assigned_partitions,
    assignment_for,
)
from tidelog.coordinator.group.state.states import GroupState
from tidelog.protocol.error_codes import ErrorCode

OK = ErrorCode.NONE
ALL = [0, 1, 2, 3]
"""The partitions of the topic "t"."""


@dataclass
class ClassicClient:
    """A consumer with the classic protocol. An eager consumer gives up all partitions before it
    joins. A cooperative consumer names its partitions, gives up those that it does not get again,
    and joins once more."""

    world: ConsumerWorld
    is_cooperative: bool = False
    instance_id: str | None = None
    member_id: str = ""
    generation: int = -1
    owned: dict[str, frozenset[int]] = field(default_factory=dict)
    error: ErrorCode = OK

    @property
    def protocols(self) -> tuple[SupportedProtocol, ...]:
        name = "cooperative-sticky" if self.is_cooperative else "range"
        owned = [
            TopicPartitionNumbers(topic=topic, partitions=sorted(numbers))
            for topic, numbers in self.owned.items()
        ]
        said = ConsumerProtocolSubscription(topics=["t"], owned_partitions=owned, rack_id="r1")
        return (SupportedProtocol(name, encoded(said, 3)),)

    def ask_to_join(self) -> Token:
        """Ask. The answer may come later."""
        if not self.is_cooperative:
            self.owned = {}
        return self.world.join(
            self.member_id, protocols=self.protocols, instance_id=self.instance_id
        )

    def join(self) -> JoinReply:
        """Join a consumer group, which answers at once."""
        return self.hear(self.world.joined(self.ask_to_join()))

    def hear(self, reply: JoinReply) -> JoinReply:
        self.error = reply.error
        if reply.error is OK:
            self.member_id, self.generation = reply.member_id, reply.generation
        return reply

    def sync(self) -> None:
        token = self.world.sync(self.member_id, self.generation, instance_id=self.instance_id)
        reply = self.world.synced(token)
        self.error = reply.error
        if reply.error is not OK:
            return
        found: dict[str, set[int]] = {}
        for topic, number in assigned_partitions(reply.assignment) or []:
            found.setdefault(topic, set()).add(number)
        given = {topic: frozenset(numbers) for topic, numbers in found.items()}
        has_lost = any(numbers - given.get(topic, set()) for topic, numbers in self.owned.items())
        self.owned = given
        if has_lost:
            self.enter()

    def enter(self) -> None:
        """Join, and sync."""
        self.join()
        if self.error is OK:
            self.sync()

    def beat(self) -> None:
        """A heartbeat, and a join if the answer asks for one."""
        self.error = self.world.heartbeat(self.member_id, self.generation, self.instance_id)
        if self.error is ErrorCode.REBALANCE_IN_PROGRESS:
            self.enter()

    def has(self) -> list[int]:
        return sorted(self.owned.get("t", ()))


def classic_group(world: ConsumerWorld, *clients: ClassicClient) -> None:
    """A stable group of the classic protocol, whose leader assigns the partitions in turn."""
    tokens = [client.ask_to_join() for client in clients]
    while any(world.is_parked(token) for token in tokens):
        world.advance(DELAY_MS)
    for client, token in zip(clients, tokens, strict=True):
        client.hear(world.joined(token))
    shares = {
        client.member_id: frozenset(ALL[position :: len(clients)])
        for position, client in enumerate(clients)
    }
    metadata = clients[0].protocols[0].metadata
    assignments = {
        member_id: assignment_for(metadata, {"t": share}) for member_id, share in shares.items()
    }
    for client in clients:
        is_leader = client.member_id == world.group.leader
        world.sync(client.member_id, client.generation, assignments if is_leader else None)
        client.owned = {"t": shares[client.member_id]}
    assert world.state is GroupState.STABLE
