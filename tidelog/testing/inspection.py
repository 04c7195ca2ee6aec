"""A topic's partitions as a store holds them, for a test's assertions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from tidelog.bucket.views.bucket import Bucket
from tidelog.bucket.views.partition_view import PartitionView
from tidelog.clock import SystemClock
from tidelog.entropy import SystemEntropy
from tidelog.sdk.connecting import completed
from tidelog.storage.stores.location import open_reader
from tidelog.storage.table.table_state import TableSegment
from tidelog.workers.offload import ThreadOffload

THREADS: Final = 1


@dataclass(frozen=True, slots=True)
class InspectedSegment:
    """A Parquet object of a partition."""

    path: str
    """Below the topic's folder in the store."""
    base_offset: int
    last_offset: int
    rows: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class InspectedPartition:
    """A partition at one moment."""

    partition: int
    log_start: int
    """The first offset that consumers may read."""
    table_end: int
    """Offsets below it lie in segments, those from it on in the WAL."""
    last_stable_offset: int
    """Consumers of committed messages read up to here."""
    high_watermark: int
    """The offset of the next message."""
    segments: tuple[InspectedSegment, ...]
    """By offset."""
    open_transactions: Mapping[int, int]
    """The ids of producers with an open transaction here, and its first offsets."""


def inspect(store_url: str, topic: str) -> list[InspectedPartition]:
    """All partitions of a topic. Raises NoSuchTopic, CorruptObject, StoreError."""

    async def run() -> list[InspectedPartition]:
        clock, entropy = SystemClock(), SystemEntropy()
        store = open_reader(store_url, clock, entropy)
        offload = ThreadOffload(THREADS, "tidelog-inspection")
        try:
            bucket = Bucket.unread(store, clock, entropy, offload)
            view = await bucket.view(topic)
            return [_facts(each) for each in view.of_topic(bucket.topic(topic).topic_id)]
        finally:
            offload.close()
            await store.close()

    return completed(run)


def _facts(view: PartitionView) -> InspectedPartition:
    return InspectedPartition(
        view.partition.partition,
        view.log_start,
        view.table_next,
        view.last_stable_offset,
        view.high_watermark,
        tuple(map(_segment_facts, view.segments)),
        view.open_transactions,
    )


def _segment_facts(found: TableSegment) -> InspectedSegment:
    segment, name = found.segment, found.segment.name
    return InspectedSegment(
        name.path, name.base_offset, name.last_offset, segment.row_count, segment.size_bytes
    )
