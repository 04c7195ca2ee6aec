"""The assignors of the server (KIP-848): who is to consume what. Pure, and the same for the same
group whatever came before, but for what `previous` says that members have.

A member is only given partitions of topics that it subscribes to. Every partition of a topic that
anybody subscribes to is given to exactly one member.
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


class Consumer(NamedTuple):
    """A member as an assignor sees it: its instance id, and the topics that it subscribes to, as
    far as they exist."""

    instance_id: str | None
    topics: frozenset[TopicId]


@dataclass(frozen=True, slots=True)
class AssignmentTask:
    """What is to be assigned: members, the number of partitions of each topic that any of them
    subscribes to, and what members are to have so far."""

    members: Mapping[str, Consumer]
    partition_counts: Mapping[TopicId, int]
    previous: Mapping[str, Assignment]

    @property
    def is_uniform(self) -> bool:
        """Whether there are members, and all subscribe to the same topics."""
        return len({member.topics for member in self.members.values()}) == 1


Assignor: TypeAlias = Callable[[AssignmentTask], Mapping[str, Assignment]]


def assign_ranges(task: AssignmentTask) -> Mapping[str, Assignment]:
    """Of each topic, a row of neighbouring partitions to each of its members; the first members
    have one more where it does not come out even. Static members come first, so that topics with
    equally many partitions go to the same members."""
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


def _range_order(member_id: str, member: Consumer) -> tuple[bool, str]:
    return member.instance_id is None, member.instance_id or member_id


def assign_uniformly(task: AssignmentTask) -> Mapping[str, Assignment]:
    """Equally many partitions to each member, as far as subscriptions allow, and of all ways to do
    that one which leaves members what they have."""
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
"""By the names that clients give them."""


class _Sharing:
    """Partitions on their way to members."""

    def __init__(self, task: AssignmentTask) -> None:
        self._task = task
        self._owned: dict[str, dict[TopicId, list[int]]] = {each: {} for each in task.members}
        self._loads = dict.fromkeys(task.members, 0)
        """How many partitions each member has."""
        self._subscribers: dict[TopicId, list[str]] = defaultdict(list)
        if task.is_uniform:
            everybody = list(task.members)
            self._subscribers.update(dict.fromkeys(task.partition_counts, everybody))
        else:
            for member_id, member in task.members.items():
                for topic_id in member.topics:
                    self._subscribers[topic_id].append(member_id)
        self._left: dict[TopicId, list[int]] = {}
        """What nobody has."""

    def keep_previous(self) -> None:
        """Members keep what they have and may have; the rest is left."""
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
        """Where all subscribe to the same, nobody keeps more than its share. Those who have most
        are given the odd ones, so that as little as possible moves."""
        total = sum(map(len, self._left.values())) + sum(self._loads.values())
        share, odd = divmod(total, len(self._loads))
        for member_id in sorted(self._loads, key=self._loads.__getitem__, reverse=True):
            quota = share + (odd > 0)
            odd -= odd > 0
            while self._loads[member_id] > quota:
                topic_id = next(reversed(self._owned[member_id]))
                self._left[topic_id].append(self._take(member_id, topic_id))

    def hand_out(self) -> None:
        """Give what is left to whoever may have it and has least. Topics that few subscribe to come
        first: there is less choice."""
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
        """Move partitions to members that have at least two fewer, until nobody has. Each move
        makes the loads more even, so it ends."""
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
        """By member and topic."""
        return {
            member_id: {topic_id: frozenset(numbers) for topic_id, numbers in owned.items()}
            for member_id, owned in self._owned.items()
        }
