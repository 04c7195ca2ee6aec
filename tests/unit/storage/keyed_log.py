"""A partition's table of keyed records for tests: appended, compacted and merged as a broker does,
without a broker."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import pyarrow as pa

from tests.unit.storage.segments import PARTITION, TOPIC_ID, commit_of
from tidelog.clock import SystemClock
from tidelog.entropy import SeededEntropy
from tidelog.records.records import NewRecord, encode_batch
from tidelog.records.row_columns import ROW_SCHEMA
from tidelog.records.rows.row_decoding import decode_rows
from tidelog.storage.clean.compaction import (
    CompactionPolicy,
    DirtyLog,
    Round,
    SegmentMergeLimits,
    dirty_log,
    small_run,
)
from tidelog.storage.clean.segment_rewriting import Replacement, SegmentRewriter
from tidelog.storage.segment.segment_reader import SegmentReader
from tidelog.storage.segment.segment_writer import SegmentWriter
from tidelog.storage.stores.memory import MemoryStore
from tidelog.storage.stores.metered import MeteredStore
from tidelog.storage.table.table_change import PartitionChange, TableAdvance
from tidelog.storage.table.table_state import TableSegment, TableState
from tidelog.workers.offload import InlineOffload

NUMBER = PARTITION.partition
POLICY = CompactionPolicy(0, 2**63 - 1, 0.5, 100)


class Kept(NamedTuple):
    """The fields of a record that tests compare."""

    offset: int
    key: bytes | None
    value: bytes | None
    timestamp_ms: int = 1_000


class KeyedLog:
    """One partition: its table, and the store with its segments."""

    def __init__(self) -> None:
        self.store = MeteredStore(MemoryStore(SystemClock()), SystemClock())
        self.table = TableState(TOPIC_ID)
        self.entropy = SeededEntropy(1)
        self.paced = 0
        self.rewriter = SegmentRewriter(
            self.store, self.entropy, InlineOffload(), PARTITION, self._pace
        )

    async def _pace(self, size_bytes: int) -> None:
        self.paced += size_bytes

    @property
    def segments(self) -> Sequence[TableSegment]:
        return self.table.partition(NUMBER).segments

    @property
    def next_offset(self) -> int:
        return self.table.partition(NUMBER).next_offset

    @property
    def cleaned_to(self) -> int:
        """The end of the log's clean part."""
        return max((s.segment.cleaned_to for s in self.segments if s.segment.cleaned), default=0)

    async def append(self, records: Sequence[Kept], next_offset: int) -> None:
        """Roll these records and the gaps between them into one segment."""
        base = self.next_offset
        writer = SegmentWriter(PARTITION, base)
        for batch in rows_of(records):
            writer.write(batch)
        advance = TableAdvance(base, next_offset)
        if not writer.row_count:
            self.commit(PartitionChange(partition=NUMBER, advance=advance))
            return
        written = writer.finish(next_offset, self.entropy.uuid())
        await self.store.put(written.segment.key(TOPIC_ID), written.pieces)
        segments = (written.segment,)
        self.commit(PartitionChange(partition=NUMBER, advance=advance, appended=segments))

    def commit(self, change: PartitionChange) -> None:
        """Commit one more version of the table."""
        version = self.table.version + 1
        commit = commit_of(change, first=version == 0)
        self.table.apply("an entry", version, commit)

    def replace(self, replacement: Replacement) -> None:
        """Commit a rewrite of segments."""
        removed, rewritten = replacement
        self.commit(PartitionChange(partition=NUMBER, removed=removed, rewritten=rewritten))

    def dirty(
        self, now_ms: int, policy: CompactionPolicy = POLICY, log_start: int = 0
    ) -> DirtyLog | None:
        return dirty_log(self.segments, policy, log_start, now_ms)

    async def compact(
        self,
        now_ms: int,
        policy: CompactionPolicy = POLICY,
        log_start: int = 0,
        *,
        map_bytes: int = 1 << 30,
        target_bytes: int = 1 << 30,
        replacements_max: int = 1 << 30,
    ) -> Round | None:
        """Run one round, even if little is dirty. It is given up after `replacements_max`
        replacements."""
        dirty = self.dirty(now_ms, policy, log_start)
        if dirty is None:
            return None
        segments = [stored.segment for stored in self.segments]
        keys, end = await self.rewriter.map_keys(segments, dirty.first_dirty, dirty.end, map_bytes)
        found = Round(dirty.first_dirty, end, log_start, now_ms, policy.delete_retention_ms)
        done = 0
        async for replacement in self.rewriter.compact(segments, keys, found, target_bytes):
            if done == replacements_max:
                break
            self.replace(replacement)
            done += 1
        return found

    async def merge(self, limits: SegmentMergeLimits, log_start: int = 0) -> int:
        """Merge while a merge is worth its cost. Returns the number of merges."""
        merges = 0
        while run := small_run(self.segments, limits):
            segments = [stored.segment for stored in run]
            self.replace(await self.rewriter.merge(segments, log_start))
            merges += 1
        return merges

    async def records(self) -> list[Kept]:
        """All records of the table."""
        return [record for stored in self.segments for record in await self.records_of(stored)]

    async def records_of(self, stored: TableSegment) -> list[Kept]:
        """The records of one segment."""
        reader = await SegmentReader.open(self.store, InlineOffload(), PARTITION, stored.segment)
        batches = await reader.read(0, 1 << 40, ROW_SCHEMA.names)
        return [
            Kept(row["offset"], row["key"], row["value"], row["timestamp"] // 1000)
            for batch in batches
            for row in batch.set_column(
                1, "timestamp", batch.column("timestamp").cast(pa.int64())
            ).to_pylist()
        ]


def rows_of(records: Sequence[Kept]) -> list[pa.RecordBatch]:
    """The records as rows."""
    batches = [
        encode_batch([NewRecord(value, key, (), stamp)], base_offset=offset)
        for offset, key, value, stamp in records
    ]
    return list(decode_rows(b"".join(batches))) if batches else []
