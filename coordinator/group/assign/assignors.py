"""The server-side assignors (KIP-848). Pure and deterministic.

The result depends only on the group and on `previous`, the members' assignments so far. A member
gets only partitions of topics that it subscribes to. Every partition of a subscribed topic goes to
exactly one member.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, NamedTuple, TypeAlias

from tidelog.coordinator.group.records.consumer_records import Assignment
from tidelog.identifiers import TopicId

UNIFORM: Final = "uniform"
RANGE: Final = "range"


class GroupConsumer(NamedTuple):
    """A member for an assignor: its instance id, and its subscribed topics that exist."""

    instance_id: str | None
    topics: frozenset[TopicId]


@dataclass(frozen=True, slots=True)
class AssignmentTask:
    """The input of an assignor.

    It has the members, the number of partitions of each subscribed topic, and the previous
    assignments.
    """

    members: Mapping[str, GroupConsumer]
    partition_counts: Mapping[TopicId, int]
    previous: Mapping[str, Assignment]

    @property
    def is_uniform(self) -> bool:
        """Whether there are members, and all subscribe to the same topics."""
        return len({member.topics for member in self.members.values()}) == 1


Assignor: TypeAlias = Callable[[AssignmentTask], Mapping[str, Assignment]]


def assign_ranges(task: AssignmentTask) -> Mapping[str, Assignment]:
    """For each topic, a range of neighbouring partitions to each of its members.

    If the ranges cannot be equal, the first members get one more. Static members come first. So
    topics with equally many partitions go to the same members.
    """
    order = sorted(task.members, key=lambda each: _range_order(each, task.members[each]))
    found: dict[str, dict[TopicId, frozenset[int]]] = {member_id: {} for member_id in task.members}
    subscribed, is_uniform = order, task.is_uniform
    for topic_id in sorted(task.partition_counts):
        count = task.partition_counts[topic_id]
        if not is_uniform:
            subscribed = [each for each in order if topic_id in task.members[each].topics]
        begin = 0
        for position, member_id in enumerate(subscribed):
            share, left = divmod(count, len(subscribed))
            end = begin + share + (position < left)
            if begin < end:
                found[member_id][topic_id] = frozenset(range(begin, end))
            begin = end
    return found


def _range_order(member_id: str, member: GroupConsumer) -> tuple[bool, str]:
    return member.instance_id is None, member.instance_id or member_id


def assign_uniformly(task: AssignmentTask) -> Mapping[str, Assignment]:
    """Equally many partitions to each member, as far as subscriptions allow.

    Of all such assignments it moves the fewest partitions.
    """
    sharing = _Sharing(task)
    sharing.keep_previous()
    if task.is_uniform:
        sharing.cut_to_quota()
        sharing.hand_out()
    else:
        sharing.hand_out()
        sharing.even_out()
    return sharing.result()


ASSIGNORS: Final[Mapping[str, Assignor]] = MappingProxyType(
    {UNIFORM: assign_uniformly, RANGE: assign_ranges}
)
"""By the names that clients use."""


class _Sharing:
    """An assignment in progress."""

    def __init__(self, task: AssignmentTask) -> None:
        self._task = task
        self._owned: dict[str, dict[TopicId, list[int]]] = {each: {} for each in task.members}
        self._loads = dict.fromkeys(task.members, 0)
        """The number of partitions of each member."""
        self._subscribers: dict[TopicId, list[str]] = defaultdict(list)
        if task.is_uniform:
            everybody = list(task.members)
            self._subscribers.update(dict.fromkeys(task.partition_counts, everybody))
        else:
            for member_id, member in task.members.items():
                for topic_id in member.topics:
                    self._subscribers[topic_id].append(member_id)
        self._left: dict[TopicId, list[int]] = {}
        """The partitions without a member."""

    def keep_previous(self) -> None:
        """Let members keep their previous partitions if they still subscribe to them."""
        counts = self._task.partition_counts
        left = {topic_id: set(range(counts[topic_id])) for topic_id in sorted(self._subscribers)}
        for member_id, member in self._task.members.items():
            for topic_id, numbers in sorted(self._task.previous.get(member_id, {}).items()):
                kept = numbers & left[topic_id] if topic_id in member.topics else None
                if kept:
                    left[topic_id] -= kept
                    self._owned[member_id][topic_id] = sorted(kept)
                    self._loads[member_id] += len(kept)
        self._left = {topic_id: sorted(numbers) for topic_id, numbers in left.items()}

    def cut_to_quota(self) -> None:
        """Take partitions from members above their share; all subscribe to the same topics.

        The members with most partitions get the odd ones, so that the fewest partitions move.
        """
        total = sum(map(len, self._left.values())) + sum(self._loads.values())
        share, odd = divmod(total, len(self._loads))
        for member_id in sorted(self._loads, key=self._loads.__getitem__, reverse=True):
            quota = share + (odd > 0)
            odd -= odd > 0
            while self._loads[member_id] > quota:
                topic_id = next(reversed(self._owned[member_id]))
                self._left[topic_id].append(self._take(member_id, topic_id))

    def hand_out(self) -> None:
        """Give each free partition to the subscriber with the fewest.

        Topics with few subscribers come first: they leave less choice.
        """
        for topic_id in sorted(self._left, key=lambda each: len(self._subscribers[each])):
            members = self._subscribers[topic_id]
            queue = [(self._loads[each], position) for position, each in enumerate(members)]
            heapq.heapify(queue)
            for number in sorted(self._left[topic_id]):
                load, position = queue[0]
                self._give(members[position], topic_id, number)
                heapq.heapreplace(queue, (load + 1, position))
        self._left = {}

    def even_out(self) -> None:
        """Move partitions to subscribers that have at least two fewer, until there are none.

        Each move makes the loads more even, so it ends.
        """
        moved = True
        while moved:
            moved = False
            for topic_id in sorted(self._subscribers):
                while self._move_one(topic_id):
                    moved = True

    def _move_one(self, topic_id: TopicId) -> bool:
        members = self._subscribers[topic_id]
        receiver = min(members, key=self._loads.__getitem__)
        holders = [each for each in members if topic_id in self._owned[each]]
        giver = max(holders, key=self._loads.__getitem__, default=receiver)
        if self._loads[giver] < self._loads[receiver] + 2:
            return False
        self._give(receiver, topic_id, self._take(giver, topic_id))
        return True

    def _give(self, member_id: str, topic_id: TopicId, number: int) -> None:
        self._owned[member_id].setdefault(topic_id, []).append(number)
        self._loads[member_id] += 1

    def _take(self, member_id: str, topic_id: TopicId) -> int:
        numbers = self._owned[member_id][topic_id]
        number = numbers.pop()
        if not numbers:
            del self._owned[member_id][topic_id]
        self._loads[member_id] -= 1
        return number

    def result(self) -> Mapping[str, Assignment]:
        """The partitions by member and topic."""
        return {
            member_id: {topic_id: frozenset(numbers) for topic_id, numbers in owned.items()}
            for member_id, owned in self._owned.items()
        }
