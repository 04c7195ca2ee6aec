"""The collectors' work is divided: each piece has one broker, even while brokers join and leave."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tests.unit.coordinator.cluster.samples import CLUSTER, after, registered
from tidelog.broker.collect.shares import (
    PATIENCE_MAX,
    SharedWork,
    dead_wals,
    is_responsible,
    passes_to_wait,
)
from tidelog.coordinator.cluster.records.records import BrokerFenced, IncarnationRetired
from tidelog.coordinator.cluster.state.state import ClusterState
from tidelog.identifiers import Incarnation, Slot


def living(state: ClusterState) -> list[Incarnation]:
    return [info.incarnation for info in state.live_brokers()]


@st.composite
def clusters(draw: st.DrawFn) -> ClusterState:
    """Registered brokers, some of them fenced since, and some of those retired."""
    state = after(ClusterState(), None, CLUSTER)
    for number in range(draw(st.integers(1, 12))):
        state = after(state, None, registered(number))
    author = living(state)[0].epoch
    for incarnation in draw(st.sets(st.sampled_from(living(state)))):
        if incarnation.epoch != author:
            state = after(state, author, BrokerFenced(incarnation.epoch))
            if draw(st.booleans()):
                state = after(state, author, IncarnationRetired(incarnation.epoch, Slot(0), ()))
    return state


@given(clusters())
def test_each_piece_has_one_live_broker(state: ClusterState) -> None:
    for piece in SharedWork:
        assert sum(is_responsible(state, me, piece) for me in living(state)) == 1
    shares = [set(dead_wals(state, me)) for me in living(state)]
    dead = {wal.incarnation for wal in state.retired.values()}
    dead |= {info.incarnation for info in state.fenced_not_retired()}
    assert sum(map(len, shares)) == len(dead)
    assert set().union(*shares) == dead
    for each in dead:
        assert not is_responsible(state, each, SharedWork.TABLES), "a fenced broker has no piece"


@given(clusters())
def test_one_broker_waits_for_no_survey_and_none_waits_for_long(state: ClusterState) -> None:
    waits = sorted(passes_to_wait(state, me) for me in living(state))
    assert waits == [min(number, PATIENCE_MAX) for number in range(len(waits))]


@given(clusters(), st.data())
def test_a_death_moves_only_the_pieces_of_the_dead_broker(
    state: ClusterState, data: st.DataObject
) -> None:
    present = living(state)
    if len(present) == 1:
        return
    lost = data.draw(st.sampled_from(present[1:]))
    later = after(state, present[0].epoch, BrokerFenced(lost.epoch))
    for me in living(later):
        assert set(dead_wals(state, me)) <= set(dead_wals(later, me))
        for piece in SharedWork:
            assert is_responsible(later, me, piece) >= is_responsible(state, me, piece)
