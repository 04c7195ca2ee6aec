"""The server's assignors: worked examples, and properties that hold for every group."""

from __future__ import annotations

from collections.abc import Mapping
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.coordinator.group.assign.assignors import (
    AssignmentTask,
    GroupConsumer,
    assign_ranges,
    assign_uniformly,
)
from tidelog.coordinator.group.records.consumer_records import Assignment
from tidelog.identifiers import TopicId

T, U, V = (UUID(int=number) for number in (1, 2, 3))
COUNTS = {T: 4, U: 2, V: 3}


def task(
    members: Mapping[str, set[TopicId]],
    previous: Mapping[str, Assignment] | None = None,
    counts: Mapping[TopicId, int] = COUNTS,
    static: Mapping[str, str] | None = None,
) -> AssignmentTask:
    wanted = {topic for topics in members.values() for topic in topics}
    return AssignmentTask(
        {
            member_id: GroupConsumer((static or {}).get(member_id), frozenset(topics))
            for member_id, topics in members.items()
        },
        {topic: counts[topic] for topic in wanted},
        previous or {},
    )


def sizes(found: Mapping[str, Assignment]) -> dict[str, int]:
    return {each: sum(map(len, topics.values())) for each, topics in found.items()}


def moved(before: Mapping[str, Assignment], after: Mapping[str, Assignment]) -> int:
    """The number of partitions that a member had and has lost."""
    return sum(
        len(numbers - after.get(member_id, {}).get(topic, frozenset()))
        for member_id, topics in before.items()
        for topic, numbers in topics.items()
    )


# Ranges.


def test_ranges_are_neighbours_and_the_first_have_more() -> None:
    found = assign_ranges(task({"b": {T, V}, "a": {T, V}, "c": {T, V}}))
    assert found == {
        "a": {T: {0, 1}, V: {0}},
        "b": {T: {2}, V: {1}},
        "c": {T: {3}, V: {2}},
    }


def test_members_without_a_range_have_nothing() -> None:
    assert assign_ranges(task({"a": {U}, "b": {U}, "c": {U}}))["c"] == {}


def test_ranges_of_each_topic_are_shared_by_its_subscribers() -> None:
    found = assign_ranges(task({"a": {T}, "b": {T, U}, "c": {U}}))
    assert found == {"a": {T: {0, 1}}, "b": {T: {2, 3}, U: {0}}, "c": {U: {1}}}


def test_static_members_come_first_by_their_instances() -> None:
    found = assign_ranges(
        task({"a": {T}, "b": {T}, "c": {T}}, static={"b": "instance 2", "c": "instance 1"})
    )
    assert found == {"c": {T: {0, 1}}, "b": {T: {2}}, "a": {T: {3}}}


# Uniform.


def test_all_have_equally_many_over_all_topics() -> None:
    found = assign_uniformly(task({"a": {T, U, V}, "b": {T, U, V}, "c": {T, U, V}}))
    assert sizes(found) == {"a": 3, "b": 3, "c": 3}


def test_a_new_member_takes_no_more_than_its_share() -> None:
    before = assign_uniformly(task({"a": {T, U}, "b": {T, U}}))
    after = assign_uniformly(task({"a": {T, U}, "b": {T, U}, "c": {T, U}}, before))
    assert sizes(after) == {"a": 2, "b": 2, "c": 2}
    assert moved(before, after) == 2


def test_a_leaving_members_partitions_are_shared_and_no_others_move() -> None:
    before = assign_uniformly(task({"a": {T, U}, "b": {T, U}, "c": {T, U}}))
    left = {each: topics for each, topics in before.items() if each != "b"}
    after = assign_uniformly(task({"a": {T, U}, "c": {T, U}}, left))
    assert sizes(after) == {"a": 3, "c": 3}
    assert moved(left, after) == 0


def test_the_odd_partitions_stay_with_their_members() -> None:
    before = {"a": {T: frozenset({0})}, "b": {T: frozenset({1, 2})}}
    after = assign_uniformly(task({"a": {T}, "b": {T}}, before, {T: 3}))
    assert after == before


