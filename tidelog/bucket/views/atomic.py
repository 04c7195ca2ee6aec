"""An atomic snapshot over topics (rule G4): no transaction is seen in part.

The snapshot does not end at the last stable offset: it has decided records above an open
transaction. It is no cut in time either. Two coordinators may decide two transactions while the
reader takes the snapshot: it may have the later one without the earlier one. `decisions` gives the
reasons.

The reader takes these steps, one after the other:

1. the tables' versions;
2. the names of the newest snapshots of the coordinators' states, and the durable end of each WAL;
3. the coordinators' logs to their durable ends (t0), and those snapshots;
4. the tails; then the transactions in them, from the indexes of the WAL objects.

If a partition must be read again, the reader begins with step 1. It does the same if a tail was
copied into a merged object since step 2: the copy does not tell when its batches became durable.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from tidelog.bucket.views.atomic_view import AtomicView
from tidelog.bucket.views.bucket import Bucket
from tidelog.bucket.views.decisions import Decisions, TailTransaction, excluded_transactions
from tidelog.bucket.views.partition_view import PartitionView
from tidelog.bucket.views.reading import BucketAccess, BucketView, Reading
from tidelog.bucket.views.states import STATES_AT_ONCE_MAX, TRANSACTIONS, restore
from tidelog.bucket.views.tails import TailReader
from tidelog.concurrency import read_all
from tidelog.coordinator.cluster.state.state import ClusterState
from tidelog.identifiers import Incarnation, Slot, TopicPartition, TransactionName
from tidelog.records.parse.varints import Booleans
from tidelog.wal.format.object_format import MERGED_FOLDER, wal_position
from tidelog.wal.read.ordinals import IndexedBatches, adopted_batches
from tidelog.wal.recover.wal_end import durable_end

INDEXES_AT_ONCE_MAX = 16


async def atomic_view(bucket: Bucket, *topics: str) -> AtomicView:
    """All partitions of some topics, such that no transaction is seen in part (rule G4).

    Raises CorruptObject, also for a coordinator's unreadable state, and the errors of
    `Bucket.view`.
    """
    wanted = await bucket.partitions_of(topics)
    return await bucket.read_consistently(
        lambda: read_atomically(bucket.access, bucket.tails, wanted)
    )


async def read_atomically(
    access: BucketAccess, tails: TailReader, partitions: Iterable[TopicPartition]
) -> AtomicView | None:
    """An atomic view of some partitions; None if the bucket changed too much while it was read.

    Raises CorruptObject and MissingObject for coordinators' states, StoreError, UnsupportedFormat.
    """
    wanted = set(partitions)
    reading = Reading(access)
    ends = await reading.read_ends(wanted)
    coordinators = Reading(access)
    internal = _coordinators_in(await access.cluster.refresh())
    newest = await coordinators.read_ends(internal)
    early = await _durable_objects(access)
    if await coordinators.read_tails(internal, newest):
        return None
    decisions = await _read_decisions(access, tails, coordinators.view, internal)
    if await reading.read_tails(wanted, ends):
        return None
    if any(early.holds(key) is None for key in _tail_keys(reading.view)):
        return None
    found = await _transactions_in(tails, reading.view, early)
    return AtomicView(reading.view, excluded_transactions(decisions, found))


def _coordinators_in(state: ClusterState) -> list[TopicPartition]:
    topic = state.topic_named(TRANSACTIONS.topic)
    if topic is None:
        return []
    return [TopicPartition(topic.topic_id, number) for number in range(topic.partition_count)]


@dataclass(frozen=True, slots=True)
class _DurableObjects:
    """The durable objects of WALs at one moment."""

    ends: Mapping[Incarnation, Slot]
    merged: frozenset[str]

    def holds(self, key: str) -> bool | None:
        """Whether an object's batches were durable by then.

        None for a merged object that was written since: its sources may or may not have been there.
        """
        position = wal_position(key)
        if position is not None:
            return position.slot < self.ends.get(position.incarnation, 0)
        return True if key in self.merged else None


def _tail_keys(view: BucketView) -> frozenset[str]:
    """The keys of objects that may hold markers. Staged objects hold none."""
    found = (_own_keys(each) for each in view.partitions.values())
    return frozenset[str]().union(*found)


def _own_keys(partition: PartitionView) -> list[str]:
    """The tail's objects that a WAL's owner wrote, each once."""
    adopted = {extent.key for extent in partition.tail.adopted()}
    return [key for key in dict.fromkeys(partition.tail.keys) if key not in adopted]


async def _durable_objects(access: BucketAccess) -> _DurableObjects:
    """The present durable ends of all WALs, and the present merged objects."""
    merged = frozenset([meta.key async for meta in access.store.list(MERGED_FOLDER)])
    state = access.cluster.state

    async def end_of(incarnation: Incarnation) -> Slot:
        return await durable_end(access.store, incarnation)

    growing = [info.incarnation for info in state.brokers.values()]
    found = await read_all(end_of, growing, asyncio.Semaphore(INDEXES_AT_ONCE_MAX))
    ends = {wal.incarnation: wal.end_slot for wal in state.retired.values()}
    return _DurableObjects(ends | dict(zip(growing, found, strict=True)), merged)


async def _read_decisions(
    access: BucketAccess,
    tails: TailReader,
    view: BucketView,
    coordinators: Iterable[TopicPartition],
) -> list[Decisions]:
    async def decisions_of(partition: TopicPartition) -> Decisions:
        found = Decisions()
        await restore(access, tails, view.partition(partition), TRANSACTIONS, found.apply)
        return found

    return await read_all(decisions_of, coordinators, asyncio.Semaphore(STATES_AT_ONCE_MAX))


async def _transactions_in(
    tails: TailReader, view: BucketView, early: _DurableObjects
) -> list[TailTransaction]:
    """The transactions that have data in the tails, as each partition shows them."""

    async def look_into(partition: PartitionView) -> list[TailTransaction]:
        seen = _Seen(partition, early)
        for key in _own_keys(partition):
            seen.add(key, await tails.indexed(key, partition.partition))
        seen.add("", adopted_batches(partition.tail))
        return seen.transactions()

    views = [each for each in view.partitions.values() if len(each.tail)]
    found = await read_all(look_into, views, asyncio.Semaphore(INDEXES_AT_ONCE_MAX))
    return [each for transactions in found for each in transactions]


class _Seen:
    """The transactions in one partition's tail. Pure."""

    def __init__(self, view: PartitionView, early: _DurableObjects) -> None:
        self._early = early
        self._start = max(view.log_start, view.table_next)
        self._end = view.high_watermark
        self._open = {
            TransactionName(producer.producer_id, producer.ordinal)
            for producer in view.image.producers
            if producer.has_open_transaction
        }
        self._data: set[TransactionName] = set()
        self._early_markers: set[TransactionName] = set()

    def add(self, key: str, indexed: IndexedBatches) -> None:
        """Add the batches of one object's index."""
        # The log's start may lie within a batch: the rest of the batch is seen.
        inside = (indexed.last_offsets >= self._start) & (indexed.base_offsets < self._end)
        inside &= indexed.is_transactional
        self._data |= _names(indexed, inside & ~indexed.is_marker)
        if self._early.holds(key):
            self._early_markers |= _names(indexed, inside & indexed.is_marker)

    def transactions(self) -> list[TailTransaction]:
        """The transactions with data in this tail."""
        return [
            TailTransaction(name, name in self._open, name in self._early_markers)
            for name in self._data
        ]


def _names(indexed: IndexedBatches, chosen: Booleans) -> set[TransactionName]:
    pairs = np.stack([indexed.producer_ids[chosen], indexed.ordinals[chosen]], 1)
    return {TransactionName(*pair) for pair in np.unique(pairs, axis=0).tolist()}
