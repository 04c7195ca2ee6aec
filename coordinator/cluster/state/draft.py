"""The cluster's state while metadata records are applied to it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Generic, TypeVar

from tidelog.coordinator.cluster.records.records import Record
from tidelog.coordinator.cluster.records.topics import Tenures, Topic
from tidelog.errors import Refused
from tidelog.identifiers import FIRST_LEADER_EPOCH, Epoch, Incarnation, TopicId
from tidelog.wal.log.tenure import Tenure

if TYPE_CHECKING:
    from tidelog.coordinator.cluster.state.state import ClusterState

K = TypeVar("K")
V = TypeVar("V")


class InvalidRecord(Refused):
    """The state does not allow this metadata record; nothing was applied."""

    def __init__(self, record: Record, why: str) -> None:
        super().__init__(f"metadata record {type(record).__name__} is not valid: {why}")
        self.record = record
        self.why = why


class _Table(Generic[K, V]):
    """A mapping that is copied at its first change."""

    __slots__ = ("_changed", "view")

    def __init__(self, base: Mapping[K, V]) -> None:
        self.view = base
        self._changed: dict[K, V] | None = None

    def _own(self) -> dict[K, V]:
        if self._changed is None:
            self.view = self._changed = dict(self.view)
        return self._changed

    def put(self, key: K, value: V) -> None:
        self._own()[key] = value

    def drop(self, key: K) -> None:
        del self._own()[key]


class Draft:
    """A state while records are applied to it."""

    def __init__(self, state: ClusterState, author: Epoch | None) -> None:
        self.base = state
        self.author = author
        self.sequence = state.sequence + 1
        self.cluster = state.cluster
        self.topics = _Table(state.topics)
        self.topic_ids = _Table(state.topic_ids)
        self.brokers = _Table(state.brokers)
        self.live_epochs = _Table(state.live_epochs)
        self.retired = _Table(state.retired)
        self.deleted = _Table(state.deleted)
        self.overrides = _Table(state.overrides)
        self.acls = state.acls
        self.quotas = _Table(state.quotas)
        self.credentials = state.credentials
        self.next_producer_id = state.next_producer_id
        self.losses = state.losses
        self.lost_entries = state.lost_entries
        self.level = state.level

    def finish(self) -> ClusterState:
        """The state with all changes."""
        return replace(
            self.base,
            cluster=self.cluster,
            topics=self.topics.view,
            topic_ids=self.topic_ids.view,
            brokers=self.brokers.view,
            live_epochs=self.live_epochs.view,
            retired=self.retired.view,
            deleted=self.deleted.view,
            overrides=self.overrides.view,
            acls=self.acls,
            quotas=self.quotas.view,
            credentials=self.credentials,
            next_producer_id=self.next_producer_id,
            losses=self.losses,
            lost_entries=self.lost_entries,
            level=self.level,
        )

    def topic(self, topic_id: TopicId, record: Record) -> Topic:
        """The topic. Raises InvalidRecord if it does not exist."""
        topic = self.topics.view.get(topic_id)
        if topic is None:
            raise InvalidRecord(record, f"there is no topic {topic_id}")
        return topic

    def live(self, epoch: Epoch, record: Record) -> Incarnation:
        """The incarnation. Raises InvalidRecord if it is not live."""
        info = self.brokers.view.get(epoch)
        if info is None:
            raise InvalidRecord(record, f"there is no live incarnation with epoch {epoch}")
        if info.fenced:
            raise InvalidRecord(record, f"incarnation {info.incarnation} is fenced")
        return info.incarnation

    def first_tenures(self, owners: Iterable[Epoch], record: Record) -> list[Tenures]:
        """The tenures of new partitions, one for each owner. Raises InvalidRecord."""
        # Partitions of one owner share the tuple: a topic of 10,000 takes little memory.
        shared: dict[Epoch, Tenures] = {}
        for epoch in owners:
            if epoch not in shared:
                owner = self.live(epoch, record)
                shared[epoch] = (Tenure(FIRST_LEADER_EPOCH, owner, None),)
        return [shared[epoch] for epoch in owners]
