"""One consumer group (KIP-848) in the log's state.

It has the epochs, the members, their target and current assignments. Only records change it, in any
order that compaction has left them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from enum import Enum

from tidelog.coordinator.group.consumer_commands import (
    DescribedConsumer,
    KnownTopic,
    Matches,
)
from tidelog.coordinator.group.records.consumer_records import (
    Assignment,
    ConsumerGroupRecord,
    ConsumerGroupRemoved,
    ConsumerGroupStored,
    ConsumerMemberRemoved,
    ConsumerMemberStored,
    ConsumerSubscription,
    CurrentAssignment,
    CurrentRemoved,
    CurrentStored,
    MemberState,
    TargetEpochRemoved,
    TargetEpochStored,
    TargetRemoved,
    TargetStored,
)
from tidelog.coordinator.group.state.sizes import (
    GROUP_BYTES,
    TOPIC_NAME_BYTES,
    assignment_bytes,
    subscription_bytes,
)
from tidelog.identifiers import TopicId, TopicPartition


class ConsumerGroupState(Enum):
    """The values are the names that Kafka gives them in its answers."""

    EMPTY = "Empty"
    ASSIGNING = "Assigning"
    """The target assignment is older than the group's epoch."""
    RECONCILING = "Reconciling"
    """Members are moving to the target assignment."""
    STABLE = "Stable"


