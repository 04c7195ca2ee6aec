"""When each broker takes over a fenced incarnation."""

from __future__ import annotations

import math

import pytest

from tests.unit.coordinator.cluster.samples import after, cluster, incarnation
from tidelog.coordinator.cluster.membership.takeover_turns import TakeoverTurns
from tidelog.coordinator.cluster.records.records import BrokerFenced, IncarnationRetired
from tidelog.coordinator.cluster.state.state import ClusterState
from tidelog.identifiers import Epoch, Slot

HEARTBEAT = 2.0
FENCED = after(cluster(1, 2, 3, 4), 1, BrokerFenced(Epoch(3)))


def middle(low: float, high: float) -> float:
    return (low + high) / 2


def turn_of(me: int, state: ClusterState) -> float:
    """The time after which a broker takes over, if no other does."""
    turns = TakeoverTurns(incarnation(state, me), HEARTBEAT)
    if turns.begin(state, 100.0, middle):
        return 0.0
    next_at = turns.next_at()
    assert turns.begin(state, next_at - 0.01, middle) == ()
    assert [each.epoch for each in turns.begin(state, next_at, middle)] == [3]
    return next_at - 100.0


@pytest.mark.parametrize(("me", "turn"), [(2, 0.0), (1, 5.0), (4, 9.0)])
def test_the_nearest_begins_at_once_and_the_others_in_turn(me: int, turn: float) -> None:
    assert turn_of(me, FENCED) == turn


def test_the_fencer_begins_at_once() -> None:
    turns = TakeoverTurns(incarnation(FENCED, 4), HEARTBEAT)
    turns.fenced(Epoch(3), 100.0)
    assert [each.epoch for each in turns.begin(FENCED, 100.0, middle)] == [3]
    # The broker may see the log's entry first.
    turns.fenced(Epoch(3), 100.1)
    assert turns.begin(FENCED, 100.2, middle) == ()


def test_a_dead_nearer_broker_is_not_waited_for_twice() -> None:
    """Broker 2, which fenced broker 3, died too and was fenced: broker 1 is the nearest."""
    state = after(FENCED, 1, BrokerFenced(Epoch(2)))
    turns = TakeoverTurns(incarnation(state, 1), HEARTBEAT)
    assert [each.epoch for each in turns.begin(state, 100.0, middle)] == [2, 3]


def test_an_attempt_that_failed_is_repeated_after_a_pause() -> None:
    turns = TakeoverTurns(incarnation(FENCED, 2), HEARTBEAT)
    assert turns.begin(FENCED, 100.0, middle) != ()
    assert turns.begin(FENCED, 101.0, middle) == ()
    turns.failed(Epoch(3), 101.0, middle)
    assert turns.begin(FENCED, 102.9, middle) == ()
    assert turns.next_at() == 103.0
    assert turns.begin(FENCED, 103.0, middle) != ()


def test_a_retired_incarnation_gets_no_takeover() -> None:
    turns = TakeoverTurns(incarnation(FENCED, 1), HEARTBEAT)
    assert turns.begin(FENCED, 100.0, middle) == ()
    retired = after(FENCED, 2, IncarnationRetired(Epoch(3), Slot(0), ()))
    assert turns.begin(retired, 200.0, middle) == ()
    assert turns.next_at() == math.inf
