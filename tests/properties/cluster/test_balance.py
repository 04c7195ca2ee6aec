"""Plans of moves: all that live get a fair share, in one round, and then nothing moves any more."""

from __future__ import annotations

from uuid import UUID

from hypothesis import assume, given
from hypothesis import strategies as st

from tests.unit.coordinator.cluster.samples import CLUSTER, after, registered
from tidelog.coordinator.cluster.membership.assignment import plan_election, plan_moves, spread
from tidelog.coordinator.cluster.records.records import (
    BrokerFenced,
    DrainChanged,
    PartitionMoved,
    TopicCreated,
)
from tidelog.coordinator.cluster.records.topics import new_topic_id
from tidelog.coordinator.cluster.state.state import ClusterState
from tidelog.identifiers import Epoch, Slot, TopicPartition
from tidelog.wal.log.tenure import TenureEnd

MOVES_MAX = 100_000


def cluster(brokers: int) -> ClusterState:
    state = after(ClusterState(), None, CLUSTER)
    for number in range(brokers):
        state = after(state, None, registered(number))
    return state


def epochs(state: ClusterState) -> list[Epoch]:
    return [info.epoch for info in state.live_brokers()]


def moved(state: ClusterState, giver: Epoch, moves: dict[TopicPartition, Epoch]) -> ClusterState:
    for place, receiver in moves.items():
        tenure = state.leader(place)
        assert tenure is not None
        end = TenureEnd(Slot(0), 0)
        record = PartitionMoved(
            place.topic_id, place.partition, receiver, None, tenure.leader_epoch, end
        )
        state = after(state, giver, record)
    return state


def loads(state: ClusterState, *, internal: bool) -> list[int]:
    owners = [
        tenures[-1].incarnation.epoch
        for topic in state.topics.values()
        if topic.internal == internal
        for tenures in topic.partitions
    ]
    return [owners.count(epoch) for epoch in epochs(state)]


@st.composite
def uneven(draw: st.DrawFn) -> ClusterState:
    """Some brokers, a topic of coordinators and others, owned by whoever it may be."""
    state = cluster(draw(st.integers(1, 6)))
    owners = st.sampled_from(epochs(state))
    for number in range(draw(st.integers(1, 4))):
        of_topic = tuple(draw(st.lists(owners, min_size=1, max_size=40)))
        topic_id = new_topic_id(state.sequence + 1, UUID(int=number))
        record = TopicCreated(topic_id, f"t{number}", of_topic, internal=number == 0)
        state = after(state, of_topic[0], record)
    return state


@given(uneven())
def test_a_few_rounds_make_the_shares_fair_and_then_nothing_moves(state: ClusterState) -> None:
    """One round does, but for who keeps the one partition more where the number does not divide:
    that changes while some have given and others have not."""
    for _ in range(len(epochs(state))):
        for giver in epochs(state):
            state = moved(state, giver, plan_moves(state, giver, 0, MOVES_MAX))
    for internal in (True, False):
        shares = loads(state, internal=internal)
        assert max(shares) - min(shares) <= 1
    assert all(plan_moves(state, giver, 0, MOVES_MAX) == {} for giver in epochs(state))


@given(uneven(), st.integers(0, 100))
def test_nobody_gives_within_the_tolerance_and_all_give_what_is_theirs(
    state: ClusterState, tolerance: int
) -> None:
    for giver in epochs(state):
        moves = plan_moves(state, giver, tolerance, 5)
        assert len(moves) <= 5
        assert set(moves) <= set(state.owned_by(giver))
        assert giver not in moves.values()
        assert set(moves.values()) <= set(epochs(state))


@given(uneven(), st.data())
def test_draining_brokers_end_empty_and_the_others_with_fair_shares(
    state: ClusterState, data: st.DataObject
) -> None:
    everyone = epochs(state)
    draining = data.draw(st.sets(st.sampled_from(everyone), max_size=len(everyone) - 1))
    for epoch in sorted(draining):
        state = after(state, epoch, DrainChanged(epoch, draining=True))
    for _ in everyone:
        for giver in everyone:
            state = moved(state, giver, plan_moves(state, giver, 0, MOVES_MAX))
    takers = [info.epoch for info in state.takers()]
    assert all(state.owned_by(epoch) == () for epoch in draining)
    for internal in (True, False):
        owned = dict(zip(everyone, loads(state, internal=internal), strict=True))
        shares = [owned[epoch] for epoch in takers]
        assert max(shares) - min(shares) <= 1
    assert all(plan_moves(state, giver, 0, MOVES_MAX) == {} for giver in everyone)


@given(uneven())
def test_a_drain_gives_all_and_spreads_it(state: ClusterState) -> None:
    giver = epochs(state)[0]
    assume(len(epochs(state)) > 1)
    moves = spread(state, giver, avoided=frozenset({giver}))
    assert set(moves) == set(state.owned_by(giver))
    state = after(moved(state, giver, moves), giver, BrokerFenced(giver))
    assert all(state.is_live(owner) for owner in moves.values())


@given(uneven(), st.data())
def test_an_election_moves_only_what_is_asked_for_and_all_of_it_balances(
    state: ClusterState, data: st.DataObject
) -> None:
    everything = [
        TopicPartition(topic.topic_id, number)
        for topic in state.topics.values()
        for number in range(topic.partition_count)
    ]
    asked = data.draw(st.sets(st.sampled_from(everything)))
    some = plan_election(state, asked)
    assert some.keys() <= asked
    moves = plan_election(state, frozenset(everything))
    assert len(some) <= len(moves)
    for place, receiver in moves.items():
        leader = state.leader(place)
        assert leader is not None
        state = moved(state, leader.incarnation.epoch, {place: receiver})
    for internal in (True, False):
        found = loads(state, internal=internal)
        assert max(found) - min(found) <= 1
    assert plan_election(state, frozenset(everything)) == {}
