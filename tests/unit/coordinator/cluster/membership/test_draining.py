"""Which drains are refused, which state a drain changes, and where partitions go meanwhile."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from uuid import UUID

import pytest

from tests.unit.coordinator.cluster.samples import CLUSTER, after, registered
from tidelog.coordinator.cluster.membership.assignment import (
    Placement,
    assign_evenly,
    plan_moves,
    spread,
)
from tidelog.coordinator.cluster.membership.draining import DrainRefused, NotLive, drain_changes
from tidelog.coordinator.cluster.records.records import (
    BROKER_VERSION,
    DRAIN_VERSION,
    SHARING_VERSION,
    BrokerFenced,
    DrainChanged,
    TopicCreated,
)
from tidelog.coordinator.cluster.state.state import ClusterState
from tidelog.identifiers import BrokerId, Epoch


def brokers(*versions: int) -> ClusterState:
    """Brokers with ids from 1 on, whose epochs are their ids."""
    state = after(ClusterState(), None, CLUSTER)
    for number, version in enumerate(versions, 1):
        state = after(state, None, replace(registered(number), version=version))
    return state


def three() -> ClusterState:
    return brokers(*[BROKER_VERSION] * 3)


def drained(state: ClusterState, broker_id: int) -> ClusterState:
    return after(state, 1, *drain_changes(state, BrokerId(broker_id), draining=True))


def undone(state: ClusterState, broker_id: int) -> ClusterState:
    return after(state, 1, *drain_changes(state, BrokerId(broker_id), draining=False))


def takers(state: ClusterState) -> list[int]:
    return [info.broker_id for info in state.takers()]


def test_a_drain_is_begun_and_undone_once() -> None:
    state = drained(three(), 2)
    assert takers(state) == [1, 3]
    assert drain_changes(state, BrokerId(2), draining=True) == ()
    state = undone(state, 2)
    assert takers(state) == [1, 2, 3]
    assert drain_changes(state, BrokerId(2), draining=False) == ()


def test_the_end_of_an_incarnation_ends_its_drain() -> None:
    state = after(drained(three(), 2), 2, BrokerFenced(Epoch(2)))
    again = replace(registered(2), version=BROKER_VERSION)
    assert takers(after(state, None, again)) == [1, 2, 3]
    # This holds even if the newcomer fences its own predecessor.
    state = after(drained(three(), 2), None, BrokerFenced(Epoch(2)), again)
    assert takers(state) == [1, 2, 3]


@pytest.mark.parametrize("draining", [True, False])
def test_an_unknown_and_a_dead_broker_are_refused(draining: bool) -> None:
    state = after(three(), 1, BrokerFenced(Epoch(3)))
    for broker_id in (3, 7):
        with pytest.raises(
            NotLive, match=f"there is no live broker {broker_id}; these live: 1, 2$"
        ):
            drain_changes(state, BrokerId(broker_id), draining=draining)


def test_the_last_broker_that_can_take_partitions_is_not_drained() -> None:
    with pytest.raises(DrainRefused, match=r"broker 1 is the last .*; start another broker first$"):
        drain_changes(brokers(BROKER_VERSION), BrokerId(1), draining=True)
    state = drained(drained(three(), 2), 3)
    with pytest.raises(DrainRefused, match=r"undo the drain of another one: 2, 3$"):
        drain_changes(state, BrokerId(1), draining=True)
    # Drains of other brokers do not prevent the end of this broker's drain.
    assert takers(undone(state, 3)) == [1, 3]


def test_no_drain_is_written_while_a_broker_cannot_read_drains() -> None:
    state = brokers(DRAIN_VERSION, SHARING_VERSION, DRAIN_VERSION)
    with pytest.raises(DrainRefused, match=r"no drains: 2; upgrade them first"):
        drain_changes(state, BrokerId(1), draining=True)
    state = after(state, 1, BrokerFenced(Epoch(2)))
    assert drain_changes(state, BrokerId(1), draining=True) == (DrainChanged(Epoch(1), True),)


def test_a_draining_broker_gets_no_new_partitions_and_none_of_dead_brokers() -> None:
    state = drained(three(), 2)
    assert Counter(Placement(state).assign(4)) == {1: 2, 3: 2}
    assert Counter(assign_evenly(state, 4)) == {1: 2, 3: 2}
    state = after(state, 1, TopicCreated(UUID(int=1), "t", (Epoch(3),) * 4))
    state = after(state, 1, BrokerFenced(Epoch(3)))
    assert Counter(spread(state, Epoch(3)).values()) == {1: 4}
    # A broker that looks dead is a worse receiver than a drained one.
    assert Counter(spread(state, Epoch(3), avoided=frozenset({Epoch(1)})).values()) == {2: 4}


def test_without_any_other_broker_a_draining_one_serves() -> None:
    state = drained(three(), 2)
    state = after(state, 1, TopicCreated(UUID(int=1), "t", (Epoch(1),) * 4))
    for dead in (3, 1):
        state = after(state, 2, BrokerFenced(Epoch(dead)))
    assert Counter(spread(state, Epoch(1)).values()) == {2: 4}
    assert Counter(Placement(state).assign(4)) == {2: 4}
    assert plan_moves(state, Epoch(2), 0, 100) == {}


def test_a_draining_broker_gives_all_at_any_tolerance_and_the_others_wait() -> None:
    state = after(three(), 1, TopicCreated(UUID(int=1), "t", tuple(map(Epoch, (1, 2, 3) * 3))))
    state = drained(state, 2)
    moves = plan_moves(state, Epoch(2), 100, 100)
    assert set(moves) == set(state.owned_by(Epoch(2)))
    assert sorted(Counter(moves.values()).items()) in ([(1, 1), (3, 2)], [(1, 2), (3, 1)])
    for other in (1, 3):
        assert plan_moves(state, Epoch(other), 0, 100) == {}
