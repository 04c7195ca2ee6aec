"""Deadlines come in order, and members that have gone leave no entries in the queue."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tidelog.coordinator.timers import Timers


def test_deadlines_come_in_order_and_once() -> None:
    timers: Timers[str] = Timers()
    timers.set("b", 20)
    timers.set("a", 10)
    assert timers.next_deadline() == 10
    assert timers.pop_due(9) is None
    assert [timers.pop_due(30), timers.pop_due(30), timers.pop_due(30)] == ["a", "b", None]
    assert len(timers) == 0


def test_ten_thousand_heartbeats_leave_one_entry() -> None:
    timers: Timers[str] = Timers()
    for now in range(10_000):
        timers.set("member", now + 100)
    assert timers.pop_due(10_098) is None
    assert timers.pop_due(10_099) == "member"


def test_members_that_come_and_go_leave_nothing_behind() -> None:
    timers: Timers[int] = Timers()
    for member in range(10_000):
        timers.set(member, 1_000_000)
        timers.cancel(member)
    assert len(timers._queue) < 200


@given(
    st.lists(
        st.tuples(st.sampled_from(["set", "cancel", "pop"]), st.integers(0, 5), st.integers(0, 50)),
        max_size=200,
    )
)
def test_timers_behave_like_a_dictionary_that_is_searched(
    steps: list[tuple[str, int, int]],
) -> None:
    timers: Timers[int] = Timers()
    model: dict[int, int] = {}
    for action, key, at in steps:
        if action == "set":
            timers.set(key, at)
            model[key] = at
        elif action == "cancel":
            timers.cancel(key)
            model.pop(key, None)
        else:
            earliest = min(model.values(), default=None)
            popped = timers.pop_due(at)
            if popped is None:
                assert earliest is None or earliest > at
            else:
                assert model.pop(popped) == earliest
                assert earliest <= at
        assert timers.next_deadline() == min(model.values(), default=None)
        assert {key for key in range(6) if key in timers} == set(model)
