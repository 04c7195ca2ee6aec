"""The last step of recovery: partitions that were recovered from the WAL learn from their tables.

A collection may have removed records from the WAL that a table has. So before the broker serves
anything, each partition's log advances to its table's end (E4). After the start, the roller learns
the age of the remaining records.

A death in this step has no effect: it only reads.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from tidelog.broker.partitions.partitions import Partition, PartitionRegistry
from tidelog.broker.roll.queue import RollQueue, end_of
from tidelog.broker.tables.tables import NoTable, Tables
from tidelog.clock import Clock
from tidelog.concurrency import read_all
from tidelog.errors import CorruptObject, UnsupportedFormat
from tidelog.identifiers import TopicId, TopicPartition
from tidelog.storage.object_store import ObjectStore, StoreError

logger = logging.getLogger(__name__)

READS_AT_ONCE_MAX = 16


class RecoveredPartitions:
    """Advances recovered partitions at the start, and dates them when the roller begins."""

    def __init__(
        self,
        partitions: PartitionRegistry,
        tables: Tables,
        queue: RollQueue,
        store: ObjectStore,
        clock: Clock,
    ) -> None:
        self._partitions = partitions
        self._tables = tables
        self._queue = queue
        self._store = store
        self._clock = clock
        self._by_oldest_object: dict[str, list[TopicPartition]] = {}
        """The partitions, by the object of their oldest batch."""

    async def open(self) -> None:
        """Advance every recovered log to its table's end. Raises StoreError."""
        topics: dict[TopicId, list[Partition]] = {}
        for partition in self._partitions:
            if not partition.is_internal and partition.fault is None and len(partition.log.extents):
                topics.setdefault(partition.log.partition.topic_id, []).append(partition)
        await read_all(self._open_topic, topics.values(), asyncio.Semaphore(READS_AT_ONCE_MAX))

    async def _open_topic(self, partitions: Sequence[Partition]) -> None:
        try:
            state = await self._tables.open(partitions[0].log.partition.topic_id)
        except NoTable:
            return
        except (CorruptObject, UnsupportedFormat) as error:
            # The broker serves the WAL's records; a read of the table's part meets the fault
            # itself.
            self._queue.stop(partitions, error)
            return
        for partition in partitions:
            log = partition.log
            fault = self._queue.learn_table_end(partition, state)
            if fault is not None and end_of(partition, state) > log.high_watermark:
                # The log has lost acknowledged records: new ones would take their offsets.
                self._partitions.condemn(partition, fault)
                continue
            if fault is not None:
                self._queue.stop([partition], fault)
            if log.high_watermark > log.table_next:
                self._queue.note(log.partition)
            if len(log.extents):
                oldest = log.extents[0].key
                self._by_oldest_object.setdefault(oldest, []).append(log.partition)

    async def load_ages(self) -> None:
        """Set the time since which each partition waits: that of its oldest object."""
        await read_all(
            self._load_age, list(self._by_oldest_object), asyncio.Semaphore(READS_AT_ONCE_MAX)
        )
        self._by_oldest_object.clear()

    async def _load_age(self, key: str) -> None:
        try:
            age_ms = self._clock.time_ms() - (await self._store.head(key)).modified_ms
        except StoreError as error:
            # Its age counts from now; the roll meets the error again.
            logger.warning("an object's age is unknown", extra={"why": str(error)})
            return
        since = self._clock.monotonic() - max(0, age_ms) / 1000
        for place in self._by_oldest_object[key]:
            self._queue.set_waiting_since(place, since)