class ConsumerGroup:
    """A group. Its members stay in the order of their arrival."""

    def __init__(self, group_id: str, serial: int = 0) -> None:
        """`serial` distinguishes it from an earlier group with the same id."""
        self.group_id = group_id
        self.serial = serial
        self.epoch = 0
        self.metadata_hash = 0
        self.assignment_epoch = 0
        self.subscriptions: dict[str, ConsumerSubscription] = {}
        """The members' subscriptions, by member id."""
        self.static_members: dict[str, str] = {}
        """Member ids by instance id."""
        self._currents: dict[str, CurrentAssignment] = {}
        self._targets: dict[str, Assignment] = {}
        self._holders: dict[TopicPartition, str] = {}
        self._said_bytes = 0
        self.assigned_bytes = 0
        """The approximate memory of target and current assignments."""
        self._patterns: Counter[str] = Counter()
        """The members' regular expressions, with the number of members of each."""
        # The following state is lost with the leader.
        self.matches: dict[str, frozenset[str]] = {}
        """The topics that each expression matches, if looked up."""
        self.topics_matched: Mapping[TopicId, KnownTopic] | None = None
        """The cluster's topics at the last look-up of all expressions."""
        self.topics_seen: Mapping[TopicId, KnownTopic] | None = None
        """The cluster's topics at the last check of the target assignment."""
        self.no_lookup_before_ms = 0
        self.no_target_before_ms = 0
        """The earliest times, by the monotonic clock, to request a look-up or a target again."""

    def apply(self, record: ConsumerGroupRecord) -> None:
        """Apply a record of this group."""
        match record:
            case ConsumerGroupStored(_, epoch, metadata_hash):
                self.epoch, self.metadata_hash = epoch, metadata_hash
            case ConsumerMemberStored(_, member_id, subscription):
                self._set_subscription(member_id, subscription)
            case ConsumerMemberRemoved(_, member_id):
                self._set_subscription(member_id, None)
            case TargetEpochStored(_, epoch):
                self.assignment_epoch = epoch
            case TargetStored(_, member_id, assignment):
                self._set_target(member_id, assignment)
            case TargetRemoved(_, member_id):
                self._set_target(member_id, None)
            case CurrentStored(_, member_id, current):
                self._set_current(member_id, current)
            case CurrentRemoved(_, member_id):
                self._set_current(member_id, None)
            case ConsumerGroupRemoved() | TargetEpochRemoved():
                self.epoch = self.metadata_hash = self.assignment_epoch = 0

    def records(self) -> Iterator[ConsumerGroupRecord]:
        """The records that bring an empty group into this state."""
        group_id = self.group_id
        yield ConsumerGroupStored(group_id, self.epoch, self.metadata_hash)
        for member_id, subscription in self.subscriptions.items():
            yield ConsumerMemberStored(group_id, member_id, subscription)
        yield TargetEpochStored(group_id, self.assignment_epoch)
        for member_id, target in self._targets.items():
            yield TargetStored(group_id, member_id, target)
        for member_id, current in self._currents.items():
            yield CurrentStored(group_id, member_id, current)

    def removals(self) -> Iterator[ConsumerGroupRecord]:
        """The records that remove the group and all its contents."""
        for member_id in self.subscriptions:
            yield from self.member_removals(member_id)
        yield TargetEpochRemoved(self.group_id)
        yield ConsumerGroupRemoved(self.group_id)

    def member_removals(self, member_id: str) -> Iterator[ConsumerGroupRecord]:
        """The records that remove a member."""
        yield CurrentRemoved(self.group_id, member_id)
        yield TargetRemoved(self.group_id, member_id)
        yield ConsumerMemberRemoved(self.group_id, member_id)

    def _set_subscription(self, member_id: str, subscription: ConsumerSubscription | None) -> None:
        before = self.subscriptions.get(member_id)
        if before is not None:
            self._said_bytes -= len(member_id) + subscription_bytes(before)
        if subscription is not None:
            self._said_bytes += len(member_id) + subscription_bytes(subscription)
        instance_id = None if before is None else before.instance_id
        if instance_id is not None and self.static_members.get(instance_id) == member_id:
            del self.static_members[instance_id]
        if before is not None and before.topic_regex:
            self._patterns -= Counter([before.topic_regex])
        if subscription is not None and subscription.topic_regex:
            self._patterns[subscription.topic_regex] += 1
        if subscription is None:
            self.subscriptions.pop(member_id, None)
            return
        self.subscriptions[member_id] = subscription
        if subscription.instance_id is not None:
            self.static_members[subscription.instance_id] = member_id

    def _set_target(self, member_id: str, target: Assignment | None) -> None:
        self.assigned_bytes -= assignment_bytes(self._targets.get(member_id, {}))
        if target is None:
            self._targets.pop(member_id, None)
            return
        self.assigned_bytes += assignment_bytes(target)
        self._targets[member_id] = target

    def _set_current(self, member_id: str, current: CurrentAssignment | None) -> None:
        before = self._currents.pop(member_id, None)
        if before is not None:
            self.assigned_bytes -= _held_bytes(before)
            for place in _partitions_held(before):
                if self._holders.get(place) == member_id:
                    del self._holders[place]
        if current is not None:
            self.assigned_bytes += _held_bytes(current)
            self._currents[member_id] = current
            self._holders |= dict.fromkeys(_partitions_held(current), member_id)

    # Properties.

    @property
    def said_bytes(self) -> int:
        """The approximate memory of the members' own data."""
        return GROUP_BYTES + len(self.group_id) + self._said_bytes

    @property
    def size_bytes(self) -> int:
        """Its approximate memory, without its offsets."""
        matched = sum(map(len, self.matches.values())) * TOPIC_NAME_BYTES
        return self.said_bytes + self.assigned_bytes + matched

    @property
    def state(self) -> ConsumerGroupState:
        """The group's progress to its newest assignment."""
        if not self.subscriptions:
            return ConsumerGroupState.EMPTY
        if self.epoch > self.assignment_epoch:
            return ConsumerGroupState.ASSIGNING
        if all(self._is_reconciled(member_id) for member_id in self.subscriptions):
            return ConsumerGroupState.STABLE
        return ConsumerGroupState.RECONCILING

    def _is_reconciled(self, member_id: str) -> bool:
        current = self.current(member_id)
        return current.state is MemberState.STABLE and current.epoch == self.assignment_epoch

    def current(self, member_id: str) -> CurrentAssignment:
        """A member's current assignment; empty, in epoch 0, for a non-member."""
        return self._currents.get(member_id) or CurrentAssignment()

    def target(self, member_id: str) -> Assignment:
        """A member's target assignment."""
        return self._targets.get(member_id, {})

    def is_free(self, topic_id: TopicId, partition: int) -> bool:
        """Whether no member owns the partition or has yet to revoke it."""
        return TopicPartition(topic_id, partition) not in self._holders

    def may_consume(self, topic: str) -> bool:
        """Whether a member subscribes to the topic, perhaps by an untried expression."""
        if any(topic in self.matches.get(pattern, (topic,)) for pattern in self._patterns):
            return True
        return any(topic in each.topic_names for each in self.subscriptions.values())

    def described_members(self) -> list[DescribedConsumer]:
        """The members, for an administrator."""
        return [
            DescribedConsumer(
                member_id, subscription, self.current(member_id), self.target(member_id)
            )
            for member_id, subscription in self.subscriptions.items()
        ]

    # Regular expressions.

    @property
    def patterns(self) -> frozenset[str]:
        """The regular expressions of the members' subscriptions."""
        return frozenset(self._patterns)

    def is_matched(self, also: str | None = None) -> bool:
        """Whether the matches of all expressions, and of `also`, are known."""
        return all(each in self.matches for each in self._patterns) and (
            not also or also in self.matches
        )

    def store_matches(self, matches: Matches) -> None:
        """Store the topics that expressions match."""
        if any(self.matches.get(each) != names for each, names in matches.names.items()):
            self.topics_seen = None
        known = {**self.matches, **matches.names}
        # Members may change their expressions all the time, also while no topic changes.
        self.matches = {
            each: names
            for each, names in known.items()
            if each in self._patterns or each in matches.names
        }
        if all(each in matches.names for each in self._patterns):
            self.topics_matched = matches.topics


def _partitions_held(current: CurrentAssignment) -> Iterator[TopicPartition]:
    for assignment in (current.assigned, current.pending_revocation):
        for topic_id, numbers in assignment.items():
            for number in numbers:
                yield TopicPartition(topic_id, number)


def _held_bytes(current: CurrentAssignment) -> int:
    return assignment_bytes(current.assigned) + assignment_bytes(current.pending_revocation)
