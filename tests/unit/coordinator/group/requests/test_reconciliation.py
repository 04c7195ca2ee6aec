"""How a member is led to its target: each state, and the state that follows."""

from __future__ import annotations

from uuid import UUID

import pytest

from tidelog.coordinator.group.records.consumer_records import (
    Assignment,
    CurrentAssignment,
    MemberState,
)
from tidelog.coordinator.group.requests.reconciliation import is_within, reconcile

STABLE = MemberState.STABLE
UNREVOKED = MemberState.UNREVOKED_PARTITIONS
UNRELEASED = MemberState.UNRELEASED_PARTITIONS
T, U = UUID(int=1), UUID(int=2)


def on(*numbers: int) -> Assignment:
    return {T: frozenset(numbers)} if numbers else {}


def step(
    current: CurrentAssignment,
    target: Assignment,
    *,
    epoch: int = 9,
    held: tuple[int, ...] = (),
    owned: Assignment | None = None,
) -> CurrentAssignment:
    return reconcile(current, epoch, target, lambda _, number: number not in held, owned)


@pytest.mark.parametrize(
    ("state", "target", "held", "owned", "expected"),
    [
        # The member holds partitions outside its target: it stays in its epoch until it has given
        # them up.
        (STABLE, on(0), (), None, (5, UNREVOKED, on(0), on(1))),
        (STABLE, on(0), (), on(0, 1), (5, UNREVOKED, on(0), on(1))),
        (UNRELEASED, on(0), (), None, (5, UNREVOKED, on(0), on(1))),
        (STABLE, on(0, 2), (), on(1), (5, UNREVOKED, on(0), on(1))),
        # The member has reported that it does not hold the partition.
        (STABLE, on(0), (), on(0), (9, STABLE, on(0), {})),
        (STABLE, on(0, 2), (), {}, (9, STABLE, on(0, 2), {})),
        # The target has more partitions: free ones come at once, others when their owners have
        # given them up.
        (STABLE, on(0, 1, 2), (), None, (9, STABLE, on(0, 1, 2), {})),
        (STABLE, on(0, 1, 2), (2,), None, (9, UNRELEASED, on(0, 1), {})),
        (STABLE, on(0, 1, 2, 3), (2,), None, (9, UNRELEASED, on(0, 1, 3), {})),
        (UNRELEASED, on(0, 1, 2), (2,), None, (9, UNRELEASED, on(0, 1), {})),
        (UNRELEASED, on(0, 1, 2), (), None, (9, STABLE, on(0, 1, 2), {})),
        # Only the epoch changes.
        (STABLE, on(0, 1), (), None, (9, STABLE, on(0, 1), {})),
        (UNRELEASED, on(0, 1), (), None, (9, STABLE, on(0, 1), {})),
    ],
)
def test_a_member_takes_its_next_step(
    state: MemberState,
    target: Assignment,
    held: tuple[int, ...],
    owned: Assignment | None,
    expected: tuple[int, MemberState, Assignment, Assignment],
) -> None:
    found = step(CurrentAssignment(5, 4, state, on(0, 1), {}), target, held=held, owned=owned)
    assert (found.epoch, found.state, found.assigned, found.pending_revocation) == expected
    assert found.previous_epoch == 5


@pytest.mark.parametrize("owned", [None, on(1), on(0, 1)])
def test_a_member_stays_in_its_epoch_until_it_has_revoked(owned: Assignment | None) -> None:
    current = CurrentAssignment(5, 4, UNREVOKED, on(0), on(1))
    assert step(current, on(0, 2), owned=owned) == current


def test_a_completed_revocation_brings_the_member_into_the_next_epoch() -> None:
    current = CurrentAssignment(5, 4, UNREVOKED, on(0), on(1))
    assert step(current, on(0, 2), owned=on(0)) == CurrentAssignment(9, 5, STABLE, on(0, 2), {})


def test_a_newer_target_takes_away_more_before_it_has_gone_on() -> None:
    current = CurrentAssignment(5, 4, UNREVOKED, on(0), on(1))
    found = step(current, on(2), owned=on(0))
    assert found == CurrentAssignment(6, 5, UNREVOKED, {}, on(0))
    again = reconcile(found, 12, on(2), lambda *_: True, {})
    assert again == CurrentAssignment(12, 6, STABLE, on(2), {})


def test_a_partition_under_revocation_does_not_come_back_unreleased() -> None:
    """A newer target returns the partition, but the member was already told to give it up."""
    current = CurrentAssignment(5, 4, UNREVOKED, on(0), on(1))
    assert step(current, on(0, 1), held=(1,), owned=on(0)).state is UNRELEASED


def test_a_stable_member_of_the_target_epoch_stays_as_it_is() -> None:
    current = CurrentAssignment(9, 8, STABLE, on(0), {})
    assert step(current, on(0, 1), owned={}) is current


def test_a_revoked_topic_and_a_new_topic() -> None:
    current = CurrentAssignment(5, 4, STABLE, {T: frozenset({0})}, {})
    found = reconcile(current, 6, {U: frozenset({0})}, lambda *_: True, {T: frozenset({0})})
    assert (found.assigned, found.pending_revocation) == ({}, {T: frozenset({0})})


@pytest.mark.parametrize(
    ("owned", "expected"),
    [(None, False), ({}, True), (on(0), True), (on(0, 1), True), (on(2), False)],
)
def test_a_member_is_within_its_assignment_if_it_owns_no_other_partition(
    owned: Assignment | None, expected: bool
) -> None:
    assert is_within(owned, on(0, 1)) is expected
    assert is_within({U: frozenset({0})}, on(0)) is False
