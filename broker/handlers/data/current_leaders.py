"""Names the present leaders to clients that asked the wrong broker (KIP-951).

A client that is told the leader's address goes there at once, without a look-up.
"""

from __future__ import annotations

from collections.abc import Iterator

from tidelog.broker.partitions.partitions import PartitionRegistry
from tidelog.coordinator.cluster.records.records import Endpoint
from tidelog.coordinator.cluster.state.incarnations import BrokerInfo
from tidelog.identifiers import LeaderEpoch, TopicId


class CurrentLeaders:
    """The leaders that one answer names, and their addresses."""

    def __init__(self, partitions: PartitionRegistry) -> None:
        self._partitions = partitions
        self._brokers: dict[int, BrokerInfo] = {}

    def of(self, topic: str | TopicId, partition: int) -> tuple[int, LeaderEpoch] | None:
        """The id of the other live broker that leads a partition, and its leader epoch."""
        found = self._partitions.leader_elsewhere(topic, partition)
        if found is None:
            return None
        broker, leader_epoch = found
        self._brokers[broker.broker_id] = broker
        return broker.broker_id, leader_epoch

    def endpoints(self, listener: str) -> Iterator[tuple[BrokerInfo, Endpoint]]:
        """The named brokers that have this listener, with their addresses."""
        for info in self._brokers.values():
            endpoint = info.endpoint(listener)
            if endpoint is not None:
                yield info, endpoint
