"""The last step of recovery: the logs of recovered partitions advance to the ends of their tables.

A collection may have deleted WAL objects whose records a table has. So before the broker serves a
partition, its log advances to its table's end (E4). Afterwards the roller learns the age of the
remaining records.

A death in this step has no effect, since the step only reads.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence

from tidelog.broker.partitions.partitions import Partition
from tidelog.broker.roll.queue import RollQueue, end_of
from tidelog.broker.tables.tables import NoTable, Tables
from tidelog.clock import Clock
from tidelog.concurrency import read_all
from tidelog.errors import CorruptObject, TidelogError, UnsupportedFormat, without_frames
from tidelog.identifiers import TopicId, TopicPartition
from tidelog.storage.object_store import ObjectStore, StoreError
from tidelog.storage.table.table_state import TableState

logger = logging.getLogger(__name__)

READS_AT_ONCE_MAX = 16


class RecoveredPartitions:
    """Advances recovered partitions before they are listed, and enters them into the roll queue."""

    def __init__(self, tables: Tables, queue: RollQueue, store: ObjectStore, clock: Clock) -> None:
        self._tables = tables
        self._queue = queue
        self._store = store
        self._clock = clock
        self._stopped: list[tuple[Partition, TidelogError]] = []
        self._by_oldest_object: dict[str, list[TopicPartition]] = {}
        """The partitions, by the object of their oldest batch."""

    async def advance(self, partitions: Iterable[Partition]) -> None:
        """Advance each log to its table's end. Raises StoreError.

        A partition whose log has lost acknowledged records gets the fault. A partition without
        records in the WAL needs its table only later, so it opens none. But a table that is open
        already may be too old for it, and is read again.
        """
        topics: dict[TopicId, list[Partition]] = {}
        for partition in partitions:
            topic_id = partition.log.partition.topic_id
            if partition.is_internal or partition.fault is not None:
                continue
            if len(partition.log.extents) or self._tables.get(topic_id) is not None:
                topics.setdefault(topic_id, []).append(partition)
        await read_all(self._advance_topic, topics.values(), asyncio.Semaphore(READS_AT_ONCE_MAX))

    def enter(self, partitions: Iterable[Partition]) -> None:
        """Enter partitions that have been listed: the roller finds them from now on."""
        for partition in partitions:
            log = partition.log
            if partition.is_internal or partition.fault is not None or not len(log.extents):
                continue
            if log.high_watermark > log.table_next:
                self._queue.note(log.partition)
            self._by_oldest_object.setdefault(log.extents[0].key, []).append(log.partition)
        for partition, error in self._stopped:
            self._queue.stop([partition], error)
        self._stopped.clear()

    async def _advance_topic(self, partitions: Sequence[Partition]) -> None:
        try:
            state = await self._table(partitions[0].log.partition.topic_id)
        except NoTable:
            return
        except (CorruptObject, UnsupportedFormat) as error:
            # The broker serves the WAL's records; a read of the table's records meets the error
            # itself.
            self._stopped += [(partition, error) for partition in partitions]
            return
        for partition in partitions:
            fault = self._queue.advance_to_table(partition, state)
            if fault is None:
                continue
            if end_of(partition, state) > partition.log.high_watermark:
                # The log has lost acknowledged records: new ones would take their offsets.
                partition.fault = without_frames(fault)
            else:
                self._stopped.append((partition, fault))

    async def _table(self, topic_id: TopicId) -> TableState:
        """The topic's present table. Other brokers may have led and rolled these partitions.

        They may have committed since the beginning of an opening that is under way.
        """
        if self._tables.may_be_old(topic_id):
            return await self._tables.refresh_or_reopen(topic_id)
        return await self._tables.open(topic_id)

    async def load_ages(self) -> None:
        """Let each partition wait since the put of its oldest object."""
        waiting, self._by_oldest_object = self._by_oldest_object, {}
        await read_all(self._load_age, waiting.items(), asyncio.Semaphore(READS_AT_ONCE_MAX))

    async def _load_age(self, waiting: tuple[str, Sequence[TopicPartition]]) -> None:
        key, places = waiting
        try:
            age_ms = self._clock.time_ms() - (await self._store.head(key)).modified_ms
        except StoreError as error:
            # The age of these records counts from now; the roll meets the error again.
            logger.warning("an object's age is unknown", extra={"why": str(error)})
            return
        since = self._clock.monotonic() - max(0, age_ms) / 1000
        for place in places:
            self._queue.set_waiting_since(place, since)
