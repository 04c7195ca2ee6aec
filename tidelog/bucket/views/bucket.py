"""A bucket read without a broker (rules G1 to G4). Nothing is ever written.

A view of some partitions is read in this order: the tables' versions; the metadata log; the
partitions' bases and their WALs to their durable ends; the metadata log once more. Then:

- A base that knows of a later end of the table than we read is too new for that table version: what
  lies between would be missing. The partition is read again (G1).
- A partition whose tenures have changed meanwhile is read again: a WAL that we took for live may
  have been retired, and slots of it deleted.
- An object that is missing was deleted because something newer took its place, or is lost. The
  partition is read again; the same object is missing again: it is lost (F4).

An atomic view (`atomic`) begins over from the tables for each of these. A reader that dies has
changed nothing. One that takes longer than `log.delete.grace.ms` may miss objects that it was told
of (MissingObject), and takes a new view.
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
        """Reads what views list of tails."""

    @classmethod
    async def open(
        cls,
        store: ObjectStore,
        clock: Clock,
        entropy: Entropy,
        offload: Offload,
        settings: ClusterSettings | None = None,
    ) -> Bucket:
        """The bucket, its metadata log read. InvalidConfiguration where there is no cluster;
        UnsupportedFormat, CorruptObject, StoreError."""
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
        """The bucket, of which nothing is known before `refresh`.

        `remembers`: keeps tables and WALs between views, so that the next one costs what has been
        added; for who takes views again and again. It takes memory for all that it has seen of the
        topics that it is asked for, and does not notice that something it has read is lost since.
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
        """The store, and what else a reader of it needs."""
        return self._access

    @property
    def state(self) -> ClusterState:
        """Topics, tenures, incarnations, producer ids and settings, as of the last look."""
        return self._access.cluster.state

    async def refresh(self) -> ClusterState:
        """Look at the metadata log again."""
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
        """Some partitions; those that are deleted meanwhile are left out. Raises StoreError, also
        where the bucket changes faster than it can be read, and UnsupportedFormat."""
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
        """A partition's rows at offsets [start, upper), those of segments and of the tail
        (`partition_rows`). For an atomic view give its `keep`."""
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
        """What `read` finds. None: the bucket has changed, so it is asked again; the same object
        missing twice is lost (F4). Raises StoreNotApplied where it changes too fast."""
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
