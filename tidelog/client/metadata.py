"""A client's cached metadata of brokers and topics."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from tidelog.client.transport import Address
from tidelog.protocol.schemas.cluster.metadata import MetadataResponse, MetadataResponseTopic


@dataclass(frozen=True, slots=True)
class PartitionMetadata:
    """A partition's leader broker id (-1: none), leader epoch (-1: unknown) and error code (0:
    none).
    """

    partition: int
    leader_id: int
    leader_epoch: int
    error_code: int
    replicas: tuple[int, ...] = ()
    in_sync_replicas: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class TopicMetadata:
    """A topic and its partitions, by number."""

    name: str
    topic_id: UUID
    internal: bool
    partitions: dict[int, PartitionMetadata]


class MetadataCache:
    """Brokers by id and topics by name, as last learned."""

    def __init__(self, age_ms_max: int, topics_max: int) -> None:
        self._age_seconds_max = age_ms_max / 1000
        self._topics_max = topics_max
        self._topics: dict[str, tuple[float, TopicMetadata]] = {}
        self.brokers: dict[int, Address] = {}

    def learn(self, response: MetadataResponse, now: float) -> None:
        """Store a response; topics with an error are removed."""
        self.brokers = {b.node_id: (b.host, b.port) for b in response.brokers}
        for topic in response.topics:
            if topic.name is None:
                continue
            self._topics.pop(topic.name, None)
            if topic.error_code == 0:
                while len(self._topics) >= self._topics_max:
                    del self._topics[next(iter(self._topics))]
                self._topics[topic.name] = (now, topic_metadata(topic))

    def topic(self, name: str, now: float) -> TopicMetadata | None:
        """A topic's metadata, or None if it is unknown or too old."""
        known = self._topics.get(name)
        if known is None or now - known[0] > self._age_seconds_max:
            return None
        return known[1]

    def forget(self, name: str) -> None:
        """Remove a topic whose metadata proved wrong."""
        self._topics.pop(name, None)


def topic_metadata(topic: MetadataResponseTopic) -> TopicMetadata:
    """A topic from a Metadata response."""
    partitions = {
        partition.partition_index: PartitionMetadata(
            partition=partition.partition_index,
            leader_id=partition.leader_id,
            leader_epoch=partition.leader_epoch,
            error_code=partition.error_code,
            replicas=tuple(partition.replica_nodes),
            in_sync_replicas=tuple(partition.isr_nodes),
        )
        for partition in topic.partitions
    }
    return TopicMetadata(topic.name or "", topic.topic_id, topic.is_internal, partitions)
