"""All partitions of a dead broker go to live brokers, evenly, and each always to the same one."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from tests.unit.coordinator.cluster.membership.test_assignment import DEAD, fenced, with_topic
from tests.unit.coordinator.cluster.samples import after, cluster
from tidelog.coordinator.cluster.membership.assignment import spread
from tidelog.coordinator.cluster.membership.takeover import successions
from tidelog.coordinator.cluster.records.records import IncarnationRetired
from tidelog.identifiers import Epoch, Slot


@given(
    brokers=st.integers(2, 7),
    topics=st.lists(st.tuples(st.booleans(), st.lists(st.integers(1, 7), min_size=1, max_size=12))),
    sizes=st.dictionaries(st.integers(0, 60), st.integers(0, 10**12)),
    avoided=st.frozensets(st.integers(1, 7)),
)
def test_an_assignment_is_whole_valid_even_and_always_the_same(
    brokers: int,
    topics: list[tuple[bool, list[int]]],
    sizes: dict[int, int],
    avoided: frozenset[int],
) -> None:
    state = cluster(*range(1, brokers + 1))
    for number, (internal, owners) in enumerate(topics):
        present = [1 + owner % brokers for owner in owners]
        state = with_topic(state, f"t{number}", present, internal=internal)
    state = fenced(state)
    owned = state.owned_by(DEAD)
    known = {owned[n]: size for n, size in sizes.items() if n < len(owned)}
    shunned = frozenset(map(Epoch, avoided))
    owners_of = spread(state, DEAD, known, avoided=shunned)
    assert owners_of == spread(state, DEAD, dict(reversed(known.items())), avoided=shunned)
    assert set(owners_of) == set(owned)
    # The metadata log accepts the assignment.
    retired = after(state, 2, IncarnationRetired(DEAD, Slot(0), successions(owners_of)))
    able = {info.epoch for info in state.live_brokers()} - shunned
    if able:
        assert able.issuperset(owners_of.values())
    for topic in retired.topics.values():
        given_away = Counter(owners_of[p] for p in owned if p.topic_id == topic.topic_id)
        if topic.internal and given_away and able:
            counts = Counter(tenures[-1].incarnation.epoch for tenures in topic.partitions)
            # An incarnation that got one has at most one more than any other that could have.
            assert all(counts[each] <= counts[other] + 1 for each in given_away for other in able)
