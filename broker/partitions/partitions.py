"""The partitions that this broker leads, by name or id. They follow the cluster's metadata.

A partition that the broker cannot prove right (a corrupt or missing object) stays listed with its
fault and answers KAFKA_STORAGE_ERROR. All other partitions keep working. Fetches wait on a
partition (`WaitQueue`) until it has something to read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from uuid import UUID

from tidelog.coordinator.cluster.records.records import (
    ConfigsChanged,
    ConfigScope,
    PartitionMoved,
    PartitionsCreated,
    Record,
    TenuresOpened,
    TopicCreated,
    TopicDeleted,
)
from tidelog.coordinator.cluster.state.incarnations import BrokerInfo
from tidelog.coordinator.cluster.state.state import ClusterState
from tidelog.errors import CorruptObject, TidelogError, without_frames
from tidelog.identifiers import Epoch, LeaderEpoch, TenureKey, TopicId, TopicPartition
from tidelog.protocol.error_codes import ErrorCode
from tidelog.records.validate.rules import BatchLimits
from tidelog.wal.log.image import PartitionImage
from tidelog.wal.log.partition_log import PartitionLog
from tidelog.wal.log.producer_expiry import ProducerExpiry
from tidelog.wal.write.checkpoint_images import CheckpointImages


class Waiter:
    """One parked request; it may watch many partitions."""

    __slots__ = ("_event", "_queues")

    def __init__(self, queues: Iterable[WaitQueue]) -> None:
        self._event = asyncio.Event()
        self._queues = list(queues)

    def __enter__(self) -> Waiter:
        for queue in self._queues:
            queue.waiters[self] = None
        return self

    def __exit__(self, *_: object) -> None:
        for queue in self._queues:
            queue.waiters.pop(self, None)

    def wake(self) -> None:
        """Let the request read again."""
        self._event.set()

    async def wait(self, seconds: float) -> bool:
        """True when woken, False when the time has passed. Ready for the next wait."""
        try:
            async with asyncio.timeout(seconds):
                await self._event.wait()
        except TimeoutError:
            return False
        self._event.clear()
        return True


class WaitQueue:
    """The fetches that long polling parks on a partition until something becomes readable.

    A wake only sets an event. It is idempotent, and costs nothing if no fetch is parked.
    """

    __slots__ = ("waiters",)

    def __init__(self) -> None:
        # A dictionary, not a set: its order is the same in every run of a simulation.
        self.waiters: dict[Waiter, None] = {}

    def wake_all(self) -> None:
        """Wake every parked request, so that it reads again."""
        for waiter in self.waiters:
            waiter.wake()


class PartitionError(TidelogError):
    """This broker cannot serve the partition; `code` is Kafka's error."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code


class Partition:
    """A partition that this broker leads.

    `opened`: this incarnation's WAL holds the partition's image, ahead of its other entries (C2).
    """

    __slots__ = (
        "fault",
        "is_internal",
        "limits",
        "log",
        "opened",
        "readers",
        "topic_name",
    )

    def __init__(
        self, topic_name: str, log: PartitionLog, limits: BatchLimits, *, is_internal: bool = False
    ) -> None:
        self.topic_name = topic_name
        self.log = log
        self.limits = limits
        self.is_internal = is_internal
        self.opened = False
        self.fault: CorruptObject | None = None
        self.readers = WaitQueue()

    @property
    def first_offset(self) -> int:
        """The first offset that a client may read.

        An internal partition keeps no records that a snapshot of its coordinator's state covers.
        """
        log = self.log
        return max(log.log_start, log.table_next) if self.is_internal else log.log_start

    def __str__(self) -> str:
        return f"{self.topic_name}-{self.log.partition.partition}"


