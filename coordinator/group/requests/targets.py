"""Renews the target assignments of consumer groups when they are outdated (KIP-848).

A small target is made at once, a large one by a worker. Meanwhile the previous one stays.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from tidelog.coordinator.group.assign.target_assignment import Target, TargetTask, make_target
from tidelog.coordinator.group.commands import PatternLookup
from tidelog.coordinator.group.consumer_commands import (
    ClusterTopics,
)
from tidelog.coordinator.group.records.consumer_records import (
    Assignment,
    ConsumerGroupStored,
    ConsumerSubscription,
    CurrentAssignment,
    TargetEpochStored,
    TargetStored,
)
from tidelog.coordinator.group.requests.classic_rebalance import GroupTurn
from tidelog.coordinator.group.requests.limits import GroupLimits
from tidelog.coordinator.group.settings import GroupSettings
from tidelog.coordinator.group.state.consumer_group import ConsumerGroup
from tidelog.coordinator.group.state.sizes import assignment_bytes


class Caller(NamedTuple):
    """The member that a request comes from, in its previous state."""

    member_id: str
    subscription: ConsumerSubscription | None
    current: CurrentAssignment
    target: Assignment
    replaces: str | None = None
    """The id of the member that it replaces: the same static member before."""


class TargetAssignments:
    """Makes targets, or requests them from a worker. It holds no state."""

    def __init__(self, settings: GroupSettings, limits: GroupLimits) -> None:
        self._settings = settings
        self._limits = limits

    def target_of(
        self,
        group: ConsumerGroup,
        known: ClusterTopics,
        caller: Caller,
        subscription: ConsumerSubscription,
        turn: GroupTurn,
    ) -> tuple[int, Assignment]:
        """The member's target assignment, and its epoch.

        It is made anew if subscriptions, topics or members have changed. Results of a worker apply
        from a later heartbeat on.
        """
        bumps = group.epoch == 0 or _subscribes_anew(caller.subscription, subscription)
        self._look_up_patterns(group, known, turn)
        if not group.is_matched(subscription.topic_regex):
            return self._go_on(group, caller, bumps, turn)
        is_behind = group.epoch > group.assignment_epoch
        if not bumps and not is_behind and group.topics_seen is known.topics:
            return group.assignment_epoch, caller.target
        members = {**group.subscriptions, caller.member_id: subscription}
        if caller.replaces is not None and caller.replaces != caller.member_id:
            del members[caller.replaces]
        previous = {each: group.target(each) for each in members}
        previous[caller.member_id] = caller.target
        task = TargetTask(
            group.group_id,
            group.serial,
            group.epoch + bumps,
            bumps or is_behind,
            group.metadata_hash,
            members,
            group.matches.copy(),
            known,
            previous,
            self._settings.consumer_assignors[0],
        )
        if task.is_large:
            return self._request_target(group, caller, task, bumps, turn)
        target = make_target(task)
        if not self._has_room(group, target, turn):
            return self._go_on(group, caller, bumps, turn)
        group.topics_seen = known.topics
        has_changed = target.metadata_hash != group.metadata_hash
        epoch = group.epoch + (bumps or (has_changed and not is_behind))
        if epoch != group.epoch or has_changed:
            turn.persist(ConsumerGroupStored(group.group_id, epoch, target.metadata_hash))
        if target.assignments is None:
            return epoch, caller.target
        _persist_target(group.group_id, target, members, previous, epoch, turn)
        return epoch, target.assignments[caller.member_id]

    def _request_target(
        self,
        group: ConsumerGroup,
        caller: Caller,
        task: TargetTask,
        bumps: bool,
        turn: GroupTurn,
    ) -> tuple[int, Assignment]:
        """Request the target from a worker, unless one is making it; keep the previous target."""
        epoch, target = self._go_on(group, caller, bumps, turn)
        if turn.now.monotonic_ms >= group.no_target_before_ms:
            group.no_target_before_ms = turn.now.monotonic_ms + self._settings.work_timeout_ms
            stored = [each.epoch for each in turn.records if isinstance(each, ConsumerGroupStored)]
            turn.work.append(replace(task, epoch=max([task.epoch, *stored])))
        return epoch, target

    def _go_on(
        self, group: ConsumerGroup, caller: Caller, bumps: bool, turn: GroupTurn
    ) -> tuple[int, Assignment]:
        """Keep the previous target: the group's epoch is ahead of the target's."""
        if not bumps:
            return group.assignment_epoch, caller.target
        group_id, epoch, assigned = group.group_id, group.epoch + 1, group.assignment_epoch
        if assigned == 0:
            # No member can be in epoch 0, so the first target is empty.
            turn.persist(ConsumerGroupStored(group_id, epoch, group.metadata_hash))
            turn.persist(TargetEpochStored(group_id, epoch))
            assigned, epoch = epoch, epoch + 1
        turn.persist(ConsumerGroupStored(group_id, epoch, group.metadata_hash))
        return assigned, caller.target

    def take(self, group: ConsumerGroup, target: Target, turn: GroupTurn) -> None:
        """Apply a target that a worker made.

        If members have changed meanwhile, it counts for the epoch of its task, and the next one
        follows. Where that change began no epoch (a static member returned under a new id), the
        target is dropped, and the next heartbeat requests another.
        """
        task = target.task
        if task.serial != group.serial:
            return
        if task.epoch == group.epoch and task.members.keys() != group.subscriptions.keys():
            group.no_target_before_ms = 0
            return
        if not self._has_room(group, target, turn):
            group.no_target_before_ms = turn.now.monotonic_ms + self._settings.work_timeout_ms
            return
        group.no_target_before_ms = 0
        epoch = task.epoch
        if epoch == group.epoch:
            # If expressions match other topics meanwhile, the next heartbeat looks again.
            group.topics_seen = task.topics.topics if task.matches == group.matches else None
            if target.metadata_hash != group.metadata_hash:
                epoch += group.epoch == group.assignment_epoch
                turn.persist(ConsumerGroupStored(group.group_id, epoch, target.metadata_hash))
        if target.assignments is not None and epoch > group.assignment_epoch:
            members = group.subscriptions
            # An earlier target may have come since the task was made.
            present = {each: group.target(each) for each in members}
            _persist_target(group.group_id, target, members, present, epoch, turn)

    def _has_room(self, group: ConsumerGroup, target: Target, turn: GroupTurn) -> bool:
        """Whether the target fits the memory limit.

        One for the same topics always fits: a group must continue on a full broker.
        """
        if target.assignments is None or target.metadata_hash == group.metadata_hash:
            return True
        wanted = sum(map(assignment_bytes, target.assignments.values()))
        limit = self._limits.memory(2 * wanted - group.assigned_bytes)
        if limit is not None:
            turn.refuse(limit)
        return limit is None

    def _look_up_patterns(
        self, group: ConsumerGroup, known: ClusterTopics, turn: GroupTurn
    ) -> None:
        """Request the matches of the group's expressions, if they may have changed."""
        patterns = group.patterns
        if not patterns or (group.topics_matched is known.topics and group.is_matched()):
            return
        if turn.now.monotonic_ms >= group.no_lookup_before_ms:
            group.no_lookup_before_ms = turn.now.monotonic_ms + self._settings.work_timeout_ms
            turn.work.append(PatternLookup(group.group_id, patterns, known))


def _subscribes_anew(before: ConsumerSubscription | None, after: ConsumerSubscription) -> bool:
    if before is None:
        return bool(after.topic_names) or after.topic_regex is not None
    return (before.topic_names, before.topic_regex) != (after.topic_names, after.topic_regex)


def _persist_target(
    group_id: str,
    target: Target,
    members: Mapping[str, ConsumerSubscription],
    present: Mapping[str, Assignment],
    epoch: int,
    turn: GroupTurn,
) -> None:
    """Add the records of the parts of a target that differ from the present one.

    Members whose subscription has changed since the task are skipped.
    """
    task = target.task
    for member_id, assignment in (target.assignments or {}).items():
        said = members.get(member_id)
        is_same = said is not None and not _subscribes_anew(task.members[member_id], said)
        if is_same and assignment != present[member_id]:
            turn.persist(TargetStored(group_id, member_id, assignment))
    turn.persist(TargetEpochStored(group_id, epoch))
