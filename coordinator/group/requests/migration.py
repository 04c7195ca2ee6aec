"""Migrates groups with members between the two protocols (KIP-848).

A classic group becomes a consumer group when the first member of the consumer protocol joins. It
becomes a classic group again when the last such member leaves. One append stores the change, so a
successor finds either group, never both. Members learn of it by their next answer: those of the
classic protocol must join again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from itertools import chain
from typing import NamedTuple

from tidelog.coordinator.group.consumer_commands import ClusterTopics
from tidelog.coordinator.group.records.consumer_records import (
    Assignment,
    ConsumerGroupRecord,
    ConsumerGroupStored,
    ConsumerMemberStored,
    ConsumerSubscription,
    CurrentAssignment,
    CurrentStored,
    TargetEpochStored,
    TargetStored,
)
from tidelog.coordinator.group.records.log_records import GroupRemoved, GroupStored
from tidelog.coordinator.group.records.subscription import (
    CONSUMER_PROTOCOL_TYPE,
    assigned_partitions,
)
from tidelog.coordinator.group.requests.classic_members import (
    by_topic_id,
    classic_subscription,
    consumer_subscription,
)
from tidelog.coordinator.group.requests.classic_rebalance import GroupTurn, Rebalancer
from tidelog.coordinator.group.requests.consumer_groups import ConsumerGroups
from tidelog.coordinator.group.settings import GroupSettings
from tidelog.coordinator.group.state.classic_group import ClassicGroup, Member
from tidelog.coordinator.group.state.consumer_group import ConsumerGroup
from tidelog.coordinator.group.state.states import GroupState
from tidelog.protocol.error_codes import ErrorCode


class _Upgraded(NamedTuple):
    """A member of the classic protocol as one of a consumer group."""

    subscription: ConsumerSubscription
    assigned: Assignment


class Migration:
    """Converts groups of either kind into the other. It shares the coordinator's groups."""

    def __init__(
        self,
        settings: GroupSettings,
        rebalancer: Rebalancer,
        classic: dict[str, ClassicGroup],
        consumers: ConsumerGroups,
    ) -> None:
        self._settings = settings
        self._rebalancer = rebalancer
        self._classic = classic
        self._consumers = consumers

    def upgrade(
        self, group: ClassicGroup, topics: ClusterTopics, is_stored: bool, turn: GroupTurn
    ) -> bool:
        """Convert a classic group with members into a consumer group; False if that is not
        possible.

        Members keep their last assignment. Parked requests fail with REBALANCE_IN_PROGRESS, so
        their members join again.
        """
        members = _upgraded(group, topics)
        has_room = len(group.members) < self._settings.consumer_members_max
        if not self._settings.upgrades or members is None or not has_room:
            return False
        for member in list(group.members.values()):
            error = ErrorCode.REBALANCE_IN_PROGRESS
            self._rebalancer.send_away(group, member, error, turn)
        self._rebalancer.forget(group)
        del self._classic[group.group_id]
        if is_stored:
            turn.persist(GroupRemoved(group.group_id))
        for record in _records(group, members):
            # The join in this turn must find the members. The records are applied once more later,
            # with the same result.
            self._consumers.apply(record)
            turn.persist(record)
        upgraded = self._consumers.open(group.group_id)
        for member_id, each in members.items():
            membership = self._consumers.membership
            membership.expect_heartbeat(upgraded, member_id, each.subscription, turn)
        return True

    def downgrade(self, group: ConsumerGroup, turn: GroupTurn) -> None:
        """Convert a consumer group whose members all use the classic protocol into a classic group.

        No member has its generation. So each of them joins again, also with a new coordinator.
        """
        protocols = [each.classic for each in group.subscriptions.values()]
        is_small = len(protocols) <= self._settings.members_max
        if not (self._settings.downgrades and protocols and all(protocols) and is_small):
            return
        classic = ClassicGroup(
            group.group_id,
            GroupState.STABLE,
            turn.now.time_ms,
            group.epoch + 1,
            CONSUMER_PROTOCOL_TYPE,
        )
        for member_id, each in group.subscriptions.items():
            classic.add(_downgraded(member_id, each))
        classic.protocol = classic.elected_protocol()
        self._consumers.membership.forget(group)
        turn.records.extend(group.removals())
        turn.persist(GroupStored(group.group_id, classic.stored()))
        self._classic[group.group_id] = classic
        for member in classic.members.values():
            self._rebalancer.expect_heartbeat(classic, member, turn)
        self._rebalancer.begin(classic, turn)


def _upgraded(group: ClassicGroup, topics: ClusterTopics) -> dict[str, _Upgraded] | None:
    """The members of a group; None if one is not a consumer in Kafka's format."""
    found = {}
    for member in group.members.values():
        said = consumer_subscription(group.protocol_type, member.protocols)
        partitions = assigned_partitions(member.assignment) if member.assignment else []
        if said is None or partitions is None:
            return None
        by_name: dict[str, set[int]] = defaultdict(set)
        for topic, number in partitions:
            by_name[topic].add(number)
        assigned = {name: frozenset(numbers) for name, numbers in by_name.items()}
        found[member.member_id] = _Upgraded(
            classic_subscription(member, said), by_topic_id(assigned, topics)
        )
    return found


def _records(group: ClassicGroup, members: dict[str, _Upgraded]) -> Iterator[ConsumerGroupRecord]:
    group_id, epoch = group.group_id, group.generation
    stored = [
        (
            ConsumerMemberStored(group_id, member_id, each.subscription),
            TargetStored(group_id, member_id, each.assigned),
            CurrentStored(
                group_id, member_id, CurrentAssignment(epoch, epoch, assigned=each.assigned)
            ),
        )
        for member_id, each in members.items()
    ]
    yield ConsumerGroupStored(group_id, epoch, 0)
    yield TargetEpochStored(group_id, epoch)
    yield from chain.from_iterable(stored)


def _downgraded(member_id: str, subscription: ConsumerSubscription) -> Member:
    classic = subscription.classic
    assert classic is not None
    return Member(
        member_id,
        subscription.instance_id,
        subscription.client_id,
        subscription.client_host,
        subscription.rebalance_timeout_ms,
        classic.session_timeout_ms,
        classic.protocols,
    )
