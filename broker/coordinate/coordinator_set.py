"""The coordinators of one internal topic: one for each of its partitions that this broker leads."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Generic, TypeVar

from tidelog.broker.partitions.partitions import Partition, PartitionError, PartitionRegistry
from tidelog.broker.telemetry.zones import zone_of
from tidelog.coordinator.cluster.membership.zone_use import ZoneUse
from tidelog.coordinator.cluster.records.topics import Topic
from tidelog.coordinator.cluster.state.state import ClusterState
from tidelog.coordinator.hashing import partition_for
from tidelog.coordinator.runtime import CoordinatorRefused, CoordinatorRuntime
from tidelog.identifiers import TopicPartition
from tidelog.named_tuples import new_tuple
from tidelog.protocol.error_codes import ErrorCode

CommandT = TypeVar("CommandT")
RecordT = TypeVar("RecordT")
ReplyT = TypeVar("ReplyT")


class CoordinatorSet(Generic[CommandT, RecordT, ReplyT]):
    """The running coordinators. They follow the registry's partitions."""

    def __init__(
        self,
        topic_name: str,
        state: Callable[[], ClusterState],
        partitions: PartitionRegistry,
        start: Callable[[Partition], CoordinatorRuntime[CommandT, RecordT, ReplyT]],
        zone_use: ZoneUse,
    ) -> None:
        """`start` creates a partition's coordinator and starts it. `zone_use` counts `note_use`."""
        self._topic_name = topic_name
        self._state = state
        self._partitions = partitions
        self._start = start
        self._zone_use = zone_use
        self._running: dict[
            TopicPartition, tuple[Partition, CoordinatorRuntime[CommandT, RecordT, ReplyT]]
        ] = {}
        self._looked_up: ClusterState | None = None
        self._found: Topic | None = None

    def find(self, key: str) -> CoordinatorRuntime[CommandT, RecordT, ReplyT]:
        """The coordinator of a group or a transactional id.

        Raises CoordinatorRefused if this broker does not host it. The caller may have a newer view
        of the cluster, so asking the partitions makes the broker renew its own.
        """
        place = self.place_of(key)
        found = None if place is None else self.at(place)
        if found is not None:
            return found
        why = "its coordinator has not started"
        try:
            self._partitions.named(self._topic_name, 0 if place is None else place.partition)
        except PartitionError as error:
            why = str(error)
        raise CoordinatorRefused(
            ErrorCode.NOT_COORDINATOR, f"this broker does not coordinate {key!r}: {why}"
        )

    def place_of(self, key: str) -> TopicPartition | None:
        """The partition whose leader coordinates the key; None without the internal topic."""
        topic = self._topic()
        if topic is None:
            return None
        number = partition_for(key, topic.partition_count)
        return new_tuple(TopicPartition, (topic.topic_id, number))

    def note_use(self, key: str, client_id: str | None, rack: str | None = None) -> None:
        """Count a client's request for the key by the client's zone. `rack`: `client.rack`."""
        place = self.place_of(key)
        if place in self._running:
            self._zone_use.note(place, zone_of(client_id, rack))

    @property
    def places(self) -> Collection[TopicPartition]:
        """The partitions whose coordinators run here."""
        return self._running.keys()

    def at(self, partition: TopicPartition) -> CoordinatorRuntime[CommandT, RecordT, ReplyT] | None:
        """The coordinator whose log the partition is."""
        found = self._running.get(partition)
        return None if found is None else found[1]

    def all(self) -> list[CoordinatorRuntime[CommandT, RecordT, ReplyT]]:
        """All of them. Any thread may call this."""
        return [runtime for _, runtime in list(self._running.values())]

    def follow_leadership(self) -> None:
        """Start coordinators of newly led partitions, stop those of partitions that left."""
        wanted = self._led()
        for place, (partition, runtime) in list(self._running.items()):
            if wanted.get(place) is not partition:
                runtime.stop()
                del self._running[place]
        for place, partition in wanted.items():
            if place not in self._running:
                self._running[place] = partition, self._start(partition)

    def stop(self) -> None:
        """Refuse every waiting request; append nothing any more."""
        for runtime in self.all():
            runtime.stop()

    def _topic(self) -> Topic | None:
        """The internal topic, looked up once for each state: each request asks for it."""
        state = self._state()
        if state is not self._looked_up:
            self._looked_up, self._found = state, state.topic_named(self._topic_name)
        return self._found

    def _led(self) -> dict[TopicPartition, Partition]:
        topic = self._topic()
        if topic is None:
            return {}
        places = [TopicPartition(topic.topic_id, number) for number in range(topic.partition_count)]
        found = {place: self._partitions.get(place) for place in places}
        return {place: each for place, each in found.items() if each is not None}
