"""All consumer groups (KIP-848) of one coordinator."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tidelog.coordinator.group.assign.target_assignment import Target, preferred_assignor
from tidelog.coordinator.group.commands import GroupListing, PatternsFound
from tidelog.coordinator.group.consumer_commands import (
    ConsumerDescription,
    ConsumerHeartbeat,
)
from tidelog.coordinator.group.records.consumer_records import (
    ConsumerGroupRecord,
    ConsumerGroupRemoved,
    ConsumerGroupStored,
    ConsumerMemberStored,
    CurrentStored,
    TargetEpochStored,
    TargetStored,
)
from tidelog.coordinator.group.requests.classic_rebalance import GroupTurn, Timer, TimerKind
from tidelog.coordinator.group.requests.consumer_membership import ConsumerMembership
from tidelog.coordinator.group.requests.limits import GroupLimits
from tidelog.coordinator.group.requests.targets import TargetAssignments
from tidelog.coordinator.group.settings import GroupSettings, TimeoutsOf
from tidelog.coordinator.group.state.consumer_group import (
    ConsumerGroup,
    ConsumerGroupState,
)
from tidelog.coordinator.timers import Timers
from tidelog.protocol.error_codes import ErrorCode

CONSUMER_TYPE = "consumer"


class ConsumerGroups:
    """Consumer groups by id.

    They are stored completely: with the leader only the times of the last heartbeats are lost.
    """

    def __init__(
        self,
        settings: GroupSettings,
        timers: Timers[Timer],
        timeouts_of: TimeoutsOf,
        limits: GroupLimits,
    ) -> None:
        self._settings = settings
        self._targets = TargetAssignments(settings, limits)
        self.membership = ConsumerMembership(settings, timers, timeouts_of, self._targets)
        self._groups: dict[str, ConsumerGroup] = {}
        self._opened = 0

    def __contains__(self, group_id: str) -> bool:
        return group_id in self._groups

    def __iter__(self) -> Iterator[ConsumerGroup]:
        return iter(list(self._groups.values()))

    def get(self, group_id: str) -> ConsumerGroup | None:
        return self._groups.get(group_id)

    @property
    def by_id(self) -> Mapping[str, ConsumerGroup]:
        """All groups. The caller must not change them."""
        return self._groups

    def apply(self, record: ConsumerGroupRecord) -> None:
        """Apply a record. Tombstones of unknown members or groups have no effect."""
        match record:
            case ConsumerGroupRemoved(group_id):
                self._groups.pop(group_id, None)
            case (
                ConsumerGroupStored()
                | ConsumerMemberStored()
                | TargetEpochStored()
                | TargetStored()
                | CurrentStored()
            ):
                self.open(record.group_id).apply(record)
            case _:
                group = self._groups.get(record.group_id)
                if group is not None:
                    group.apply(record)

    def open(self, group_id: str) -> ConsumerGroup:
        """The group, created if it does not exist."""
        group = self._groups.get(group_id)
        if group is None:
            self._opened += 1
            group = self._groups[group_id] = ConsumerGroup(group_id, self._opened)
        return group

    def records(self) -> Iterator[ConsumerGroupRecord]:
        """The records that bring an empty coordinator into this state."""
        for group in self._groups.values():
            yield from group.records()

    def timer_expired(self, timer: Timer, turn: GroupTurn) -> None:
        """Remove a member that missed its session or rebalance timeout."""
        group = self._groups.get(timer.group_id)
        if group is not None and timer.kind in (
            TimerKind.CONSUMER_SESSION,
            TimerKind.CONSUMER_REBALANCE,
        ):
            self.membership.remove_member(group, timer.member_id, turn)

    def patterns_found(self, found: PatternsFound, turn: GroupTurn) -> None:
        """Store the topics that a group's expressions match."""
        group = self._groups.get(found.group_id)
        if group is not None:
            group.store_matches(found.matches)
            interval_ms = self._settings.regex_lookup_interval_ms
            group.no_lookup_before_ms = turn.now.monotonic_ms + interval_ms

    def target_made(self, target: Target, turn: GroupTurn) -> None:
        """Apply the target assignment that a worker made for a large group."""
        group = self._groups.get(target.task.group_id)
        if group is not None:
            self._targets.take(group, target, turn)

    def describe(self, group_id: str) -> ConsumerDescription:
        """A group, for an administrator."""
        group = self._groups.get(group_id)
        if group is None:
            return ConsumerDescription(ErrorCode.GROUP_ID_NOT_FOUND)
        default = self._settings.consumer_assignors[0]
        return ConsumerDescription(
            ErrorCode.NONE,
            group.state.value,
            group.epoch,
            group.assignment_epoch,
            preferred_assignor(group.subscriptions, default),
            group.described_members(),
        )

    def listings(self) -> list[GroupListing]:
        """The summaries of all groups."""
        return [
            GroupListing(group.group_id, CONSUMER_TYPE, group.state.value, CONSUMER_TYPE)
            for group in self._groups.values()
        ]


def is_empty(group: ConsumerGroup) -> bool:
    """Whether the group has no members."""
    return group.state is ConsumerGroupState.EMPTY


def not_found(heartbeat: ConsumerHeartbeat, *, is_classic: bool) -> str:
    """The message for a heartbeat without a group."""
    if is_classic:
        return f"Group {heartbeat.group_id} is not a consumer group."
    return f"Consumer group {heartbeat.group_id} not found."
