"""What handlers may use of the broker that runs them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

from tidelog.broker.metrics import BrokerMetrics
from tidelog.broker.settings import BrokerSettings, TopicConfig
from tidelog.clock import Clock
from tidelog.entropy import Entropy
from tidelog.identifiers import Incarnation, TopicId, TopicPartition
from tidelog.network import Network

if TYPE_CHECKING:
    from tidelog.coordinator.cluster.metadata_log import MetadataLog


class PartitionSizes(Protocol):
    """The partitions that this broker leads, as far as the administrative handlers need them."""

    def sizes(self) -> Mapping[TopicPartition, int]:
        """Bytes of the log of each partition that this broker leads."""
        ...


class Services(Protocol):
    """A running broker. Handlers take one and keep nothing of their own between requests."""

    @property
    def settings(self) -> BrokerSettings:
        """The broker settings that hold now, altered ones included."""
        ...

    def topic_config(self, topic_id: TopicId) -> TopicConfig:
        """The settings that hold now for an existing topic. KeyError if there is none."""
        ...

    @property
    def metadata(self) -> MetadataLog:
        """The metadata log and, by `state`, the cluster as this broker knows it."""
        ...

    @property
    def incarnation(self) -> Incarnation:
        """This broker's registration: the author of what it appends."""
        ...

    @property
    def advertised(self) -> tuple[str, int]:
        """The host and the port that clients are told."""
        ...

    @property
    def store_url(self) -> str:
        """The bucket's address, without credentials."""
        ...

    @property
    def partitions(self) -> PartitionSizes:
        """The partitions that this broker leads."""
        ...

    @property
    def clock(self) -> Clock: ...

    @property
    def entropy(self) -> Entropy: ...

    @property
    def network(self) -> Network: ...

    @property
    def metrics(self) -> BrokerMetrics: ...
