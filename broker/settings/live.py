"""The settings that hold now: those that a broker was started with, overlaid with what the metadata
log says was altered since."""

from __future__ import annotations

from collections.abc import Callable

from tidelog.broker.settings.append_limits import append_limits
from tidelog.broker.settings.settings import BrokerSettings, TopicConfig, effective_topic_config
from tidelog.coordinator.cluster.records.records import ConfigScope
from tidelog.coordinator.cluster.state.state import ClusterState
from tidelog.identifiers import BrokerId, TopicId
from tidelog.records.validate.rules import BatchLimits


class LiveSettings:
    """One broker's. To be renewed whenever the cluster's configurations have changed."""

    def __init__(
        self, configured: BrokerSettings, broker_id: BrokerId, state: Callable[[], ClusterState]
    ) -> None:
        """`state`: the cluster as it is now; not asked for before the first `renew`."""
        self._configured = configured
        self._broker_id = broker_id
        self._state = state
        self._now = configured
        self._topic_configs: dict[TopicId, TopicConfig] = {}

    def now(self) -> BrokerSettings:
        """The broker's settings, altered ones included."""
        return self._now

    def renew(self) -> None:
        """Take up what was altered."""
        state = self._state()
        self._now = self._configured.overlaid(
            state.configs(ConfigScope.CLUSTER, ""),
            state.configs(ConfigScope.BROKER, str(self._broker_id)),
        )
        self._topic_configs.clear()

    def topic_config(self, topic_id: TopicId) -> TopicConfig:
        """The settings of an existing topic. KeyError if there is none."""
        config = self._topic_configs.get(topic_id)
        if config is None:
            topic = self._state().topics[topic_id]
            config = effective_topic_config(topic.configs, self._now)
            self._topic_configs[topic_id] = config
        return config

    def append_limits(self, topic_id: TopicId) -> BatchLimits:
        """What an existing topic accepts of producers. KeyError if there is none."""
        return append_limits(self.topic_config(topic_id), self._now)
