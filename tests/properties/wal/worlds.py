"""Brokers that consist of a WAL alone, on a store that fails, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from tests.properties.wal.batches import METADATA, batch, incarnation
from tests.simulation.world.clock import SimulatedClock
from tests.simulation.world.loop import SimulatedLoop
from tidelog.entropy import SeededEntropy
from tidelog.errors import TidelogError
from tidelog.identifiers import Incarnation, LeaderEpoch, Slot, TopicPartition
from tidelog.records.batch import HEADER_SIZE, iterate_batches
from tidelog.storage.object_store import ByteRange, ObjectStore, StoreError
from tidelog.storage.stores.faulty import FaultRates, FaultyStore
from tidelog.storage.stores.memory import MemoryStore
from tidelog.storage.stores.retrying import RetryingStore
from tidelog.wal.log.image import PartitionImage
from tidelog.wal.log.partition_log import PartitionLog
from tidelog.wal.log.tenure import Tenure
from tidelog.wal.recover.recovery import Recovered, recover
from tidelog.wal.recover.wal_end import seal
from tidelog.wal.settings import WalSettings
from tidelog.wal.write.checkpoint import Checkpointer
from tidelog.wal.write.checkpoint_images import CheckpointImages
from tidelog.wal.write.slot_entries import BatchEntry, OpeningEntry
from tidelog.wal.write.writer import DurableSlot, WalWriter
from tidelog.workers.offload import InlineOffload


@dataclass
class Truth:
    """The history, as an all-knowing observer wrote it down."""

    appended: dict[tuple[TopicPartition, LeaderEpoch, int], bytes] = field(default_factory=dict)
    """By tenure, the offset of each value."""
    acknowledged: dict[TopicPartition, dict[int, bytes]] = field(default_factory=dict)

    def acknowledged_end(self, partition: TopicPartition) -> int:
        """The offset behind the last acknowledged value."""
        return max(self.acknowledged.get(partition, ()), default=-1) + 1


class World:
    """One bucket, one virtual clock, and the owners of partitions, as a metadata log would have
    them."""

    def __init__(self, loop: SimulatedLoop, seed: int, rates: FaultRates | None = None) -> None:
        self.clock = SimulatedClock(loop)
        self.entropy = SeededEntropy(f"world {seed}")
        self.bucket = MemoryStore(self.clock)
        self.rates = rates or FaultRates()
        self.truth = Truth()
        self.tenures: dict[TopicPartition, list[Tenure]] = {}
        self.ends: dict[Incarnation, Slot] = {}
        self.stores: list[FaultyStore] = []
        self._values = 0

    def store(self) -> FaultyStore:
        """A store for one process, with its own faults."""
        made = FaultyStore(self.bucket, self.clock, self.entropy, self.rates)
        self.stores.append(made)
        return made

    def patient_store(self) -> ObjectStore:
        """Ask again after passing faults, until the request succeeds."""
        return RetryingStore(self.store(), self.clock, self.entropy)

    async def settled(self) -> None:
        """Wait until the store has acted on every request that was sent."""
        for store in self.stores:
            store.resume()
            await store.settled()

    def value(self) -> bytes:
        """Content that no other batch has."""
        self._values += 1
        return b"value %d" % self._values

    def assign(self, partitions: Iterable[TopicPartition], owner: Incarnation) -> None:
        """The next tenure of some partitions."""
        for partition in partitions:
            known = self.tenures.setdefault(partition, [])
            epoch = LeaderEpoch(known[-1].leader_epoch + 1 if known else 0)
            known.append(Tenure(epoch, owner, None))

    async def seal(self, victim: Incarnation, store: ObjectStore) -> Slot:
        """Seal until the store lets it finish."""
        while True:
            try:
                return (await seal(store, self.clock, self.entropy, victim, 4)).slot
            except StoreError:
                await self.clock.sleep(1.0)

    async def recover(
        self, owner: Incarnation | None = None, told: Mapping[Incarnation, Slot] | None = None
    ) -> Recovered:
        """Recover every partition from the bucket, for an owner that has opened none. `told`: the
        durable ends of WALs that leases tell."""
        return await recover(
            self.patient_store(),
            self.clock,
            InlineOffload(),
            self.tenures,
            self.ends,
            unopened=() if owner is None else (owner,),
            told=told or {},
        )

    async def read(self, image: PartitionImage) -> dict[int, bytes]:
        """The values that an image's extents lead to, by offset."""
        found = {}
        for extent in image.extents:
            stored = await self.bucket.get(extent.key, ByteRange(extent.position, extent.length))
            for position, head in iterate_batches(stored.data):
                end = position + head.size_bytes
                found[head.base_offset] = bytes(stored.data[position + HEADER_SIZE : end])
        return found


