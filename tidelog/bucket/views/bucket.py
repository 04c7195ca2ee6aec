"""A bucket read without a broker (rules G1 to G4). Nothing is ever written.

The reader of a view of some partitions reads in this order:

1. the versions of the tables;
2. the metadata log;
3. the partitions' bases, and their WALs to their durable ends;
4. the metadata log once more.

In three cases the reader reads a partition again:

- The base knows a later end of the table than the reader has read. Records between the two ends
  would be missing (G1).
- The partition's tenures have changed meanwhile. A WAL that the reader took for live may have been
  retired, and slots of it deleted.
- An object is missing. Something newer took its place, or it is lost. If the same object is missing
  a second time, it is lost (F4).

In each of these cases the reader of an atomic view (`atomic`) begins again with the tables. A
reader that dies has changed nothing. A view that takes longer than `log.delete.grace.ms` may name
objects that are deleted by now (MissingObject): the reader takes a new view.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from typing import TypeVar

import pyarrow as pa

from tidelog.bucket.cluster_reader import ClusterReader
from tidelog.bucket.views.partition_view import PartitionView
from tidelog.bucket.views.reading import BucketAccess, BucketView, NoSuchTopic, Reading
from tidelog.bucket.views.remembered import RememberedTables
from tidelog.bucket.views.rows import ALL_TIMES, Times, partition_rows
from tidelog.bucket.views.tails import Keep, TailReader
from tidelog.clock import Clock
from tidelog.coordinator.cluster.records.settings import ClusterSettings
from tidelog.coordinator.cluster.records.topics import Topic
from tidelog.coordinator.cluster.state.state import ClusterState
from tidelog.entropy import Entropy
from tidelog.errors import MissingObject
from tidelog.identifiers import TopicPartition
from tidelog.records.row_columns import ROW_SCHEMA
from tidelog.storage.object_store import ObjectStore
from tidelog.storage.superseded import Looks
from tidelog.storage.table.table_state import TableState
from tidelog.wal.recover.wal_reader import WalReader
from tidelog.workers.offload import Offload

T = TypeVar("T")

VIEW_ATTEMPTS_MAX = 10
TOPICS_NAMED_MAX = 5
"""Topics that the refusal of an absent one names."""
_PAUSE_SECONDS = 0.1


class Bucket:
    """A cluster's bucket. Use `open`. The store may be read-only."""

    def __init__(self, access: BucketAccess) -> None:
        self._access = access
        self.tails = TailReader(access.store, access.offload)
        """Reads the tails of views."""

    @classmethod
    async def open(
        cls,
        store: ObjectStore,
        clock: Clock,
        entropy: Entropy,
        offload: Offload,
        settings: ClusterSettings | None = None,
    ) -> Bucket:
        """A bucket whose metadata log was read.

        Raises InvalidConfiguration if there is no cluster; UnsupportedFormat, CorruptObject,
        StoreError.
        """
        bucket = cls.unread(store, clock, entropy, offload, settings)
        await bucket.refresh()
        return bucket

    @classmethod
    def unread(
        cls,
        store: ObjectStore,
        clock: Clock,
        entropy: Entropy,
        offload: Offload,
        settings: ClusterSettings | None = None,
        *,
        remembers: bool = False,
    ) -> Bucket:
        """A bucket that was not read yet: call `refresh` first.

        `remembers`: the bucket keeps tables and WALs between views, so that a further view reads
        only additions. It is for readers that take many views. All tables and WALs that it has read
        stay in memory. It does not notice that an object which it has read is lost since.
        """
        settings = settings or ClusterSettings()
        access = BucketAccess(
            store=store,
            clock=clock,
            entropy=entropy,
            offload=offload,
            settings=settings,
            cluster=ClusterReader(store, clock, offload, settings),
            wals=WalReader(store, offload, remembers=remembers),
            remembered=RememberedTables() if remembers else None,
        )
        return cls(access)

    @property
    def access(self) -> BucketAccess:
        """The store, the clock and the other parts that a reader uses."""
        return self._access

    @property
    def state(self) -> ClusterState:
        """Topics, tenures, incarnations, producer ids and settings, as of the last `refresh`."""
        return self._access.cluster.state

    async def refresh(self) -> ClusterState:
        """Read the new entries of the metadata log."""
        return await self._access.cluster.refresh()

    def topic(self, name: str) -> Topic:
        """The topic of this name. Raises NoSuchTopic."""
        topic = self.state.topic_named(name)
        if topic is None:
            names = sorted(
                each.name for each in self.state.topics.values() if not each.name.startswith("__")
            )
            some = ", ".join(names[:TOPICS_NAMED_MAX]) or "none"
            more = ", ..." if len(names) > TOPICS_NAMED_MAX else ""
            raise NoSuchTopic(
                f"{self._access.store.url} has no topic {name}; its topics are {some}{more}"
            )
        return topic

    async def table(self, topic: Topic) -> TableState:
        """A topic's table as it is now, without its tails. Raises CorruptObject, StoreError."""
        return (await self._access.open_table(topic)).state

    async def view(self, *topics: str) -> BucketView:
        """All partitions of some topics. Raises NoSuchTopic, StoreError, UnsupportedFormat."""
        return await self.view_partitions(await self.partitions_of(topics))

    async def view_partitions(self, partitions: Iterable[TopicPartition]) -> BucketView:
        """A view of some partitions, without those that are deleted meanwhile.

        Raises StoreError, also if the bucket changes faster than it can be read, and
        UnsupportedFormat.
        """
        reading = Reading(self._access)
        waiting = set(partitions)

        async def read() -> BucketView | None:
            nonlocal waiting
            waiting = await reading.read_tails(waiting, await reading.read_ends(waiting))
            return None if waiting else reading.view

        return await self.read_consistently(read)

    def rows(
        self,
        view: PartitionView,
        start: int = 0,
        upper: int | None = None,
        *,
        columns: Sequence[str] = ROW_SCHEMA.names,
        times: Times = ALL_TIMES,
        committed: bool = True,
        keep: Keep | None = None,
    ) -> AsyncIterator[pa.RecordBatch]:
        """A partition's rows at offsets [start, upper), from segments and tail (`partition_rows`).

        For an atomic view pass its `keep`.
        """
        return partition_rows(
            self._access,
            self.tails,
            view,
            start,
            upper,
            columns=columns,
            times=times,
            committed=committed,
            keep=keep,
        )

    async def read_consistently(self, read: Callable[[], Awaitable[T | None]]) -> T:
        """The result of `read`, called again as long as it returns None: the bucket has changed.

        Raises MissingObject if the same object is missing twice: it is lost (F4). Raises
        StoreNotApplied if the bucket changes too fast.
        """
        looks = Looks(self._access.store.url, VIEW_ATTEMPTS_MAX)
        while True:
            try:
                found = await read()
                if found is not None:
                    return found
                looks.changed()
            except MissingObject as missing:
                looks.missed(missing)
            await self._access.clock.sleep(_PAUSE_SECONDS * (looks.ended - 1))

    async def partitions_of(self, topics: Iterable[str]) -> list[TopicPartition]:
        """All partitions of some topics, as of now. Raises NoSuchTopic, StoreError."""
        await self.refresh()
        return [
            TopicPartition(topic.topic_id, number)
            for topic in map(self.topic, topics)
            for number in range(topic.partition_count)
        ]
