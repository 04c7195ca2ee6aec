"""The assignment of a dead broker's partitions, and of new ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from uuid import UUID

import pytest

from tests.unit.coordinator.cluster.samples import CLUSTER, after, cluster, registered
from tidelog.coordinator.cluster.membership.assignment import (
    NoLiveBroker,
    Placement,
    assign_evenly,
    spread,
)
from tidelog.coordinator.cluster.records.records import BrokerFenced, TopicCreated
from tidelog.coordinator.cluster.state.state import ClusterState
from tidelog.identifiers import Epoch, TopicPartition

DEAD = Epoch(1)


def with_topic(
    state: ClusterState, name: str, owners: list[int], *, internal: bool = False
) -> ClusterState:
    topic_id = UUID(int=len(state.topics) + 1)
    record = TopicCreated(topic_id, name, tuple(map(Epoch, owners)), internal=internal)
    return after(state, 2, record)


def fenced(state: ClusterState) -> ClusterState:
    return after(state, 2, BrokerFenced(DEAD))


def by_owner(owners: Mapping[TopicPartition, Epoch]) -> Counter[int]:
    return Counter(map(int, owners.values()))


def in_racks(*racks: str | None) -> ClusterState:
    """Brokers 1, 2 and so on, each in its rack."""
    state = after(ClusterState(), None, CLUSTER)
    for number, rack in enumerate(racks, 1):
        state = after(state, None, replace(registered(number), rack=rack))
    return state


def test_all_that_live_get_an_equal_share() -> None:
    state = fenced(with_topic(cluster(1, 2, 3, 4), "flights", [1] * 9))
    assert by_owner(spread(state, DEAD)) == {2: 3, 3: 3, 4: 3}


def test_a_broker_with_less_gets_more() -> None:
    state = with_topic(cluster(1, 2, 3), "old", [2, 2, 2, 2])
    state = fenced(with_topic(state, "flights", [1] * 6))
    assert by_owner(spread(state, DEAD)) == {2: 1, 3: 5}


def test_each_internal_topic_is_spread_on_its_own() -> None:
    """Broker 4 has few partitions, and does not get all coordinators because of that."""
    state = with_topic(cluster(1, 2, 3, 4), "busy", [2, 3] * 50)
    state = with_topic(state, "__consumer_offsets", [1, 2, 3, 4] * 3, internal=True)
    state = with_topic(state, "__transaction_state", [1, 1, 1, 2, 3, 3], internal=True)
    state = fenced(state)
    owners = spread(state, DEAD)
    offsets, transactions = list(state.topics)[1:]
    assert by_owner({p: o for p, o in owners.items() if p.topic_id == offsets}) == {
        2: 1,
        3: 1,
        4: 1,
    }
    assert by_owner({p: o for p, o in owners.items() if p.topic_id == transactions}) == {2: 1, 4: 2}


def test_bytes_count_as_much_as_partitions() -> None:
    state = fenced(with_topic(cluster(1, 2, 3), "flights", [1] * 7))
    flights = next(iter(state.topics))
    sizes = {TopicPartition(flights, 3): 6000, TopicPartition(flights, 0): 10}
    owners = spread(state, DEAD, sizes)
    large = owners[TopicPartition(flights, 3)]
    assert by_owner(owners)[int(large)] == 1
    assert sum(by_owner(owners).values()) == 7


def test_brokers_of_the_same_rack_come_first_among_equals() -> None:
    racks = ("b", "a", "b", "b")
    state = fenced(with_topic(in_racks(*racks), "flights", [1, 1]))
    assert by_owner(spread(state, DEAD)) == {3: 1, 4: 1}
    state = fenced(with_topic(in_racks(None, *racks[1:]), "flights", [1, 1]))
    assert by_owner(spread(state, DEAD)) == {2: 1, 3: 1}


def test_brokers_that_look_dead_get_nothing_while_another_lives() -> None:
    state = fenced(with_topic(cluster(1, 2, 3, 4), "flights", [1] * 6))
    assert by_owner(spread(state, DEAD, avoided=frozenset([Epoch(3)]))) == {2: 3, 4: 3}
    everyone = frozenset(map(Epoch, (2, 3, 4)))
    assert by_owner(spread(state, DEAD, avoided=everyone)) == {2: 2, 3: 2, 4: 2}


def test_new_partitions_go_to_the_least_loaded() -> None:
    state = with_topic(cluster(1, 2, 3), "old", [1, 1, 1, 2])
    placement = Placement(state)
    assert placement.assign(3) == (3, 2, 3)
    assert placement.assign(2) == (2, 3)
    assert placement.assign(3) == (1, 2, 3)


def test_a_new_internal_topic_is_spread_over_all() -> None:
    state = with_topic(cluster(1, 2, 3), "old", [1] * 50)
    assert Counter(assign_evenly(state, 6)) == {1: 2, 2: 2, 3: 2}
    with pytest.raises(NoLiveBroker):
        assign_evenly(ClusterState(), 1)