def test_members_with_more_topics_leave_shared_topics_to_other_members() -> None:
    found = assign_uniformly(task({"a": {T}, "b": {T, U}}))
    assert sizes(found) == {"a": 3, "b": 3}
    assert found["b"][U] == {0, 1}


def test_partitions_move_to_a_member_that_may_have_them_and_has_fewer() -> None:
    before = {"a": {T: frozenset(range(4))}, "b": {}}
    after = assign_uniformly(task({"a": {T, V}, "b": {T}}, before))
    assert sizes(after) == {"a": 4, "b": 3}


@pytest.mark.parametrize("assignor", [assign_ranges, assign_uniformly])
def test_groups_without_members_or_topics(assignor: object) -> None:
    assert assignor(task({})) == {}  # type: ignore[operator]
    assert assignor(task({"a": set()})) == {"a": {}}  # type: ignore[operator]


def test_a_large_group_is_assigned_evenly() -> None:
    topics = {UUID(int=number): 100 for number in range(1, 21)}
    members = {f"m{number}": set(topics) for number in range(150)}
    found = assign_uniformly(task(members, counts=topics))
    assert set(sizes(found).values()) == {13, 14}


TOPIC_SETS = st.sets(st.sampled_from([T, U, V]))
NAMES = st.sampled_from("abcdefg")
GROUPS = st.dictionaries(NAMES, TOPIC_SETS, max_size=6)
ASSIGNMENTS = st.dictionaries(
    NAMES,
    st.dictionaries(
        st.sampled_from([T, U, V, UUID(int=9)]),
        st.frozensets(st.integers(0, 6), min_size=1),
        max_size=3,
    ),
)


@given(GROUPS, ASSIGNMENTS, st.sampled_from([assign_ranges, assign_uniformly]))
def test_every_partition_goes_to_one_subscriber(
    members: dict[str, set[TopicId]], previous: dict[str, Assignment], assignor: object
) -> None:
    """Members may have had any partitions before, even one twice, or partitions that no longer
    exist."""
    asked = task(members, previous)
    found = assignor(asked)  # type: ignore[operator]
    assert found.keys() == members.keys()
    assert all(set(topics) <= members[each] for each, topics in found.items())
    assert all(numbers for topics in found.values() for numbers in topics.values())
    places = [(t, n) for topics in found.values() for t, numbers in topics.items() for n in numbers]
    wanted = [(t, n) for t, count in asked.partition_counts.items() for n in range(count)]
    assert sorted(places) == sorted(wanted)


@given(GROUPS, ASSIGNMENTS)
def test_no_member_has_two_more_than_another_subscriber(
    members: dict[str, set[TopicId]], previous: dict[str, Assignment]
) -> None:
    found = assign_uniformly(task(members, previous))
    load = sizes(found)
    for giver, topics in found.items():
        for receiver, subscribed in members.items():
            if subscribed & set(topics):
                assert load[giver] <= load[receiver] + 1


@given(GROUPS, ASSIGNMENTS)
def test_the_same_group_stays_as_it_is(
    members: dict[str, set[TopicId]], previous: dict[str, Assignment]
) -> None:
    once = assign_uniformly(task(members, previous))
    assert assign_uniformly(task(members, once)) == once


@given(st.sets(NAMES, min_size=1, max_size=6), ASSIGNMENTS, st.integers(1, 9))
def test_no_more_moves_than_must(
    names: set[str], previous: dict[str, Assignment], count: int
) -> None:
    """All members subscribe to the same topics. A member with less than its share keeps all
    partitions, and a member with more gives only the surplus."""
    before = assign_uniformly(task({each: {T} for each in names}, previous, {T: count}))
    after_names = [*sorted(names)[: max(1, len(names) - 1)], "new"]
    left = {each: before[each] for each in after_names if each in before}
    after = assign_uniformly(task({each: {T} for each in after_names}, left, {T: count}))
    share, odd = divmod(count, len(after_names))
    had = sorted((sum(map(len, topics.values())) for topics in left.values()), reverse=True)
    quotas = [share + (position < odd) for position in range(len(had))]
    assert moved(left, after) == sum(max(0, n - q) for n, q in zip(had, quotas, strict=True))
