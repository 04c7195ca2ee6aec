"""The partitions that this broker leads: found by name or id, kept in step with the cluster.

A partition that cannot be proved right (a corrupt or missing object) stays listed with its fault
and answers KAFKA_STORAGE_ERROR; all others go on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from tidelog.broker.waiters import WaitQueue
from tidelog.coordinator.cluster.records import (
    ConfigsChanged,
    PartitionMoved,
    PartitionsCreated,
    Record,
    TopicCreated,
    TopicDeleted,
)
from tidelog.coordinator.cluster.state import ClusterState
from tidelog.errors import CorruptObject, TidelogError
from tidelog.identifiers import Epoch, TopicId, TopicPartition
from tidelog.protocol.error_codes import ErrorCode
from tidelog.records.rules import Limits
from tidelog.wal.image import PartitionImage
from tidelog.wal.partition_log import PartitionLog


class PartitionError(TidelogError):
    """The partition cannot be used here; `code` is Kafka's error."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code


class Partition:
    """A partition that this broker leads.

    `opened`: its image was added to this incarnation's WAL, before anything else of it (C2).
    `told_opened`: that is durable, and the metadata log is to hear of it.
    """

    __slots__ = (
        "fault",
        "is_internal",
        "limits",
        "log",
        "opened",
        "readers",
        "told_opened",
        "topic_name",
    )

    def __init__(
        self, topic_name: str, log: PartitionLog, limits: Limits, *, is_internal: bool = False
    ) -> None:
        self.topic_name = topic_name
        self.log = log
        self.limits = limits
        self.is_internal = is_internal
        self.opened = False
        self.told_opened = False
        self.fault: CorruptObject | None = None
        self.readers = WaitQueue()

    @property
    def first_offset(self) -> int:
        """The first offset that may be read. What a snapshot of a coordinator's state has taken the
        place of is not kept as records."""
        log = self.log
        return max(log.log_start, log.table_next) if self.is_internal else log.log_start

    def __str__(self) -> str:
        return f"{self.topic_name}-{self.log.partition.partition}"


class PartitionRegistry:
    """Every partition of this incarnation. Fed by recovery, then by the metadata log's records."""

    def __init__(
        self,
        epoch: Epoch,
        state: Callable[[], ClusterState],
        limits: Callable[[TopicId], Limits],
    ) -> None:
        self._epoch = epoch
        self._state = state
        self._limits = limits
        self._partitions: dict[TopicPartition, Partition] = {}

    def __len__(self) -> int:
        return len(self._partitions)

    def __iter__(self) -> Iterator[Partition]:
        return iter(self._partitions.values())

    def opened_logs(self) -> list[PartitionLog]:
        """Of all that were opened here: what a checkpoint holds (D1). The others have written
        nothing in this incarnation, so their base lies with the tenure before."""
        return [p.log for p in self._partitions.values() if p.opened]

    def adopt(
        self,
        images: Mapping[TopicPartition, PartitionImage],
        faults: Mapping[TopicPartition, CorruptObject],
    ) -> None:
        """Take up what recovery found; the faulty ones are listed with their faults."""
        state = self._state()
        for partition in (*images, *faults):
            tenure = state.leader(partition)
            topic = state.topics.get(partition.topic_id)
            if tenure is None or topic is None or tenure.incarnation.epoch != self._epoch:
                continue
            fault = faults.get(partition)
            if fault is None:
                log = PartitionLog.from_image(images[partition])
                log.begin_tenure(tenure.leader_epoch)
            else:
                log = PartitionLog.from_image(PartitionImage.empty(partition, tenure.leader_epoch))
            limits = self._limits(partition.topic_id)
            hosted = Partition(topic.name, log, limits, is_internal=topic.internal)
            hosted.fault = fault
            self._partitions[partition] = hosted

    def follow(self, records: Sequence[Record]) -> None:
        """Keep in step with an entry of the metadata log that has been applied to the state."""
        for record in records:
            match record:
                case TopicCreated(topic_id=topic_id) | PartitionsCreated(topic_id=topic_id):
                    self._create_new(topic_id)
                case TopicDeleted(topic_id=topic_id):
                    self._drop(topic_id)
                case PartitionMoved(topic_id=topic_id, partition=number):
                    self._remove(TopicPartition(topic_id, number))
                case ConfigsChanged():
                    self._renew_limits()
                case _:
                    pass

    def find(self, partition: TopicPartition) -> Partition:
        """The partition, ready to use. Raises PartitionError."""
        hosted = self._partitions.get(partition)
        if hosted is None:
            raise self._absent(partition)
        if hosted.fault is not None:
            raise PartitionError(ErrorCode.KAFKA_STORAGE_ERROR, str(hosted.fault))
        return hosted

    def named(self, topic: str, partition: int) -> Partition:
        """The partition of a topic's name. Raises PartitionError."""
        found = self._state().topic_named(topic)
        if found is None:
            raise PartitionError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {topic}")
        return self.find(TopicPartition(found.topic_id, partition))

    def identified(self, topic_id: TopicId, partition: int) -> Partition:
        """The partition of a topic's id. Raises PartitionError."""
        if topic_id not in self._state().topics:
            raise PartitionError(ErrorCode.UNKNOWN_TOPIC_ID, f"there is no topic {topic_id}")
        return self.find(TopicPartition(topic_id, partition))

    def get(self, partition: TopicPartition) -> Partition | None:
        """The partition, faulty or not; None if this broker does not lead it."""
        return self._partitions.get(partition)

    def sizes(self) -> Mapping[TopicPartition, int]:
        """Bytes of the log of each partition."""
        return {
            place: partition.log.extents.total_bytes
            for place, partition in self._partitions.items()
        }

    def _absent(self, partition: TopicPartition) -> PartitionError:
        tenure = self._state().leader(partition)
        if tenure is None:
            return PartitionError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                f"topic {partition.topic_id} has no partition {partition.partition}",
            )
        return PartitionError(
            ErrorCode.NOT_LEADER_OR_FOLLOWER,
            f"partition {partition.partition} of {partition.topic_id} is led by"
            f" incarnation {tenure.incarnation}",
        )

    def _create_new(self, topic_id: TopicId) -> None:
        topic = self._state().topics.get(topic_id)
        if topic is None:
            return
        for number, tenures in enumerate(topic.partitions):
            place = TopicPartition(topic_id, number)
            tenure = tenures[-1]
            # Only a partition's first tenure begins empty; all others are recovered.
            if place in self._partitions or tenure.leader_epoch != 0 or len(tenures) > 1:
                continue
            if tenure.incarnation.epoch == self._epoch and tenure.handover is None:
                log = PartitionLog.from_image(PartitionImage.empty(place, tenure.leader_epoch))
                log.begin_tenure(tenure.leader_epoch)
                self._partitions[place] = Partition(
                    topic.name, log, self._limits(topic_id), is_internal=topic.internal
                )

    def _drop(self, topic_id: TopicId) -> None:
        for place in [p for p in self._partitions if p.topic_id == topic_id]:
            self._remove(place)

    def _remove(self, place: TopicPartition) -> None:
        hosted = self._partitions.pop(place, None)
        if hosted is not None:
            hosted.readers.wake_all()

    def _renew_limits(self) -> None:
        renewed: dict[TopicId, Limits] = {}
        topics = self._state().topics
        for place, partition in self._partitions.items():
            if place.topic_id not in topics:
                continue  # the same entry deletes it, by a later record
            if place.topic_id not in renewed:
                renewed[place.topic_id] = self._limits(place.topic_id)
            partition.limits = renewed[place.topic_id]
