"""The end of a partition's table, and the comparison of log and table."""

from __future__ import annotations

from tidelog.broker.partitions.partitions import Partition
from tidelog.broker.roll.queue import RollQueue
from tidelog.broker.tables.table_source import lost_versions
from tidelog.errors import CorruptObject
from tidelog.storage.table.table_log import log_prefix
from tidelog.storage.table.table_state import TableState


def end_of(partition: Partition, state: TableState) -> int:
    """The partition's next offset that is not in the table."""
    return state.partition(partition.log.partition.partition).next_offset


def learn_table_end(
    queue: RollQueue, partition: Partition, state: TableState
) -> CorruptObject | None:
    """Advance the log to the table's end.

    Returns the fault if log and table disagree: the table is ahead of every acknowledged record, or
    has lost versions.
    """
    log, ends_at = partition.log, end_of(partition, state)
    if ends_at < log.table_next:
        return lost_versions(state, log.partition, log.table_next)
    if ends_at > log.high_watermark:
        return CorruptObject(
            log_prefix(log.partition.topic_id),
            f"for {partition} the table ends at offset {ends_at}, and all that is there of its"
            f" log at {log.high_watermark}",
        )
    if ends_at > log.table_next:
        log.advance_table(ends_at)
        queue.rolled(partition)
    return None
