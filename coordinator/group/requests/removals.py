"""Removes expired offsets, offsets of deleted topics, and groups.

One decision removes a limited number of offsets. The others follow a little later.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import chain, islice

from tidelog.coordinator.decision import Now
from tidelog.coordinator.group.commands import (
    DeleteReply,
)
from tidelog.coordinator.group.records.log_records import (
    CommittedOffset,
    GroupRemoved,
    StoredGroup,
)
from tidelog.coordinator.group.requests.classic_rebalance import (
    GroupTurn,
    Rebalancer,
    Timer,
    TimerKind,
)
from tidelog.coordinator.group.requests.consumer_groups import ConsumerGroups, is_empty
from tidelog.coordinator.group.requests.group_offsets import IsGone, expired_offsets
from tidelog.coordinator.group.settings import GroupSettings
from tidelog.coordinator.group.state.classic_group import ClassicGroup
from tidelog.coordinator.group.state.committed_offsets import CommittedOffsets
from tidelog.coordinator.group.state.states import GroupState
from tidelog.coordinator.timers import Timers
from tidelog.identifiers import TopicId
from tidelog.protocol.error_codes import ErrorCode

_SWEEP = Timer(TimerKind.SWEEP)
_FORGET = Timer(TimerKind.FORGET)
_WAIT_MS = 1_000
"""The pause while removals wait for open transactions."""


class GroupRemovals:
    """The removals of one coordinator. It shares the coordinator's groups."""

    def __init__(
        self,
        settings: GroupSettings,
        timers: Timers[Timer],
        classic: dict[str, ClassicGroup],
        stored: Mapping[str, StoredGroup],
        consumers: ConsumerGroups,
        offsets: CommittedOffsets,
        rebalancer: Rebalancer,
        is_deleted: Callable[[str, TopicId | None], bool],
        measure: Callable[[str], None],
    ) -> None:
        """`is_deleted`: whether a stored offset's topic is deleted, by name and, if the offset has
        it, id. `measure` takes the memory of a changed group into account."""
        self._settings = settings
        self._timers = timers
        self._classic = classic
        self._stored = stored
        self._consumers = consumers
        self._offsets = offsets
        self._rebalancer = rebalancer
        self._is_deleted = is_deleted
        self._measure = measure
        self._sweeping: list[str] = []
        """Groups that this sweep has yet to search for expired offsets."""
        self._forgetting: dict[str, set[TopicId]] = {}
        """Deleted topics whose offsets are being removed: ids by name."""
        self._forgets_deleted = False
        """Whether offsets of topics that were deleted before the load are still being removed."""
        self._deleting: dict[str, int] = {}
        """Groups that have lost offsets to a deletion, with the time at which it counts as given
        up."""

    def begin(self, turn: GroupTurn) -> None:
        """Begin after a load: sweep in time, and forget the topics that are deleted already."""
        self._forgets_deleted = True
        self.remove_more_offsets(turn)
        self._schedule_sweep(turn.now)

    def forget(self, topics: Mapping[str, Iterable[TopicId]], turn: GroupTurn) -> None:
        """Begin to remove the offsets of deleted topics: ids by name."""
        for topic, ids in topics.items():
            self._forgetting.setdefault(topic, set()).update(ids)
        self.remove_more_offsets(turn)

    def _schedule_sweep(self, now: Now) -> None:
        at_ms = now.monotonic_ms + self._settings.offsets_check_interval_ms
        self._timers.set(_SWEEP, at_ms)

    def sweep(self, turn: GroupTurn) -> None:
        """Search some groups for expired offsets; the others follow a little later."""
        settings = self._settings
        if not self._sweeping:
            self._sweeping = list(dict.fromkeys(chain(self._classic, self._consumers.by_id)))
        for _ in range(min(settings.sweep_groups_max, len(self._sweeping))):
            if not self._sweep_group(self._sweeping[-1], turn):
                break
            self._sweeping.pop()
        if self._sweeping:
            self._timers.set(_SWEEP, turn.now.monotonic_ms + settings.pause_ms)
        else:
            self._schedule_sweep(turn.now)

    def _sweep_group(self, group_id: str, turn: GroupTurn) -> bool:
        """Remove a group's expired offsets, and the group if it is empty then.

        False if there may be more.
        """
        group, consumer_group = self._classic.get(group_id), self._consumers.get(group_id)
        whichever = consumer_group if group is None else group
        if whichever is None:
            return True
        # The removal of a group may have taken more than the last room.
        room = max(0, self._settings.removals_max - len(turn.records))
        expired = expired_offsets(whichever, self._offsets, self._settings, turn.now.time_ms)
        removals = list(islice(expired, room))
        turn.records.extend(removals)
        if len(removals) == room:
            return False
        left = self._offsets.count(group_id) - len(removals)
        if left == 0 and group is not None and group.state is GroupState.EMPTY and group.is_unused:
            self.remove(group, turn)
        if left == 0 and consumer_group is not None and is_empty(consumer_group):
            turn.records.extend(consumer_group.removals())
        return True

    def remove_more_offsets(self, turn: GroupTurn) -> None:
        """Remove some of the offsets of deleted topics; the others follow a little later.

        Offsets of topics that have the same names now stay.
        """
        topics = None if self._forgets_deleted else sorted(self._forgetting)
        gone = chain.from_iterable(
            self._offsets.removals_where(group_id, topics, self._is_gone)
            for group_id in self._offsets.group_ids()
        )
        removals = list(islice(gone, self._settings.removals_max))
        turn.records.extend(removals)
        if len(removals) == self._settings.removals_max:
            self._timers.set(_FORGET, turn.now.monotonic_ms + self._settings.pause_ms)
        elif self._offsets.is_removal_waiting(self._is_gone):
            self._timers.set(_FORGET, turn.now.monotonic_ms + _WAIT_MS)
        else:
            self._forgetting.clear()
            self._forgets_deleted = False

    @property
    def is_gone(self) -> IsGone | None:
        """Whether an offset of a deleted topic has yet to be removed; None if none has."""
        return self._is_gone if self._forgetting or self._forgets_deleted else None

    def _is_gone(self, topic: str, committed: CommittedOffset) -> bool:
        ids = self._forgetting.get(topic)
        if ids is not None and (committed.topic_id is None or committed.topic_id in ids):
            return True
        return self._forgets_deleted and self._is_deleted(topic, committed.topic_id)

    def remove(self, group: ClassicGroup, turn: GroupTurn) -> None:
        """Remove a group whose offsets are removed already."""
        group.transition(GroupState.DEAD, turn.now.time_ms)
        for member_id in list(group.pending_joins):
            self._rebalancer.remove_member(group, member_id, turn)
        del self._classic[group.group_id]
        if group.group_id in self._stored:
            turn.persist(GroupRemoved(group.group_id))
        self._measure(group.group_id)

    def delete(self, group_id: str, turn: GroupTurn) -> DeleteReply:
        """Delete a group; one with many offsets loses some of these first.

        Until the deletion goes on, or is given up, no member may join.
        """
        self._deleting.pop(group_id, None)
        group = self._classic.get(group_id)
        consumer_group = self._consumers.get(group_id)
        if group is None and consumer_group is None:
            return DeleteReply(ErrorCode.GROUP_ID_NOT_FOUND)
        if group is not None and group.state is not GroupState.EMPTY:
            return DeleteReply(ErrorCode.NON_EMPTY_GROUP)
        if consumer_group is not None and not is_empty(consumer_group):
            return DeleteReply(ErrorCode.NON_EMPTY_GROUP)
        removals_max = self._settings.removals_max
        removals = list(islice(self._offsets.removals(group_id), removals_max + 1))
        turn.records.extend(removals[:removals_max])
        if len(removals) > removals_max:
            self._deleting[group_id] = turn.now.monotonic_ms + self._settings.work_timeout_ms
            return DeleteReply(ErrorCode.NONE, is_done=False)
        if group is not None:
            self.remove(group, turn)
        if consumer_group is not None:
            turn.records.extend(consumer_group.removals())
        return DeleteReply(ErrorCode.NONE)

    def is_deleting(self, group_id: str, now: Now) -> bool:
        """Whether a deletion of the group has begun and not ended.

        A new member would keep the group, which has lost offsets.
        """
        until_ms = self._deleting.get(group_id)
        if until_ms is not None and now.monotonic_ms >= until_ms:
            del self._deleting[group_id]
            return False
        return until_ms is not None
