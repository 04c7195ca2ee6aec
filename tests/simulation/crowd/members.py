"""The brokers of a crowd seen from outside: the partitions that each serves, and whether all
agree."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tests.simulation.cluster import Environment
from tests.simulation.crowd.log_rules import LogRules
from tests.simulation.world.process import SimulatedProcess
from tidelog.broker.broker import Broker
from tidelog.broker.running import RunningBroker
from tidelog.bucket.reachability import needed_incarnations
from tidelog.coordinator.cluster.membership.assignment import plan_moves
from tidelog.coordinator.cluster.records.process_identity import ProcessIdentity
from tidelog.coordinator.cluster.records.records import Record
from tidelog.coordinator.cluster.state.state import ClusterState
from tidelog.identifiers import Epoch, TopicPartition

MOVES_MAX = 1000


@dataclass(frozen=True, slots=True)
class Member:
    """A broker's process that has become ready."""

    broker: Broker
    environment: Environment

    @property
    def process(self) -> SimulatedProcess:
        """The broker's process."""
        return self.environment.process

    @property
    def running(self) -> RunningBroker | None:
        """The running broker, or None if its process cannot answer now."""
        able = self.process.alive and not self.process.paused
        return self.broker.running if able else None


class Members:
    """All processes that have become ready, and the rules that they keep."""

    def __init__(self) -> None:
        self.harmed: set[tuple[str, int]] = set()
        """The processes, by host and number, that a fault has hit."""
        self._is_alive: Callable[[str, int], bool] = lambda host, pid: True
        self.rules = LogRules(self._may_be_fenced)
        self._members: dict[SimulatedProcess, Member] = {}

    def watch(self, is_alive: Callable[[str, int], bool]) -> None:
        """Set the function that tells whether a process lives."""
        self._is_alive = is_alive

    async def follow(self, broker: Broker, environment: Environment) -> None:
        """Follow one broker in a task of its process."""
        await broker.ready.wait()
        if broker.running is None:
            return
        name = environment.process.name
        metadata = broker.running.membership.metadata

        def applied(sequence: int, records: tuple[Record, ...]) -> None:
            self.rules.applied(name, sequence, records, metadata.state)

        self.rules.joined(name, metadata.state)
        metadata.subscribe(applied)
        self._members[environment.process] = Member(broker, environment)

    def running(self) -> Iterator[tuple[Member, RunningBroker]]:
        """The brokers that can answer a client now."""
        for member in self._members.values():
            running = member.running
            if running is not None:
                yield member, running

    def served_twice(self) -> str | None:
        """Evidence that two brokers answer reads of one partition at this moment (B3, C3)."""
        owners: dict[TopicPartition, str] = {}
        for member, running in self.running():
            if not running.membership.may_serve_reads():
                continue
            for partition in running.writes.partitions:
                place, name = partition.log.partition, member.process.name
                other = owners.setdefault(place, name)
                if other != name:
                    return f"{other} and {name} both serve {place}"
        return None

    def unsettled(self) -> str | None:
        """The brokers' pending work after the last fault, or None if all is done."""
        running = [each for _, each in self.running()]
        if not running:
            return "no broker runs"
        states = [each.membership.state() for each in running]
        state = max(states, key=lambda each: each.sequence)
        if any(each.sequence != state.sequence for each in states):
            return "some brokers have not read the log to its end"
        live = {each.membership.incarnation.epoch for each in running}
        if live != set(state.live_epochs.values()):
            return "the log has other live brokers than run"
        if state.fenced_not_retired():
            return "fenced brokers are not taken over"
        if state.retired or state.deleted:
            needed = len(needed_incarnations(state))
            return (
                f"{len(state.retired)} retired incarnations are remembered, {needed} are needed;"
                f" {len(state.deleted)} deleted topics"
            )
        return self._unserved(state, running) or _unbalanced(state, running)

    def _unserved(self, state: ClusterState, running: list[RunningBroker]) -> str | None:
        brokers = {each.membership.incarnation.epoch: each for each in running}
        for place, owner in _owners(state).items():
            if brokers[owner].writes.partitions.get(place) is None:
                return f"{place} is not served by its owner, epoch {owner}"
        return None

    def _may_be_fenced(self, process: ProcessIdentity) -> bool:
        place = process.host, process.pid
        return place in self.harmed or not self._is_alive(*place)


def _owners(state: ClusterState) -> dict[TopicPartition, Epoch]:
    return {
        TopicPartition(topic.topic_id, number): tenures[-1].incarnation.epoch
        for topic in state.topics.values()
        for number, tenures in enumerate(topic.partitions)
    }


def _unbalanced(state: ClusterState, running: list[RunningBroker]) -> str | None:
    owned: dict[Epoch, int] = defaultdict(int)
    for owner in _owners(state).values():
        owned[owner] += 1
    for each in running:
        epoch = each.membership.incarnation.epoch
        percent = each.settings.now().integer("leader.imbalance.per.broker.percentage")
        surplus = plan_moves(state, epoch, percent, MOVES_MAX)
        if surplus:
            return f"epoch {epoch} has {owned[epoch]} partitions, {len(surplus)} too many"
    return None
