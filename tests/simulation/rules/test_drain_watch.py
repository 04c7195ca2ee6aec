"""The rule on drains notices a move to a draining broker, if the giver had another receiver."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

from tests.simulation.rules.drain_watch import DrainWatch
from tests.unit.coordinator.cluster.samples import CLUSTER, after, registered
from tidelog.coordinator.cluster.records.records import (
    BrokerFenced,
    DrainChanged,
    PartitionMoved,
)
from tidelog.coordinator.cluster.state.state import ClusterState
from tidelog.identifiers import Epoch


def test_a_move_to_a_draining_broker_is_noticed() -> None:
    state = after(ClusterState(), None, CLUSTER)
    for number in range(3):
        state = after(state, None, registered(number))
    first, second, third = (info.epoch for info in state.live_brokers())
    watch = DrainWatch(state)
    move = PartitionMoved(UUID(int=1), 0, third)
    assert watch.follow(4, [move]) is None
    assert watch.follow(5, [DrainChanged(third, True)]) is None
    assert watch.follow(6, [move]) == third
    assert watch.follow(7, [replace(move, owner=second)]) is None
    # The giver may be the only one that is not draining.
    assert watch.follow(8, [BrokerFenced(first), move]) is None
    assert watch.follow(9, [registered(4), move]) == third
    assert watch.follow(10, [DrainChanged(third, False), move]) is None
    assert watch.follow(11, [DrainChanged(Epoch(9), True), move]) is None
