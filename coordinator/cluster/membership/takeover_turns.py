"""Decides when a broker takes over a fenced incarnation (rule C4). Pure.

The fencer may die between `BrokerFenced` and `IncarnationRetired`, and a broker that stops fences
itself and retires nothing. So every broker takes over every fenced incarnation in the end. The
broker that fenced begins at once, and so does the nearest living broker ahead in the ring of ids.
The others wait; the wait grows with their distance in the ring. Two that take over at once do no
harm, but their requests cost twice.
"""

from __future__ import annotations

import math

from tidelog.coordinator.cluster.membership.lease_watch import Uniform
from tidelog.coordinator.cluster.state.incarnations import BrokerInfo
from tidelog.coordinator.cluster.state.state import ClusterState
from tidelog.identifiers import Epoch, Incarnation

WAIT_HEARTBEATS = 2
"""The wait for each living broker that lies nearer to the fenced one."""


class TakeoverTurns:
    """The times from which one broker takes over each fenced incarnation."""

    def __init__(self, me: Incarnation, heartbeat_seconds: float) -> None:
        self._me = me
        self._heartbeat_seconds = heartbeat_seconds
        self._turns: dict[Epoch, float] = {}

    def fenced(self, epoch: Epoch, now: float) -> None:
        """This broker has fenced an incarnation. The take-over may have begun already."""
        if self._turns.get(epoch) != math.inf:
            self._turns[epoch] = now

    def failed(self, epoch: Epoch, now: float, uniform: Uniform) -> None:
        """An attempt failed: the next one follows after a random pause."""
        self._turns[epoch] = now + uniform(0.5, 1.5) * self._heartbeat_seconds

    def begin(self, state: ClusterState, now: float, uniform: Uniform) -> tuple[Incarnation, ...]:
        """The fenced incarnations whose take-over this broker begins now.

        Each comes once, and again only after `failed`. A broker that has fenced itself leaves its
        own to the others.
        """
        waiting = [info for info in state.fenced_not_retired() if info.incarnation != self._me]
        for info in waiting:
            if info.epoch not in self._turns:
                nearer = nearer_brokers(self._me, info, state)
                delay = WAIT_HEARTBEATS * nearer + (uniform(0, 1) if nearer else 0)
                self._turns[info.epoch] = now + delay * self._heartbeat_seconds
        self._turns = {info.epoch: self._turns[info.epoch] for info in waiting}
        due = [info.incarnation for info in waiting if self._turns[info.epoch] <= now]
        self._turns |= {dead.epoch: math.inf for dead in due}
        return tuple(due)

    def next_at(self) -> float:
        """The next turn; infinite if nothing waits for one."""
        return min(self._turns.values(), default=math.inf)


def nearer_brokers(me: Incarnation, fenced: BrokerInfo, state: ClusterState) -> int:
    """The number of live brokers between this one and the fenced one, in the ring of ids."""
    mine, theirs = me.broker_id, fenced.broker_id
    ids = [each for each in state.live_epochs if each not in (mine, theirs)]
    if mine < theirs:
        return sum(mine < each < theirs for each in ids)
    return sum(each > mine or each < theirs for each in ids)
