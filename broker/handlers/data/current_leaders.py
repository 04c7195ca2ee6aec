"""Names the present leaders to clients that asked the wrong broker (KIP-951).

A client that is told the leader's address goes there at once, without a look-up.
"""

from __future__ import annotations

from tidelog.broker.partitions.partitions import PartitionRegistry
from tidelog.coordinator.cluster.state.incarnations import BrokerInfo
from tidelog.identifiers import LeaderEpoch, TopicId


class CurrentLeaders:
    """The leaders that one answer names, and their addresses."""

    def __init__(self, partitions: PartitionRegistry) -> None:
        self._partitions = partitions
        self.brokers: dict[int, BrokerInfo] = {}
        """The brokers that were named, by id."""

    def of(self, topic: str | TopicId, partition: int) -> tuple[int, LeaderEpoch] | None:
        """The id of the other live broker that leads a partition, and its leader epoch."""
        found = self._partitions.leader_elsewhere(topic, partition)
        if found is None:
            return None
        broker, leader_epoch = found
        self.brokers[broker.broker_id] = broker
        return broker.broker_id, leader_epoch
