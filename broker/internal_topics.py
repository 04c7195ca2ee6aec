"""The topics that brokers keep for themselves: created on first use, consumed like any other."""

from __future__ import annotations

from collections.abc import Sequence

from tidelog.broker.metadata_change import change_metadata
from tidelog.broker.placement import assign_owners
from tidelog.broker.services import Services
from tidelog.coordinator.cluster.records import Record, TopicCreated
from tidelog.coordinator.cluster.state import ClusterState

GROUP_TOPIC = "__consumer_offsets"


async def create_group_topic(broker: Services) -> None:
    """Have the topic of the group coordinators, if there is none. Raises ChangeFailed, or
    NoLiveBroker."""
    if broker.metadata.state.topic_named(GROUP_TOPIC) is not None:
        return
    topic_id = broker.entropy.uuid()
    settings = broker.settings
    configs = {"cleanup.policy": "compact", "compression.type": "producer"}

    def build(state: ClusterState) -> Sequence[Record]:
        if state.topic_named(GROUP_TOPIC) is not None:
            return ()
        owners = assign_owners(state, settings.integer("offsets.topic.num.partitions"))
        return (TopicCreated(topic_id, GROUP_TOPIC, owners, configs, internal=True),)

    await change_metadata(broker, build)
