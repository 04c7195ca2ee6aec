"""For any backlogs, the plan takes exactly the due ones."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from random import Random
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from tidelog.identifiers import TopicPartition
from tidelog.wal.roll.roll_plan import (
    Backlog,
    Roll,
    RollLimits,
    RollReason,
    plan_rolls,
    read_together,
)

PLACES = st.builds(TopicPartition, st.sampled_from([UUID(int=1), UUID(int=2)]), st.integers(0, 9))
BACKLOGS = st.lists(
    st.builds(
        Backlog,
        PLACES,
        wal_bytes=st.integers(0, 300),
        extents=st.integers(0, 30),
        age_ms=st.integers(0, 300),
        bytes_max=st.integers(1, 200),
        age_ms_max=st.integers(1, 200),
        is_requested=st.booleans(),
    ),
    unique_by=lambda backlog: backlog.partition,
    max_size=20,
)
LIMITS = st.builds(RollLimits, st.integers(0, 1000), st.integers(0, 300))


@given(BACKLOGS, LIMITS)
def test_due_and_requested_partitions_roll_the_most_urgent_first(
    backlogs: list[Backlog], limits: RollLimits
) -> None:
    known = {each.partition: each for each in backlogs}
    plan = plan_rolls(backlogs, limits)
    assert len({roll.partition for roll in plan}) == len(plan)
    chosen = {roll.partition: roll.reason for roll in plan}
    for place, each in known.items():
        is_due = each.wal_bytes >= each.bytes_max or each.age_ms >= each.age_ms_max
        if each.is_requested:
            assert chosen[place] is RollReason.REQUEST
        elif is_due:
            assert chosen[place] in (RollReason.SIZE, RollReason.AGE)
        else:
            assert chosen.get(place, RollReason.PRESSURE) is RollReason.PRESSURE
    groups = [
        [known[roll.partition].urgency for roll in plan if roll.reason in reasons]
        for reasons in ((RollReason.REQUEST,), (RollReason.SIZE, RollReason.AGE))
    ]
    assert all(group == sorted(group, reverse=True) for group in groups)
    ranks = [
        (roll.reason is not RollReason.REQUEST) + (roll.reason is RollReason.PRESSURE)
        for roll in plan
    ]
    assert ranks == sorted(ranks)


@given(BACKLOGS, LIMITS)
def test_the_carried_over_backlog_is_small_or_not_worth_a_file(
    backlogs: list[Backlog], limits: RollLimits
) -> None:
    plan = plan_rolls(backlogs, limits)
    chosen = {roll.partition for roll in plan}
    carried = [each for each in backlogs if each.partition not in chosen]
    total = sum(each.wal_bytes for each in carried)
    assert total <= limits.wal_bytes_max or all(
        each.wal_bytes < limits.worth_bytes for each in carried
    )
    known = {each.partition: each for each in backlogs}
    pressed = [known[roll.partition] for roll in plan if roll.reason is RollReason.PRESSURE]
    assert all(each.wal_bytes >= limits.worth_bytes for each in pressed)
    if pressed:
        # Without the last one, which is the smallest, there would still be too much.
        assert total + pressed[-1].wal_bytes > limits.wal_bytes_max
        assert pressed[-1].wal_bytes == min(each.wal_bytes for each in pressed)


@given(BACKLOGS, LIMITS, st.randoms())
def test_the_order_in_which_they_are_found_does_not_matter(
    backlogs: list[Backlog], limits: RollLimits, random: Random
) -> None:
    shuffled = list(backlogs)
    random.shuffle(shuffled)
    assert plan_rolls(shuffled, limits) == plan_rolls(backlogs, limits)


@given(BACKLOGS, LIMITS, st.integers(0, 500), st.integers(0, 50))
def test_groups_of_rolls_keep_the_limits_and_the_order(
    backlogs: list[Backlog], limits: RollLimits, bytes_max: int, extents_max: int
) -> None:
    plan = plan_rolls(backlogs, limits)
    groups = list(read_together(plan, bytes_max, extents_max))
    assert [roll for group in groups for roll in group] == plan

    def fits(rolls: Sequence[Roll]) -> bool:
        size = sum(roll.backlog.wal_bytes for roll in rolls)
        return size <= bytes_max and sum(roll.backlog.extents for roll in rolls) <= extents_max

    assert all(group and (len(group) == 1 or fits(group)) for group in groups)
    # No group could have taken the next roll as well.
    for group, following in pairwise(groups):
        assert not fits([*group, following[0]])
