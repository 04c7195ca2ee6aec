"""Reads some partitions once: table versions, metadata, bases and WALs.

`bucket` explains the order, and when a partition is read again.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from tidelog.bucket.cluster_reader import ClusterReader
from tidelog.bucket.views.partition_view import PartitionView, TableEnd, view_of
from tidelog.bucket.views.remembered import RememberedTables
from tidelog.clock import Clock
from tidelog.concurrency import read_all
from tidelog.coordinator.cluster.log.leases import read_durable_end
from tidelog.coordinator.cluster.records.settings import ClusterSettings
from tidelog.coordinator.cluster.records.topics import Topic
from tidelog.coordinator.cluster.state.state import ClusterState
from tidelog.coordinator.snapshot_format import SnapshotOrigin
from tidelog.coordinator.snapshots import newest_snapshot
from tidelog.entropy import Entropy
from tidelog.errors import CorruptObject, MissingObject, Refused
from tidelog.identifiers import Incarnation, Slot, TopicId, TopicPartition
from tidelog.storage.object_store import ObjectStore
from tidelog.storage.superseded import Looks
from tidelog.storage.table.table_log import TableLog, commit_key
from tidelog.storage.table.table_state import NO_VERSION, PartitionTable, TableState
from tidelog.wal.log.tenure import Tenure
from tidelog.wal.recover.recovery import Recovered, recover
from tidelog.wal.recover.wal_reader import WalReader
from tidelog.workers.offload import Offload

TABLES_AT_ONCE_MAX = 16

Table: TypeAlias = TableState | CorruptObject
"""A topic's table, or why it cannot be read."""


class NoSuchTopic(Refused):
    """The cluster has no such topic or partition."""


@dataclass(frozen=True, slots=True)
class BucketAccess:
    """The store, the clock and the other parts that a reading uses."""

    store: ObjectStore
    clock: Clock
    entropy: Entropy
    offload: Offload
    settings: ClusterSettings
    cluster: ClusterReader
    wals: WalReader
    remembered: RememberedTables | None = None
    """The tables kept for readers that take many views; None: each view reads them anew."""

    def origin(self, topic: Topic, partition: int) -> SnapshotOrigin:
        """The origin of the snapshots of an internal topic's partition."""
        cluster_id = self.cluster.state.cluster_id
        return SnapshotOrigin(cluster_id, topic.name, topic.topic_id, partition)

    async def table(self, topic: Topic) -> TableState:
        """A topic's table as it is now. Raises CorruptObject, UnsupportedFormat, StoreError."""
        if self.remembered is not None:
            return await self.remembered.table(topic, self.open_table)
        return (await self.open_table(topic)).state

    async def open_table(self, topic: Topic) -> TableLog:
        """A topic's table, read anew."""
        return await TableLog.open(
            self.store,
            self.clock,
            self.entropy,
            self.offload,
            topic.topic_id,
            topic.name,
            self.settings.delete_grace_ms / 1000,
        )


@dataclass(frozen=True, slots=True)
class BucketView:
    """Some partitions of a cluster, each as of one moment; the moments differ."""

    state: ClusterState
    """The metadata log's state when the last of them was read."""
    tables: dict[TopicId, TableState] = field(default_factory=dict)
    """The newest read version of each topic's table, without internal topics.

    A partition's view names its own version.
    """
    partitions: dict[TopicPartition, PartitionView] = field(default_factory=dict)
    failures: dict[TopicPartition, CorruptObject] = field(default_factory=dict)
    """Partitions that cannot be proved right, each with the damaged object."""
    ends: dict[Incarnation, Slot] = field(default_factory=dict)
    """The end to which each WAL was read."""

    def name_of(self, partition: TopicPartition) -> str:
        """The partition's name, with the topic's id if the topic was deleted meanwhile."""
        topic = self.state.topics.get(partition.topic_id)
        return str(partition) if topic is None else f"{topic.name}-{partition.partition}"

    def partition(self, partition: TopicPartition) -> PartitionView:
        """One partition. Raises CorruptObject; NoSuchTopic if it was deleted meanwhile."""
        failure = self.failures.get(partition)
        if failure is not None:
            raise failure
        found = self.partitions.get(partition)
        if found is None:
            raise NoSuchTopic(f"the partition {partition} was not asked for, or is deleted")
        return found

    def of_topic(self, topic_id: TopicId) -> list[PartitionView]:
        """The topic's partitions that were read, by number. Raises CorruptObject."""
        known = sorted({*self.partitions, *self.failures})
        return [self.partition(each) for each in known if each.topic_id == topic_id]


@dataclass(frozen=True, slots=True)
class TableEnds:
    """The ends of some partitions' tables, read before their tails."""

    tables: Mapping[TopicId, Table]
    snapshots: Mapping[TopicPartition, TableEnd]
    """The newest state snapshot of each internal partition, which has no table."""

    def of(self, partition: TopicPartition) -> TableEnd | CorruptObject | None:
        """One partition's end; None if its topic was created after the tables were read."""
        table = self.tables.get(partition.topic_id)
        if isinstance(table, TableState):
            key = commit_key(table.topic_id, table.version)
            following = commit_key(table.topic_id, table.version + 1)
            part = table.partition(partition.partition)
            return TableEnd(table.version, part, key, lambda _: following)
        return self.snapshots.get(partition) if table is None else table


