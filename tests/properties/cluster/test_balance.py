"""Plans of moves: all live brokers get a fair share in one round, and then no partition moves."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

from hypothesis import assume, given
from hypothesis import strategies as st

from tests.unit.coordinator.cluster.samples import CLUSTER, after, registered
from tidelog.coordinator.cluster.membership.assignment import (
    keeps_balance,
    plan_election,
    plan_moves,
    plan_zone_moves,
    spread,
)
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
    """Several brokers, a topic of coordinators and other topics, with any owners."""
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
    """One round is enough, except for the brokers that hold one partition more if the number does
    not divide. These may change while only some of the brokers have given partitions."""
    for _ in range(len(epochs(state))):
        for giver in epochs(state):
            state = moved(state, giver, plan_moves(state, giver, 0, MOVES_MAX))
    for internal in (True, False):
        shares = loads(state, internal=internal)
        assert max(shares) - min(shares) <= 1
    assert all(plan_moves(state, giver, 0, MOVES_MAX) == {} for giver in epochs(state))


@given(uneven(), st.integers(0, 100))
def test_no_broker_gives_within_the_tolerance_and_each_gives_only_its_own(
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


@given(uneven(), st.sampled_from([0, 10, 30]), st.data())
def test_partitions_go_where_they_are_wanted_within_the_tolerance_until_none_can(
    state: ClusterState, tolerance: int, data: st.DataObject
) -> None:
    """Each move puts one more partition where it is wanted. No move is taken back, in any order of
    the moves."""
    everyone = epochs(state)
    zones = data.draw(st.lists(st.sampled_from("abc"), min_size=6, max_size=6))
    state = with_racks(state, dict(zip(everyone, zones, strict=False)))
    for _ in range(2 * len(everyone)):
        for giver in everyone:
            state = moved(state, giver, plan_moves(state, giver, tolerance, MOVES_MAX))
    places = [place for epoch in everyone for place in state.owned_by(epoch)]
    wanted = {place: data.draw(st.sampled_from("abc")) for place in places}
    settled = at_home(state, wanted)
    for _ in range(len(places) + 1):
        before = state
        for giver in data.draw(st.permutations(everyone)):
            own = {place: wanted[place] for place in state.owned_by(giver)}
            moves = plan_zone_moves(state, giver, own, tolerance, 1)
            for place, receiver in moves.items():
                assert keeps_balance(state, place, receiver, tolerance)
                assert state.brokers[receiver].rack == wanted[place]
                assert state.brokers[giver].rack != wanted[place]
            state = moved(state, giver, moves)
            settled += len(moves)
            assert at_home(state, wanted) == settled
            for each in everyone:
                own = {place: wanted[place] for place in state.owned_by(each)}
                assert plan_moves(state, each, tolerance, MOVES_MAX, wanted=own) == {}
        if state is before:
            return
    raise AssertionError("moves do not end")


def with_racks(state: ClusterState, racks: dict[Epoch, str]) -> ClusterState:
    brokers = {epoch: replace(info, rack=racks.get(epoch)) for epoch, info in state.brokers.items()}
    return replace(state, brokers=brokers)


def at_home(state: ClusterState, wanted: dict[TopicPartition, str]) -> int:
    return sum(
        state.brokers[epoch].rack == wanted[place]
        for epoch in epochs(state)
        for place in state.owned_by(epoch)
    )


def test_givers_that_plan_at_the_same_time_fill_a_receiver_only_once() -> None:
    state = cluster(3)
    first, second, third = epochs(state)
    topic_id = new_topic_id(state.sequence + 1, UUID(int=1))
    owners = (first, first, second, second, third)
    state = after(state, first, TopicCreated(topic_id, "t", owners, internal=True))
    state = with_racks(state, {first: "a", second: "b", third: "c"})
    wanted = {TopicPartition(topic_id, number): "c" for number in range(5)}
    ((place, _),) = plan_zone_moves(state, first, wanted, 0, 1).items()
    ((other, _),) = plan_zone_moves(state, second, wanted, 0, 1).items()
    assert keeps_balance(state, other, third, 0)
    state = moved(state, first, {place: third})
    assert not keeps_balance(state, other, third, 0)
    assert keeps_balance(state, other, third, 200)


def test_a_surplus_leaves_out_partitions_wanted_here_and_draining_brokers_get_none() -> None:
    state = cluster(2)
    first, second = epochs(state)
    topic_id = new_topic_id(state.sequence + 1, UUID(int=1))
    state = after(state, first, TopicCreated(topic_id, "t", (first,) * 4, internal=True))
    state = with_racks(state, {first: "a", second: "b"})
    places = [TopicPartition(topic_id, number) for number in range(4)]
    wanted = {places[0]: "a", places[1]: "a"}
    assert plan_moves(state, first, 0, MOVES_MAX, wanted=wanted).keys() == set(places[2:])
    state = moved(state, first, dict.fromkeys(places[2:], second))
    wanted = dict.fromkeys(places, "b")
    assert plan_zone_moves(state, first, wanted, 50, 9) == {places[0]: second}
    assert plan_zone_moves(state, first, wanted, 50, 9, unmovable=places[:1]) == {places[1]: second}
    state = after(state, second, DrainChanged(second, draining=True))
    assert plan_zone_moves(state, first, wanted, 50, 9) == {}


@given(uneven())
def test_a_drain_gives_all_partitions_evenly(state: ClusterState) -> None:
    giver = epochs(state)[0]
    assume(len(epochs(state)) > 1)
    moves = spread(state, giver, avoided=frozenset({giver}))
    assert set(moves) == set(state.owned_by(giver))
    state = after(moved(state, giver, moves), giver, BrokerFenced(giver))
    assert all(state.is_live(owner) for owner in moves.values())


@given(uneven(), st.data())
def test_an_election_moves_only_named_partitions_and_one_of_all_balances(
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