class PartitionRegistry:
    """Every partition of this incarnation: from recovery, then from the metadata log's records.

    A new partition costs nothing before its first use. It has no records, so loops over all
    partitions need not meet it.
    """

    def __init__(
        self,
        epoch: Epoch,
        state: Callable[[], ClusterState],
        limits: Callable[[TopicId], BatchLimits],
        missed: Callable[[], None] = lambda: None,
    ) -> None:
        """`missed` hears of each request for a partition that is not here: the view of the
        cluster may be old."""
        self._epoch = epoch
        self._state = state
        self._limits = limits
        self._missed = missed
        self._topics: dict[TopicId, dict[int, Partition]] = {}
        self._led: dict[TopicId, int] = {}
        """How many partitions of each topic this broker leads, used or not."""
        self._faulty: dict[TopicPartition, Partition] = {}
        self._withheld: dict[TopicPartition, Partition] = {}
        """The partitions that are being given away."""
        self._frozen: dict[TenureKey, PartitionLog] = {}
        """The logs of partitions that were given away. Checkpoints hold them until the receivers'
        images are durable."""
        # A cache of `named`, cleared when the metadata changes: each produce request asks.
        self._by_name: dict[tuple[str, int], Partition] = {}
        self.checkpointed = CheckpointImages()
        """The images of all partitions opened here: a checkpoint holds them (D1). The other
        partitions have written nothing in this incarnation, so their base lies with the tenure
        before."""
        self.producers = ProducerExpiry()

    def __len__(self) -> int:
        return sum(self._led.values())

    def __iter__(self) -> Iterator[Partition]:
        """The partitions that were recovered, or used since."""
        return (p for partitions in self._topics.values() for p in partitions.values())

    def high_watermarks(self) -> dict[tuple[str, int], int]:
        """The ends of clients' partitions, by topic and number. Any thread may call this.

        Without partitions that were not used yet, and without faulty ones.
        """
        return {
            (each.topic_name, number): each.log.high_watermark
            for partitions in list(self._topics.values())
            for number, each in list(partitions.items())
            if not each.is_internal and each.fault is None
        }

    @property
    def faulty(self) -> Sequence[Partition]:
        """The partitions that this broker cannot serve. Any thread may read this."""
        return tuple(self._faulty.values())

    # `LogWatcher`: logs report changes here, so that idle partitions are never polled.

    def changed(self, log: PartitionLog) -> None:
        """The log differs from its last image."""
        self.checkpointed.changed(log)

    def producers_changed(self, log: PartitionLog, more: int) -> None:
        """The log remembers `more` additional producers."""
        self.producers.changed(log, more)

    def prepare(
        self,
        images: Mapping[TopicPartition, PartitionImage],
        faults: Mapping[TopicPartition, CorruptObject],
    ) -> list[Partition]:
        """The partitions of a recovery that this incarnation owns; faulty ones have their faults.

        Nothing is listed yet: `adopt` does that.
        """
        state = self._state()
        prepared = []
        for place in (*images, *faults):
            tenure = state.leader(place)
            if tenure is None or tenure.incarnation.epoch != self._epoch:
                continue
            fault = faults.get(place)
            if fault is None:
                log = PartitionLog.from_image(images[place])
                log.begin_tenure(tenure.leader_epoch)
            else:
                log = PartitionLog.from_image(PartitionImage.empty(place, tenure.leader_epoch))
            topic = state.topics[place.topic_id]
            limits = self._limits(place.topic_id)
            partition = Partition(topic.name, log, limits, is_internal=topic.internal)
            partition.fault = None if fault is None else without_frames(fault)
            prepared.append(partition)
        return prepared

    def adopt(self, prepared: Iterable[Partition]) -> list[Partition]:
        """List prepared partitions and return them, without those whose tenure has ended since."""
        state = self._state()
        adopted = []
        for partition in prepared:
            place = partition.log.partition
            tenure = state.leader(place)
            if tenure is None or (tenure.incarnation.epoch, tenure.leader_epoch) != (
                self._epoch,
                partition.log.leader_epoch,
            ):
                continue
            # The topic's settings may have changed since.
            partition.limits = self._limits(place.topic_id)
            self._add(place, partition)
            self._count(place.topic_id, 1)
            adopted.append(partition)
        return adopted

    def follow(self, records: Sequence[Record]) -> None:
        """Follow an entry of the metadata log that the cluster state has applied."""
        self._by_name.clear()
        for record in records:
            match record:
                case TopicCreated() | PartitionsCreated():
                    self._count(record.topic_id, record.owners.count(self._epoch))
                case TopicDeleted(topic_id=topic_id):
                    self._drop(topic_id)
                case PartitionMoved(topic_id=topic_id, partition=number):
                    self._move(TopicPartition(topic_id, number))
                case TenuresOpened(opened=opened):
                    for group in opened:
                        self._release_earlier_tenures(
                            TopicPartition(group.topic_id, number) for number in group.partitions
                        )
                case ConfigsChanged(scope=ConfigScope.TOPIC, name=name):
                    self._renew_limits(UUID(name))
                case ConfigsChanged(scope=ConfigScope.BROKER | ConfigScope.CLUSTER):
                    # Topics inherit the broker's own settings.
                    for topic_id in self._topics:
                        self._renew_limits(topic_id)
                case _:
                    pass

    def suspend(self, partition: Partition) -> None:
        """Refuse requests for a partition from now on: it is about to be given away (C3).

        Checkpoints go on holding it. `_move` or `resume` follows.
        """
        place = partition.log.partition
        self._delist(place)
        self._withheld[place] = partition

    def resume(self, partition: Partition) -> None:
        """Serve a partition again that was not given away after all, unless it is deleted."""
        place = partition.log.partition
        if self._withheld.pop(place, None) is not None:
            # The topic's settings may have changed since.
            partition.limits = self._limits(place.topic_id)
            self._add(place, partition)

    def condemn(self, partition: Partition, fault: CorruptObject) -> None:
        """Mark the partition as faulty: the broker cannot prove it right."""
        partition.fault = without_frames(fault)
        self._faulty[partition.log.partition] = partition
        partition.readers.wake_all()

    def find(self, partition: TopicPartition) -> Partition:
        """The partition, ready to use. Raises PartitionError."""
        hosted = self.get(partition)
        if hosted is None:
            raise self._absent(partition)
        return _sound(hosted)

    def require(self, partition: Partition) -> None:
        """Raise PartitionError unless this object is still the partition, ready to use.

        A partition that moved away and came back is another object. The broker must not append
        batches that it checked against the old object (C3): no reader uses that log any more.
        """
        place = partition.log.partition
        hosted = self._topics.get(place.topic_id, {}).get(place.partition)
        if hosted is partition and partition.fault is None:
            return  # Each append asks: here is the short way.
        if self.find(place) is not partition:
            raise PartitionError(
                ErrorCode.NOT_LEADER_OR_FOLLOWER,
                f"partition {partition} was led by another broker meanwhile; nothing was appended",
            )

    def named(self, topic: str, partition: int) -> Partition:
        """The partition of a topic's name. Raises PartitionError."""
        known = self._by_name.get((topic, partition))
        if known is not None:
            return _sound(known)
        found = self._state().topic_named(topic)
        if found is None:
            self._missed()
            raise PartitionError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {topic}")
        hosted = self.find(TopicPartition(found.topic_id, partition))
        self._by_name[topic, partition] = hosted
        return hosted

    def identified(self, topic_id: TopicId, partition: int) -> Partition:
        """The partition of a topic's id. Raises PartitionError."""
        if topic_id not in self._state().topics:
            self._missed()
            raise PartitionError(ErrorCode.UNKNOWN_TOPIC_ID, f"there is no topic {topic_id}")
        return self.find(TopicPartition(topic_id, partition))

    def topic_name(self, topic_id: TopicId) -> str | None:
        """The name of an existing topic."""
        topic = self._state().topics.get(topic_id)
        return None if topic is None else topic.name

    def get(self, partition: TopicPartition) -> Partition | None:
        """The partition, faulty or not; None if this broker does not lead it, or gives it away."""
        partitions = self._topics.get(partition.topic_id)
        hosted = None if partitions is None else partitions.get(partition.partition)
        return self._new(partition) if hosted is None else hosted

    def held(self, partition: TopicPartition) -> Partition | None:
        """The partition, also while it is being given away: its last records become durable."""
        if not self._withheld:
            return self.get(partition)
        return self._withheld.get(partition) or self.get(partition)

    def leader_elsewhere(
        self, topic: str | TopicId, partition: int
    ) -> tuple[BrokerInfo, LeaderEpoch] | None:
        """The other live broker that leads a partition, and its leader epoch; None if there is
        none.

        A client that is told the leader's address goes there without a look-up (KIP-951).
        """
        state = self._state()
        found = state.topic_named(topic) if isinstance(topic, str) else state.topics.get(topic)
        tenure = None
        if found is not None:
            tenure = state.leader(TopicPartition(found.topic_id, partition))
        if tenure is None or tenure.incarnation.epoch == self._epoch:
            return None
        broker = state.brokers.get(tenure.incarnation.epoch)
        return None if broker is None or broker.fenced else (broker, tenure.leader_epoch)

    def wal_bytes(self, place: TopicPartition) -> int | None:
        """Bytes that the WAL holds of a partition; None if this broker does not lead it."""
        hosted = self._topics.get(place.topic_id, {}).get(place.partition)
        if hosted is not None:
            return hosted.log.extents.total_bytes
        tenure = self._state().leader(place)
        return 0 if tenure is not None and tenure.incarnation.epoch == self._epoch else None

    def _absent(self, partition: TopicPartition) -> PartitionError:
        self._missed()
        tenure = self._state().leader(partition)
        if tenure is None:
            return PartitionError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                f"topic {partition.topic_id} has no partition {partition.partition}",
            )
        name = f"partition {partition.partition} of {partition.topic_id}"
        why = f"{name} is led by incarnation {tenure.incarnation}"
        if tenure.incarnation.epoch == self._epoch:
            why = f"{name} is being opened or given away"
        return PartitionError(ErrorCode.NOT_LEADER_OR_FOLLOWER, why)

    def _new(self, place: TopicPartition) -> Partition | None:
        """The partition, if this incarnation created it and uses it for the first time."""
        if place in self._withheld:
            return None
        tenures = self._state().tenures(place)
        # Only a partition's first tenure begins empty; all others are recovered.
        if len(tenures) != 1 or tenures[0].leader_epoch != 0 or tenures[0].handover is not None:
            return None
        if tenures[0].incarnation.epoch != self._epoch:
            return None
        topic = self._state().topics[place.topic_id]
        log = PartitionLog.from_image(PartitionImage.empty(place, tenures[0].leader_epoch))
        log.begin_tenure(tenures[0].leader_epoch)
        limits = self._limits(place.topic_id)
        hosted = Partition(topic.name, log, limits, is_internal=topic.internal)
        self._add(place, hosted)
        return hosted

    def _count(self, topic_id: TopicId, partitions: int) -> None:
        self._led[topic_id] = self._led.get(topic_id, 0) + partitions

    def _add(self, place: TopicPartition, hosted: Partition) -> None:
        self._topics.setdefault(place.topic_id, {})[place.partition] = hosted
        if hosted.fault is None:
            hosted.log.watch(self)
        else:
            self._faulty[place] = hosted

    def _drop(self, topic_id: TopicId) -> None:
        for number in list(self._topics.get(topic_id, ())):
            self._remove(TopicPartition(topic_id, number))
        for place in [each for each in self._withheld if each.topic_id == topic_id]:
            self.checkpointed.discard(self._withheld.pop(place).log)
        self._release_earlier_tenures(
            [place for place, _ in self._frozen if place.topic_id == topic_id]
        )
        self._led.pop(topic_id, None)

    def _remove(self, place: TopicPartition) -> None:
        hosted = self._delist(place)
        if hosted is not None:
            self.checkpointed.discard(hosted.log)

    def _delist(self, place: TopicPartition) -> Partition | None:
        partitions = self._topics.get(place.topic_id, {})
        hosted = partitions.pop(place.partition, None)
        if hosted is None:
            return None
        if not partitions:
            del self._topics[place.topic_id]
        self._by_name.clear()
        self._faulty.pop(place, None)
        self.producers.discard(hosted.log)
        hosted.readers.wake_all()
        return hosted

    def _move(self, place: TopicPartition) -> None:
        """Follow a move. The giver keeps the log in checkpoints (C3)."""
        given = self._withheld.pop(place, None)
        if given is None:
            # A move to this broker, which has nothing of the partition yet.
            return
        self._count(place.topic_id, -1)
        if given.log in self.checkpointed:
            self._frozen[place, given.log.leader_epoch] = given.log

    def _release_earlier_tenures(self, places: Iterable[TopicPartition]) -> None:
        """Leave these partitions' earlier tenures out of later checkpoints, unless still named."""
        opened = set(places)
        for place, leader_epoch in [key for key in self._frozen if key[0] in opened]:
            named = {tenure.leader_epoch for tenure in self._state().tenures(place)}
            if leader_epoch not in named:
                self.checkpointed.discard(self._frozen.pop((place, leader_epoch)))

    def _renew_limits(self, topic_id: TopicId) -> None:
        partitions = self._topics.get(topic_id)
        # The same entry may delete the topic, by a later record.
        if partitions is None or topic_id not in self._state().topics:
            return
        limits = self._limits(topic_id)
        for partition in partitions.values():
            partition.limits = limits


def _sound(hosted: Partition) -> Partition:
    if hosted.fault is not None:
        raise PartitionError(ErrorCode.KAFKA_STORAGE_ERROR, str(hosted.fault))
    return hosted
