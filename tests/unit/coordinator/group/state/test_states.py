"""The states of a group: the transitions of the table happen, and no others."""

from __future__ import annotations

import itertools

import pytest

from tidelog.coordinator.group.state.classic_group import ClassicGroup
from tidelog.coordinator.group.state.states import (
    PREVIOUS_STATES,
    GroupState,
    InvalidGroupTransition,
)

EMPTY, PREPARING, COMPLETING, STABLE, DEAD = GroupState
LEGAL = {
    (STABLE, PREPARING),
    (COMPLETING, PREPARING),
    (EMPTY, PREPARING),
    (PREPARING, COMPLETING),
    (COMPLETING, STABLE),
    (PREPARING, EMPTY),
    *((state, DEAD) for state in GroupState),
}


@pytest.mark.parametrize(("before", "after"), [*itertools.product(GroupState, GroupState)])
def test_a_group_goes_where_the_table_says_and_nowhere_else(
    before: GroupState, after: GroupState
) -> None:
    group = ClassicGroup("g", before)
    assert (before in PREVIOUS_STATES[after]) == ((before, after) in LEGAL)
    if (before, after) in LEGAL:
        group.transition(after, 5)
        assert (group.state, group.state_timestamp_ms) == (after, 5)
    else:
        with pytest.raises(InvalidGroupTransition, match=f"{before.value} .* {after.value}"):
            group.transition(after, 5)
        assert group.state is before
