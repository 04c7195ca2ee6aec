"""Topics, partitions and brokers as Kafka's metadata answers describe them. Pure."""

from __future__ import annotations

from typing import NamedTuple

from tidelog.coordinator.cluster.records.topics import Topic, topic_name_fault
from tidelog.coordinator.cluster.state.state import ClusterState
from tidelog.identifiers import BrokerId, Epoch
from tidelog.protocol.error_codes import ErrorCode

NO_LEADER = -1
OPERATIONS_NOT_ASKED = -(2**31)

_READ, _WRITE, _CREATE, _DELETE, _ALTER, _DESCRIBE = 3, 4, 5, 6, 7, 8
_CLUSTER_ACTION, _DESCRIBE_CONFIGS, _ALTER_CONFIGS, _IDEMPOTENT_WRITE = 9, 10, 11, 12


def bits(*operations: int) -> int:
    return sum(1 << operation for operation in operations)


TOPIC_OPERATIONS = bits(
    _READ, _WRITE, _CREATE, _DELETE, _ALTER, _DESCRIBE, _DESCRIBE_CONFIGS, _ALTER_CONFIGS
)
"""All operations on a topic, as a bit field (KIP-430): without an authorizer all are allowed."""
CLUSTER_OPERATIONS = bits(
    _CREATE,
    _ALTER,
    _DESCRIBE,
    _CLUSTER_ACTION,
    _DESCRIBE_CONFIGS,
    _ALTER_CONFIGS,
    _IDEMPOTENT_WRITE,
)


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
    state: ClusterState, topic: Topic, start: int, end: int
) -> list[PartitionDescription]:
    """Partitions [start, end) of the topic."""
    live = frozenset(state.live_epochs.values())
    stop = min(end, topic.partition_count)
    return [partition_view(topic, index, live) for index in range(start, stop)]


def partition_view(topic: Topic, index: int, live: frozenset[Epoch]) -> PartitionDescription:
    """A partition, given the live incarnations.

    LEADER_NOT_AVAILABLE if the leader is fenced and no broker has taken over yet.
    """
    tenure = topic.partitions[index][-1]
    incarnation = tenure.incarnation
    alive = incarnation.epoch in live
    return PartitionDescription(
        index,
        ErrorCode.NONE if alive else ErrorCode.LEADER_NOT_AVAILABLE,
        incarnation.broker_id if alive else NO_LEADER,
        tenure.leader_epoch,
        incarnation.broker_id,
    )


def unknown_topic_code(name: str) -> ErrorCode:
    """The error for a name without a topic."""
    if topic_name_fault(name):
        return ErrorCode.INVALID_TOPIC_EXCEPTION
    return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
