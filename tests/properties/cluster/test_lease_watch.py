"""Watchers that stall anywhere never fence a broker that renews its lease, and find each death.

Every broker of a small cluster has a watch. Looks, reads, renewals and the reading of the metadata
log happen in a random order with random pauses between them.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from functools import partial
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from tests.unit.coordinator.cluster.samples import after, cluster, incarnation, process
from tidelog.coordinator.cluster.log.leases import Lease
from tidelog.coordinator.cluster.membership.lease_watch import LeaseWatch, Look, Renewal
from tidelog.coordinator.cluster.records.records import BrokerFenced, LeaseResumed
from tidelog.coordinator.cluster.state.state import ClusterState
from tidelog.identifiers import BrokerId, Epoch

HEARTBEAT = 2.0
SESSION = 9.0
"""The timeout that `samples.registered` registers."""


class Cluster:
    """Brokers with watches, and a clock. `pause` draws how long a watcher stalls before a step."""

    def __init__(
        self,
        brokers: int,
        chance: Random,
        pause: Callable[[], float],
        unread_probability: float = 0.0,
    ) -> None:
        self.now = 100.0
        self.state = cluster(*range(brokers))
        self.chance = chance
        self.pause = pause
        self.unread_probability = unread_probability
        self.alive = set(range(brokers))
        self.counters = dict.fromkeys(range(brokers), 0)
        self.renewals = {each: Renewal(self.now, self.now) for each in range(brokers)}
        self.views: dict[int, ClusterState] = dict.fromkeys(range(brokers), self.state)
        self.fenced: list[tuple[int, float]] = []
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._number = 0
        for broker in range(brokers):
            watch = LeaseWatch(incarnation(self.state, broker), HEARTBEAT)
            self.later(chance.uniform(0, HEARTBEAT), partial(self.renew, broker))
            self.later(chance.uniform(0, HEARTBEAT), partial(self.follow, broker))
            self.later(chance.uniform(0, HEARTBEAT), partial(self.ask, broker, watch))

    def later(self, seconds: float, step: Callable[[], None]) -> None:
        self._number += 1
        heapq.heappush(self._events, (self.now + seconds, self._number, step))

    def run(self, seconds: float) -> None:
        end = self.now + seconds
        while self._events[0][0] <= end:
            self.now, _, step = heapq.heappop(self._events)
            step()
        self.now = end

    def renew(self, broker: int) -> None:
        if broker in self.alive:
            self.counters[broker] += 1
            latency = self.chance.uniform(0, 0.2)
            self.renewals[broker] = Renewal(self.now - latency, self.now)
            self.later(HEARTBEAT, lambda: self.renew(broker))

    def follow(self, broker: int) -> None:
        self.views[broker] = self.state
        self.later(HEARTBEAT + self.pause(), lambda: self.follow(broker))

    def ask(self, broker: int, watch: LeaseWatch) -> None:
        """A look begins. The leases are read at a later moment, and the answers arrive later
        still."""
        if broker not in self.alive:
            return
        asked_at = self.now
        self.later(self.pause(), lambda: self.read(broker, watch, asked_at))

    def read(self, broker: int, watch: LeaseWatch, asked_at: float) -> None:
        leases: dict[Epoch, Lease | None] = {}
        for info in watch.watched(self.views[broker]):
            if self.chance.random() >= self.unread_probability:
                counter = self.counters[info.broker_id]
                leases[info.epoch] = Lease(info.broker_id, info.epoch, counter, "w", process())
        self.later(self.pause(), lambda: self.answer(broker, watch, asked_at, leases))

    def answer(
        self, broker: int, watch: LeaseWatch, asked_at: float, leases: dict[Epoch, Lease | None]
    ) -> None:
        look = Look(asked_at, self.now, leases)
        verdict = watch.observed(
            self.views[broker], look, self.renewals[broker], self.chance.uniform
        )
        if verdict is not None:
            self.later(self.pause(), lambda: self.append(broker, verdict.records))
        due = max(0.0, watch.next_read_at(look) - self.now)
        self.later(due + self.pause(), lambda: self.ask(broker, watch))

    def append(
        self, broker: int, build: Callable[[ClusterState], tuple[BrokerFenced, ...]]
    ) -> None:
        records = build(self.state)
        author = self.state.live_epochs.get(BrokerId(broker))
        if records and author is not None:
            dead = self.state.brokers[records[0].epoch].broker_id
            self.fenced.append((dead, self.now))
            self.state = after(self.state, author, *records)


@given(brokers=st.integers(2, 7), seed=st.integers(0, 2**32), stall=st.sampled_from([0.5, 3, 30]))
def test_a_broker_that_renews_its_lease_is_never_fenced(
    brokers: int, seed: int, stall: float
) -> None:
    """This holds even if its watchers stall for any time, at any step."""
    chance = Random(seed)
    world = Cluster(
        brokers,
        chance,
        lambda: chance.uniform(0, stall if chance.random() < 0.2 else 0.05),
        unread_probability=0.05,
    )
    world.run(120)
    assert world.fenced == []


@given(
    brokers=st.integers(2, 7),
    seed=st.integers(0, 2**32),
    deaths=st.integers(1, 6),
)
def test_the_dead_are_fenced_within_a_bound_and_the_others_never(
    brokers: int, seed: int, deaths: int
) -> None:
    chance = Random(seed)
    world = Cluster(brokers, chance, lambda: chance.uniform(0, 0.1))
    world.run(20)
    dead = set(chance.sample(range(brokers), min(deaths, brokers - 1)))
    world.alive -= dead
    died_at = world.now
    # Further deaths are fenced one after the other; beyond three in a row after a second session.
    bound = SESSION + 6 * HEARTBEAT + 4 * HEARTBEAT * (len(dead) - 1)
    if len(dead) > 3:
        bound += SESSION + 2 * HEARTBEAT
    world.run(bound)
    assert {broker for broker, _ in world.fenced} == dead
    assert len(world.fenced) == len(dead)
    assert min(at for _, at in world.fenced) - died_at >= SESSION - HEARTBEAT
    world.run(60)
    assert len(world.fenced) == len(dead)


@given(seed=st.integers(0, 2**32))
def test_a_broker_that_resumes_its_lease_in_the_log_is_not_fenced_by_an_older_look(
    seed: int,
) -> None:
    """The lease stays silent, but its broker's entry is written before the fence, so no verdict
    holds."""
    chance = Random(seed)
    world = Cluster(3, chance, lambda: chance.uniform(0, 0.1))
    world.run(10)
    world.alive.discard(1)
    for _ in range(8):
        world.run(chance.uniform(SESSION - 3, SESSION))
        epoch = world.state.live_epochs[BrokerId(1)]
        world.state = after(world.state, epoch, LeaseResumed(epoch))
    assert world.fenced == []
