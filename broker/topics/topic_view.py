"""Topics, partitions and brokers as Kafka's metadata answers describe them. Pure."""

from __future__ import annotations

from typing import NamedTuple

from tidelog.coordinator.cluster.records.topics import Topic, topic_name_fault
from tidelog.coordinator.cluster.state.state import ClusterState
from tidelog.identifiers import BrokerId, Epoch
from tidelog.protocol.error_codes import ErrorCode

NO_LEADER = -1
OPERATIONS_NOT_ASKED = -(2**31)
"""The bit field of allowed operations (KIP-430) for a client that does not ask for them."""


class Leaders(NamedTuple):
    """The incarnations that lead partitions, as a client of one listener sees them."""

    live: frozenset[Epoch]
    """Incarnations that are alive and have the listener."""
    without_listener: frozenset[Epoch] = frozenset()
    """Incarnations that are alive and lack the listener: the client cannot reach them."""
    unreachable_code: ErrorCode = ErrorCode.LEADER_NOT_AVAILABLE
    """The error of partitions that the latter lead."""

    def code(self, leader: Epoch) -> ErrorCode:
        """The error of a partition of this leader, if there is one."""
        if leader in self.live:
            return ErrorCode.NONE
        if leader in self.without_listener:
            return self.unreachable_code
        return ErrorCode.LEADER_NOT_AVAILABLE


def leaders_of(state: ClusterState, listener: str, unreachable_code: ErrorCode) -> Leaders:
    """The leaders that clients of a listener can reach."""
    without = frozenset(
        [info.epoch for info in state.live_brokers() if info.endpoint(listener) is None]
    )
    live = frozenset(state.live_epochs.values())
    return Leaders(live - without if without else live, without, unreachable_code)


class PartitionDescription(NamedTuple):
    """A partition: its leader, if alive, and its only replica, which is the leader."""

    number: int
    error_code: ErrorCode
    leader_id: int
    leader_epoch: int
    replica_id: BrokerId

    @property
    def replicas(self) -> list[int]:
        """The ids of all replicas."""
        return [self.replica_id]

    @property
    def in_sync(self) -> list[int]:
        """The ids of replicas that may lead."""
        return [self.replica_id] if self.leader_id != NO_LEADER else []

    @property
    def offline(self) -> list[int]:
        """The ids of replicas that are not alive."""
        return [] if self.leader_id != NO_LEADER else [self.replica_id]


def partition_views(
    leaders: Leaders, topic: Topic, start: int, end: int
) -> list[PartitionDescription]:
    """Partitions [start, end) of the topic."""
    stop = min(end, topic.partition_count)
    return [partition_view(topic, index, leaders) for index in range(start, stop)]


def partition_view(topic: Topic, index: int, leaders: Leaders) -> PartitionDescription:
    """The description of a partition.

    LEADER_NOT_AVAILABLE if its leader is fenced and no broker has taken over yet.
    """
    tenure = topic.partitions[index][-1]
    incarnation = tenure.incarnation
    code = leaders.code(incarnation.epoch)
    return PartitionDescription(
        index,
        code,
        incarnation.broker_id if code is ErrorCode.NONE else NO_LEADER,
        tenure.leader_epoch,
        incarnation.broker_id,
    )


def unknown_topic_code(name: str) -> ErrorCode:
    """The error for a name without a topic."""
    if topic_name_fault(name):
        return ErrorCode.INVALID_TOPIC_EXCEPTION
    return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
