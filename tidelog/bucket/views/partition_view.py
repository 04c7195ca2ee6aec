"""A partition as the bucket shows it: its part of the table, and the tail behind that. Pure.

The broker's own partition log replays the tail (rule G3). So high watermark, last stable offset and
aborted transactions are those of a broker that recovers the partition.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tidelog.errors import CorruptObject
from tidelog.identifiers import TopicPartition
from tidelog.records.row_columns import AbortedRange
from tidelog.storage.table.table_state import PartitionTable, TableSegment
from tidelog.wal.log.extents import Extents
from tidelog.wal.log.image import PartitionImage
from tidelog.wal.log.partition_log import PartitionLog


class TableEnd(NamedTuple):
    """One partition's part of a table as of a version.

    Records of an internal topic go into snapshots of a coordinator's state. So it has no segments,
    and `next_offset` is that of the newest snapshot.
    """

    version: int
    table: PartitionTable
    key: str
    """The object that names this end, for errors."""
    following: Callable[[int], str]
    """The key of the object by which the table would reach to an offset, for errors."""


@dataclass(frozen=True, slots=True)
class PartitionView:
    """One partition at one moment. Values may be sent to other processes."""

    topic: str
    partition: TopicPartition
    is_internal: bool
    table_version: int
    """NO_VERSION if the table has no commit yet."""
    segments: Sequence[TableSegment]
    """By offset. Readers must not see rows below the log start."""
    image: PartitionImage
    """As of the WAL's end; its extents are the tail, from the table's end on."""
    last_stable_offset: int
    """Above it transactions are undecided."""

    @property
    def log_start(self) -> int:
        """The first offset that may be read.

        In an internal topic it lies above all records that a snapshot has replaced.
        """
        image = self.image
        return max(image.log_start, image.table_next) if self.is_internal else image.log_start

    @property
    def table_next(self) -> int:
        """The first offset of the tail, behind the table."""
        return self.image.table_next

    @property
    def high_watermark(self) -> int:
        """The durable end."""
        return self.image.next_offset

    @property
    def tail(self) -> Extents:
        """The places of the batches from the table's end or the log start to the high watermark."""
        return self.image.extents

    @property
    def aborted(self) -> list[AbortedRange]:
        """The aborted transactions in the tail, in the form of `decode_rows`."""
        return [AbortedRange(*each[:3]) for each in self.image.aborted]

    @property
    def open_transactions(self) -> dict[int, int]:
        """The first offset of each open transaction, by producer id."""
        return {
            producer.producer_id: producer.transaction_first_offset
            for producer in self.image.producers
            if producer.has_open_transaction
        }

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition.partition}"


def view_of(
    topic: str, image: PartitionImage, end: TableEnd, *, is_internal: bool
) -> PartitionView | None:
    """The view of a table and of a tail that was read after it.

    None if the table is too old for the tail's base: records between them are in neither (rule G1).
    Raises CorruptObject if the table is ahead of the log: a roll takes durable records only.
    """
    if image.table_next > end.table.next_offset:
        return None
    if end.table.next_offset > image.next_offset:
        raise CorruptObject(
            end.key,
            f"it reaches to offset {end.table.next_offset} of {topic}-{image.partition.partition},"
            f" whose log ends at {image.next_offset}",
        )
    log = PartitionLog.from_image(image)
    log.advance_table(end.table.next_offset)
    return PartitionView(
        topic=topic,
        partition=image.partition,
        is_internal=is_internal,
        table_version=end.version,
        segments=tuple(end.table.segments),
        image=log.image(),
        last_stable_offset=log.last_stable_offset,
    )
