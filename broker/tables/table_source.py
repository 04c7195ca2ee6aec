"""Access to tables for readers of segments."""

from __future__ import annotations

from typing import Protocol

from tidelog.errors import CorruptObject, MissingObject, TidelogError
from tidelog.identifiers import TopicId, TopicPartition
from tidelog.storage.segment.segment import Segment
from tidelog.storage.superseded import Superseded
from tidelog.storage.table.table_log import commit_key
from tidelog.storage.table.table_state import PartitionTable, TableState
from tidelog.wal.log.extents import Extent
from tidelog.wal.log.partition_log import PartitionLog


class TableSource(Protocol):
    """The topics' tables as a broker knows them. Errors of `open` and `refresh` name the object."""

    def get(self, topic_id: TopicId) -> TableState | None:
        """A topic's table, if it is open. The caller must not change it."""
        ...

    async def open(self, topic_id: TopicId) -> TableState:
        """A topic's table, read from the store if it is not open."""
        ...

    async def refresh(self, topic_id: TopicId) -> TableState:
        """A topic's table with the commits of other brokers."""
        ...


async def known_table(
    tables: TableSource, partition: TopicPartition, table_next: int
) -> PartitionTable:
    """A partition's part of its topic's table, at least up to `table_next`.

    Reads the table again if it ends below (rule G1). Raises CorruptObject if it still ends below.
    """
    state = await table_up_to(tables, partition, table_next)
    table = state.partition(partition.partition)
    if table.next_offset < table_next:
        raise lost_versions(state, partition, table_next)
    return table


async def table_up_to(
    tables: TableSource, partition: TopicPartition, table_next: int
) -> TableState:
    """A topic's table; it is read again if it ends below `table_next` of a partition.

    The broker may have read the table while another broker led and rolled the partition.
    """
    state = await tables.open(partition.topic_id)
    if state.partition(partition.partition).next_offset < table_next:
        state = await tables.refresh(partition.topic_id)
    return state


def lost_versions(state: TableState, partition: TopicPartition, table_next: int) -> CorruptObject:
    """The error of a table that ends below the log's `table_next`.

    The table has lost versions, from the named one on.
    """
    ends_at = state.partition(partition.partition).next_offset
    return MissingObject(
        commit_key(partition.topic_id, state.version + 1),
        f"it is missing: the table ends at offset {ends_at} of partition {partition.partition},"
        f" and the records below {table_next} had been rolled",
    )


async def missing_segment(
    tables: TableSource, partition: TopicPartition, segment: Segment
) -> MissingObject:
    """The error of a segment whose object is missing (rule F4); the caller raises or keeps it.

    Reads the table again. The error is Superseded if the table no longer lists the segment.
    """
    state = await tables.refresh(partition.topic_id)
    key = segment.key(partition.topic_id)
    if state.partition(partition.partition).holds(segment.name):
        return MissingObject(key, "it is missing, and the table lists it")
    return Superseded(key, "the table does not list it any more")


async def missing_extent(tables: TableSource, log: PartitionLog, extent: Extent) -> MissingObject:
    """The error of an extent whose object is missing (rule F4); the caller raises or keeps it.

    Reads the table again. If it holds the extent's records, another broker has rolled them and the
    collector has deleted the object. The log then drops the extents below the table's end (E4).
    The error is Superseded if the log no longer places these records in the object. An extent of
    which the table holds only a part still needs its object.
    """
    try:
        state = await tables.refresh(log.partition.topic_id)
    except TidelogError:
        # The caller reports the missing object; the table's error would not help more.
        pass
    else:
        next_offset = state.partition(log.partition.partition).next_offset
        log.advance_table(min(next_offset, log.high_watermark))
    found = log.extents.find(extent.last_offset)
    if found is not None and found.key == extent.key:
        return MissingObject(extent.key, "it is missing")
    return Superseded(extent.key, "the partition's log does not refer to it any more")