class Reading:
    """Collects views of partitions until each is settled."""

    def __init__(self, access: BucketAccess) -> None:
        self._access = access
        self._found = BucketView(access.cluster.state)
        self._looks: defaultdict[TopicPartition, Looks] = defaultdict(Looks)
        self._rolled: dict[TopicPartition, int] = {}
        """The least ends of the partitions' tables, by the bases read so far."""

    @property
    def view(self) -> BucketView:
        """The views so far."""
        return self._found

    async def read_ends(self, partitions: Iterable[TopicPartition]) -> TableEnds:
        """The present ends of these partitions' tables."""
        access = self._access
        state = access.cluster.state
        wanted = [each for each in partitions if each.topic_id in state.topics]
        topics = {each.topic_id: state.topics[each.topic_id] for each in wanted}
        at_once = asyncio.Semaphore(TABLES_AT_ONCE_MAX)

        async def read_table(topic: Topic) -> Table:
            try:
                return await access.table(topic)
            except CorruptObject as error:
                return error

        async def read_snapshot(partition: TopicPartition) -> TableEnd:
            origin = access.origin(topics[partition.topic_id], partition.partition)
            newest = await newest_snapshot(access.store, origin)
            key = origin.prefix if newest is None else origin.key(newest)
            return TableEnd(NO_VERSION, PartitionTable(newest or 0), key, origin.key)

        tabled = [topic for topic in topics.values() if not topic.internal]
        internal = [each for each in wanted if topics[each.topic_id].internal]
        tables = await read_all(read_table, tabled, at_once)
        snapshots = await read_all(read_snapshot, internal, at_once)
        return TableEnds(
            {topic.topic_id: table for topic, table in zip(tabled, tables, strict=True)},
            dict(zip(internal, snapshots, strict=True)),
        )

    async def read_tails(
        self, partitions: Iterable[TopicPartition], ends: TableEnds
    ) -> set[TopicPartition]:
        """Read the tails behind these ends.

        Returns the partitions whose tables must be read again. Partitions that are deleted
        meanwhile are left out.
        """
        access = self._access
        state = await access.cluster.refresh()
        tenures = {each: found for each in partitions if (found := state.tenures(each))}
        retired = {wal.incarnation: wal.end_slot for wal in state.retired.values()}
        told = await self._durable_ends(tenures)
        recovered = await recover(
            access.store,
            access.clock,
            access.offload,
            tenures,
            retired,
            reader=access.wals,
            told=told,
        )
        for source, stamp in recovered.stamps.items():
            await access.cluster.verify(stamp, source)
        after = await access.cluster.refresh()
        again = set()
        for partition in sorted(tenures):
            topic = after.topics.get(partition.topic_id)
            if topic is None:
                continue
            is_same = after.tenures(partition) == tenures[partition]
            if not is_same or not self._settle(topic, partition, ends.of(partition), recovered):
                again.add(partition)
        tables = {
            topic_id: table
            for topic_id, table in ends.tables.items()
            if isinstance(table, TableState) and topic_id in after.topics
        }
        self._found = BucketView(
            after,
            self._found.tables | tables,
            self._found.partitions,
            self._found.failures,
            self._found.ends | recovered.ends,
        )
        return again

    async def _durable_ends(
        self, tenures: Mapping[TopicPartition, Iterable[Tenure]]
    ) -> dict[Incarnation, Slot]:
        """The durable ends of growing WALs, by their owners' leases (C10)."""
        access = self._access
        brokers = access.cluster.state.brokers
        named = {tenure.incarnation for each in tenures.values() for tenure in each}
        growing = [brokers[each.epoch] for each in sorted(named) if each.epoch in brokers]
        return {info.incarnation: await read_durable_end(access.store, info) for info in growing}

    def _settle(
        self,
        topic: Topic,
        partition: TopicPartition,
        end: TableEnd | CorruptObject | None,
        recovered: Recovered,
    ) -> bool:
        """Note the partition's view or failure; False if the partition must be read again."""
        failure = end if isinstance(end, CorruptObject) else recovered.failures.get(partition)
        if isinstance(failure, MissingObject) and not self._looks[partition].is_lost(failure):
            return False
        if failure is not None:
            self._found.failures[partition] = failure
            return True
        if end is None or isinstance(end, CorruptObject):
            return False
        image = recovered.images[partition]
        rolled, following = self._rolled.get(partition, 0), end.table.next_offset
        try:
            if following < rolled:
                # This end was read after the base that names a later one, and no table shrinks.
                place = f"{topic.name}-{partition.partition}"
                why = f"it is missing: offsets {following} to {rolled - 1} of {place} are lost"
                raise MissingObject(end.following(rolled), why)
            view = view_of(topic.name, image, end, is_internal=topic.internal)
        except CorruptObject as error:
            self._found.failures[partition] = error
            return True
        self._rolled[partition] = image.table_next
        if view is not None:
            self._found.partitions[partition] = view
        return view is not None
