"""The target assignment of a consumer group (KIP-848), and its inputs.

All are pure values, so that a worker can make a large target.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final

from tidelog.coordinator.group.assign.assignors import ASSIGNORS, AssignmentTask, GroupConsumer
from tidelog.coordinator.group.consumer_commands import ClusterTopics, KnownTopic
from tidelog.coordinator.group.records.consumer_records import Assignment, ConsumerSubscription

INLINE_SUBSCRIPTIONS_MAX: Final = 20_000
"""The sum of all members' subscribed topics up to which an assignment is made inline."""
INLINE_PARTITIONS_MAX: Final = 5_000
"""The same limit for partitions. Each of the two takes some milliseconds."""
_HASH_BYTES: Final = 8


@dataclass(frozen=True, slots=True)
class TargetTask:
    """A group's members and topics at one of its epochs."""

    group_id: str
    serial: int
    """Distinguishes the group from a later one with the same id."""
    epoch: int
    is_behind: bool
    """Whether the target assignment is older than the epoch, so that a new one is due anyway."""
    metadata_hash: int
    members: Mapping[str, ConsumerSubscription]
    matches: Mapping[str, frozenset[str]]
    """The topics that the members' regular expressions match."""
    topics: ClusterTopics
    previous: Mapping[str, Assignment]
    default_assignor: str

    @property
    def is_large(self) -> bool:
        """Whether making the target would block the event loop too long."""
        subscriptions = sum(
            len(names) + len(self.matches.get(regex, ())) for names, regex in self._subscriptions()
        )
        if subscriptions + len(self.members) > INLINE_SUBSCRIPTIONS_MAX:
            return True
        topics = {id(each): each for each in self.subscribed_topics().values()}
        known = {topic.name: topic.partition_count for each in topics.values() for topic in each}
        return sum(known.values()) > INLINE_PARTITIONS_MAX

    def subscribed_topics(self) -> Mapping[str, Sequence[KnownTopic]]:
        """Each member's subscribed topics that exist.

        Members with the same subscription share a list.
        """
        shared: dict[tuple[tuple[str, ...], str], Sequence[KnownTopic]] = {}
        found = {}
        for member_id, said in zip(self.members, self._subscriptions(), strict=True):
            topics = shared.get(said)
            if topics is None:
                topics = shared[said] = self._topics_of(*said)
            found[member_id] = topics
        return found

    def _subscriptions(self) -> Iterator[tuple[tuple[str, ...], str]]:
        for each in self.members.values():
            yield each.topic_names, each.topic_regex or ""

    def _topics_of(self, names: tuple[str, ...], regex: str) -> Sequence[KnownTopic]:
        wanted = sorted(self.matches.get(regex, frozenset()).union(names))
        known = [self.topics.topic_named(name) for name in wanted]
        return [topic for topic in known if topic is not None]


@dataclass(frozen=True, slots=True)
class Target:
    """The result of a task.

    Without `assignments` the previous target stays valid: neither members nor topics have changed.
    """

    task: TargetTask
    metadata_hash: int
    assignments: Mapping[str, Assignment] | None


def make_target(task: TargetTask) -> Target:
    """Each member's target assignment."""
    subscribed = task.subscribed_topics()
    lists = {id(each): each for each in subscribed.values()}
    topics = {topic.topic_id: topic for each in lists.values() for topic in each}
    metadata_hash = _hash(topics.values())
    if not task.is_behind and metadata_hash == task.metadata_hash:
        return Target(task, metadata_hash, None)
    sets = {key: frozenset([topic.topic_id for topic in each]) for key, each in lists.items()}
    assigned = AssignmentTask(
        {
            member_id: GroupConsumer(said.instance_id, sets[id(subscribed[member_id])])
            for member_id, said in task.members.items()
        },
        {topic_id: topic.partition_count for topic_id, topic in topics.items()},
        task.previous,
    )
    assignor = preferred_assignor(task.members, task.default_assignor)
    return Target(task, metadata_hash, ASSIGNORS[assignor](assigned))


def preferred_assignor(subscriptions: Mapping[str, ConsumerSubscription], default: str) -> str:
    """The assignor that most members request; the default if none requests one."""
    votes = Counter(each.server_assignor for each in subscriptions.values() if each.server_assignor)
    return votes.most_common(1)[0][0] if votes else default


def _hash(topics: Iterable[KnownTopic]) -> int:
    """Changes when subscribed topics appear, disappear, grow or are created anew; 0 for none."""
    known = sorted(topics, key=lambda each: each.topic_id)
    if not known:
        return 0
    digest = blake2b(digest_size=_HASH_BYTES)
    for topic in known:
        digest.update(topic.topic_id.bytes + topic.partition_count.to_bytes(4, "big"))
    return int.from_bytes(digest.digest(), "big", signed=True)
