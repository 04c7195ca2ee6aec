"""The effective settings of a broker: those of its start, and overrides of the metadata log."""

from __future__ import annotations

from collections.abc import Callable

from tidelog.broker.settings.layers import append_limits
from tidelog.broker.settings.settings import BrokerSettings, TopicConfig, effective_topic_config
from tidelog.coordinator.cluster.records.records import ConfigScope
from tidelog.coordinator.cluster.state.state import ClusterState
from tidelog.identifiers import BrokerId, TopicId
from tidelog.records.validate.rules import BatchLimits


class LiveSettings:
    """The effective settings of one broker. Call `renew` after each change of configurations."""

    def __init__(self, configured: BrokerSettings, state: Callable[[], ClusterState]) -> None:
        """`state` returns the cluster's present state; not called before the first `renew`."""
        self._configured = configured
        self._broker_id: BrokerId | None = None
        self._state = state
        self._now = configured
        self._topic_configs: dict[TopicId, TopicConfig] = {}

    def now(self) -> BrokerSettings:
        """The broker's settings, including altered ones."""
        return self._now

    def serve_as(self, broker_id: BrokerId) -> None:
        """Also apply the settings that were altered for this broker alone."""
        self._broker_id = broker_id
        self.renew()

    def renew(self) -> None:
        """Apply the settings that the metadata log has now."""
        state = self._state()
        of_broker = "" if self._broker_id is None else str(self._broker_id)
        self._now = self._configured.overridden(
            state.configs(ConfigScope.CLUSTER, ""), state.configs(ConfigScope.BROKER, of_broker)
        )
        self._topic_configs.clear()

    def topic_config(self, topic_id: TopicId) -> TopicConfig:
        """The settings of an existing topic. KeyError if there is none."""
        config = self._topic_configs.get(topic_id)
        if config is None:
            topics = self._state().topics
            topic = topics[topic_id]
            if len(self._topic_configs) > 2 * len(topics):
                # Most are of deleted topics.
                self._topic_configs.clear()
            config = effective_topic_config(topic.configs, self._now)
            self._topic_configs[topic_id] = config
        return config

    def append_limits(self, topic_id: TopicId) -> BatchLimits:
        """The limits of a topic on producers' batches. KeyError if there is no such topic."""
        return append_limits(self.topic_config(topic_id), self._now)
