"""The topics that brokers keep for themselves: created on first use, consumed like any other."""

from __future__ import annotations

from collections.abc import Sequence

from tidelog.broker.handlers.metadata_change import change_metadata
from tidelog.broker.handlers.services import MetadataServices
from tidelog.coordinator.cluster.membership.assignment import assign_evenly
from tidelog.coordinator.cluster.records.records import Record, TopicCreated
from tidelog.coordinator.cluster.records.topics import new_topic_id
from tidelog.coordinator.cluster.state.state import ClusterState
from tidelog.coordinator.internal_topics import GROUP_TOPIC, TRANSACTION_TOPIC

_PARTITIONS = {
    GROUP_TOPIC: "offsets.topic.num.partitions",
    TRANSACTION_TOPIC: "transaction.state.log.num.partitions",
}
"""The setting that says how many partitions a topic gets."""


async def create_internal_topic(broker: MetadataServices, name: str) -> None:
    """Have the topic of the group or the transaction coordinators, if there is none. Raises
    ChangeFailed, or NoLiveBroker."""
    if broker.metadata.state.topic_named(name) is not None:
        return
    random = broker.entropy.uuid()
    partition_count = broker.settings.integer(_PARTITIONS[name])
    configs = {"cleanup.policy": "compact", "compression.type": "producer"}

    def build(state: ClusterState) -> Sequence[Record]:
        if state.topic_named(name) is not None:
            return ()
        owners = assign_evenly(state, partition_count)
        topic_id = new_topic_id(state.sequence + 1, random)
        return (TopicCreated(topic_id, name, owners, configs, internal=True),)

    await change_metadata(broker, build)
