"""The tables as those who read segments need them."""

from __future__ import annotations

from typing import Protocol

from tidelog.errors import CorruptObject, MissingObject, TidelogError
from tidelog.identifiers import TopicId, TopicPartition
from tidelog.storage.object_store import ObjectNotFound
from tidelog.storage.segment.segment import Segment
from tidelog.storage.table.table_log import commit_key
from tidelog.storage.table.table_state import PartitionTable, TableState
from tidelog.wal.log.extents import Extent
from tidelog.wal.log.partition_log import PartitionLog


class TableSource(Protocol):
    """The topics' tables as a broker knows them. Errors of `open` and `refresh` name the object."""

    def get(self, topic_id: TopicId) -> TableState | None:
        """A topic's table, if it is open; not to be changed."""
        ...

    async def open(self, topic_id: TopicId) -> TableState:
        """A topic's table, read if need be."""
        ...

    async def refresh(self, topic_id: TopicId) -> TableState:
        """A topic's table with what others have committed."""
        ...


async def known_table(
    tables: TableSource, partition: TopicPartition, table_next: int
) -> PartitionTable:
    """A partition's part of its topic's table, read, and again if it ends below what the log says
    of it (rule G1). CorruptObject if it does so still."""
    state = await tables.open(partition.topic_id)
    if state.partition(partition.partition).next_offset < table_next:
        state = await tables.refresh(partition.topic_id)
    table = state.partition(partition.partition)
    if table.next_offset < table_next:
        raise lost_versions(state, partition, table_next)
    return table


def lost_versions(state: TableState, partition: TopicPartition, table_next: int) -> CorruptObject:
    """What is wrong where a table ends below what the log says of it: versions of it are lost, from
    the one that is named on."""
    ends_at = state.partition(partition.partition).next_offset
    return MissingObject(
        commit_key(partition.topic_id, state.version + 1),
        f"it is missing: the table ends at offset {ends_at} of partition {partition.partition},"
        f" and what lies below {table_next} had been rolled",
    )


async def refuse_if_listed(
    tables: TableSource, partition: TopicPartition, segment: Segment, missing: ObjectNotFound
) -> None:
    """A segment's object is missing: look into the table again (rule F4). CorruptObject if it still
    lists the segment; otherwise the table has changed, and who reads goes on from there."""
    state = await tables.refresh(partition.topic_id)
    if state.partition(partition.partition).holds(segment.name):
        key = segment.key(partition.topic_id)
        raise MissingObject(key, "it is missing, and the table lists it") from missing


async def has_gone_on(tables: TableSource, log: PartitionLog, extent: Extent) -> bool:
    """An object of the WAL is missing: look into the table again (rule F4). Where that reaches
    beyond the extent, the object was rightly deleted: another broker, of which this one took over,
    has rolled it. The log forgets what is in the table (E4), and who reads goes on from there."""
    partition = log.partition
    try:
        state = await tables.refresh(partition.topic_id)
    except TidelogError:
        # The missing object is told of; what is wrong with the table would be of no more help.
        return False
    next_offset = state.partition(partition.partition).next_offset
    log.advance_table(min(next_offset, log.high_watermark))
    return extent.base_offset < log.table_next
