"""Moves one member from its current to its target assignment (KIP-848), step by step.

It first revokes partitions that are not in its target. Then it gets the partitions that no other
member owns.
"""

from __future__ import annotations

from collections.abc import Callable

from tidelog.coordinator.group.records.consumer_records import (
    Assignment,
    CurrentAssignment,
    MemberState,
)
from tidelog.identifiers import TopicId


def reconcile(
    current: CurrentAssignment,
    target_epoch: int,
    target: Assignment,
    is_free: Callable[[TopicId, int], bool],
    owned: Assignment | None,
) -> CurrentAssignment:
    """The member's next step, or the same assignment if it cannot advance.

    `is_free`: whether no member owns a partition or has yet to revoke it. `owned`: the partitions
    that the member reports; None if it does not report.
    """
    epoch = current.epoch
    match current.state:
        case MemberState.STABLE:
            if epoch == target_epoch:
                return current
        case MemberState.UNREVOKED_PARTITIONS:
            if _has_any(owned, current.pending_revocation):
                return current
            epoch += 1
        case MemberState.UNRELEASED_PARTITIONS:
            pass
    kept = _both(current.assigned, target)
    revoked = _without(current.assigned, kept)
    if revoked and _has_any(owned, revoked):
        # The member stays in its epoch until it has revoked these.
        return _step(current, epoch, MemberState.UNREVOKED_PARTITIONS, kept, revoked)
    missing = _without(target, kept)
    free = {
        topic_id: found
        for topic_id, numbers in missing.items()
        if (found := frozenset([number for number in numbers if is_free(topic_id, number)]))
    }
    is_waiting = any(len(numbers) > len(free.get(topic, ())) for topic, numbers in missing.items())
    state = MemberState.UNRELEASED_PARTITIONS if is_waiting else MemberState.STABLE
    return _step(current, target_epoch, state, _united(kept, free), {})


def is_within(owned: Assignment | None, assigned: Assignment) -> bool:
    """Whether a member reports only assigned partitions; False if it does not report."""
    if owned is None:
        return False
    return all(
        numbers <= assigned.get(topic_id, frozenset()) for topic_id, numbers in owned.items()
    )


def _step(
    before: CurrentAssignment,
    epoch: int,
    state: MemberState,
    assigned: Assignment,
    pending_revocation: Assignment,
) -> CurrentAssignment:
    return CurrentAssignment(epoch, before.epoch, state, assigned, pending_revocation)


def _has_any(owned: Assignment | None, partitions: Assignment) -> bool:
    """Whether the member reports any of these partitions, or does not report."""
    if owned is None:
        return True
    return any(owned.get(topic_id, frozenset()) & found for topic_id, found in partitions.items())


def _both(one: Assignment, other: Assignment) -> Assignment:
    return {
        topic_id: found
        for topic_id, numbers in one.items()
        if (found := numbers & other.get(topic_id, frozenset()))
    }


def _without(one: Assignment, other: Assignment) -> Assignment:
    return {
        topic_id: found
        for topic_id, numbers in one.items()
        if (found := numbers - other.get(topic_id, frozenset()))
    }


def _united(one: Assignment, other: Assignment) -> Assignment:
    return {
        topic_id: one.get(topic_id, frozenset()) | other.get(topic_id, frozenset())
        for topic_id in {**one, **other}
    }