class Broker:
    """One incarnation: partition logs over a WAL, and no other parts."""

    def __init__(
        self,
        world: World,
        epoch: int,
        images: Mapping[TopicPartition, PartitionImage],
        settings: WalSettings | None = None,
    ) -> None:
        self.world = world
        self.incarnation = incarnation(epoch)
        self.store = world.store()
        self.settings = settings or WalSettings()
        self.durable_slots: list[DurableSlot] = []
        self.logs: dict[TopicPartition, PartitionLog] = {}
        self.checkpointed = CheckpointImages()
        self.opened: set[TopicPartition] = set()
        self.ended_by: BaseException | None = None
        offload = InlineOffload()
        self.writer = WalWriter(
            self.store,
            world.clock,
            world.entropy,
            offload,
            self.incarnation,
            self.settings,
            self._on_durable,
            lambda: METADATA,
        )
        self.checkpointer = Checkpointer(
            self.store,
            world.clock,
            offload,
            self.writer,
            self.checkpointed,
            self.settings.checkpoint_interval_bytes,
            self.settings.checkpoint_interval_slots,
            lambda: METADATA,
        )
        for partition, image in images.items():
            tenure = world.tenures[partition][-1]
            if tenure.incarnation != self.incarnation:
                continue
            log = PartitionLog.from_image(image)
            if log.leader_epoch < tenure.leader_epoch:
                log.begin_tenure(tenure.leader_epoch)
            self.lead(log)

    def lead(self, log: PartitionLog) -> None:
        """The partition is this broker's."""
        if log.partition in self.logs:
            self.give_away(log.partition)
        self.logs[log.partition] = log
        log.watch(self)
        self.checkpointed.add(log)

    def give_away(self, partition: TopicPartition) -> None:
        """The partition is no longer this broker's."""
        self.checkpointed.discard(self.logs.pop(partition))

    def changed(self, log: PartitionLog) -> None:
        """A log reports that it changed."""
        self.checkpointed.changed(log)

    def producers_changed(self, log: PartitionLog, more: int) -> None:
        """A log reports that its producers changed. Producers do not expire here."""

    def _on_durable(self, slot: DurableSlot) -> None:
        self.durable_slots.append(slot)
        for advance in slot.advances:
            self.logs[advance.partition].advance(advance)
        self.checkpointer.note(slot)

    async def run(self) -> None:
        """Write until stopped or ended. `ended_by` has the reason of the end."""
        try:
            async with asyncio.TaskGroup() as tasks:
                checkpoints = tasks.create_task(self.checkpointer.run())
                await tasks.create_task(self.writer.run())
                checkpoints.cancel()
        except BaseExceptionGroup as group:
            self.ended_by = group.exceptions[0]

    def append(self, partition: TopicPartition, records: int = 1) -> tuple[int, bytes, Slot]:
        """Append a batch with a unique value. Returns its offset, the value and the slot."""
        log, value = self.logs[partition], self.world.value()
        if partition not in self.opened:
            self.writer.add(OpeningEntry(log.image()))
            self.opened.add(partition)
        data, head = batch(records, content=value)
        appended = log.append(head, self.world.clock.time_ms())
        self.world.truth.appended[partition, log.leader_epoch, appended.base_offset] = value
        slot = self.writer.add(
            BatchEntry(
                partition, log.leader_epoch, data, head, appended.base_offset, appended.ordinal
            )
        )
        return appended.base_offset, value, slot

    async def produce(self, partition: TopicPartition, records: int = 1) -> None:
        """Append and wait until it is acknowledged. Raises when the incarnation has ended."""
        await self.writer.wait_for_room()
        offset, value, slot = self.append(partition, records)
        await self.writer.durable(slot)
        known = self.world.truth.acknowledged.setdefault(partition, {})
        assert known.setdefault(offset, value) == value
        assert self.logs[partition].high_watermark > offset

    async def keep_producing(self, partition: TopicPartition, pause_seconds: float) -> None:
        """Produce until the incarnation has ended."""
        entropy = self.world.entropy
        try:
            while True:
                await self.produce(partition, records=int(entropy.uniform(1, 4)))
                await self.world.clock.sleep(entropy.uniform(0, pause_seconds))
        except TidelogError:
            return
