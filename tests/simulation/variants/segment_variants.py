"""Broken variants of rolls, tables and deletion, of readers of the bucket, and of sinks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tests.simulation.world.patches import Breakage, Patch
from tidelog.broker.clean import log_retention
from tidelog.broker.collect import table_collector
from tidelog.broker.collect.marks import Marks
from tidelog.bucket import reachability
from tidelog.bucket.survey import Survey, WalReferences
from tidelog.bucket.views import atomic, partition_view, reading
from tidelog.bucket.views.partition_view import PartitionView, TableEnd
from tidelog.client.transactions import sink
from tidelog.identifiers import Incarnation, Slot
from tidelog.records.parse.row_arrays import integers_of, nulls_of
from tidelog.storage.clean import retention, segment_rewriting
from tidelog.storage.clean.compaction import Round
from tidelog.storage.clean.key_offsets import KeyOffsets
from tidelog.storage.segment.segment import SegmentName
from tidelog.storage.table.table_state import TableSegment
from tidelog.wal.log.image import PartitionImage
from tidelog.wal.log.partition_log import PartitionLog

_FAR = 1 << 60


def _no_grace() -> list[Patch]:
    """Unlisted segments are deleted as soon as they are seen, even with their commit on its way."""
    right = reachability.loose_segments

    def loose_segments(table: Any, newest_ms: int, stored: Any, _: int) -> Any:
        return right(table, _FAR, stored, 0)

    def update(self: Marks, superfluous: Iterable[str], *_: Any) -> list[str]:
        return list(superfluous)

    return [(table_collector, "loose_segments", loose_segments), (Marks, "update", update)]


def _floor_ignored() -> list[Patch]:
    """The collector takes slots for needless that no checkpoint has passed."""

    right = Survey.wal

    def wal(self: Survey, owner: Incarnation) -> WalReferences:
        return replace(right(self, owner), floor=Slot(_FAR))

    return [(Survey, "wal", wal)]


def _retention_past_stable() -> list[Patch]:
    """Retention takes records that are not decided yet."""
    right = retention.log_start_after

    def log_start_after(runs: Any, policy: Any, log_start: int, _: int, now_ms: int) -> int:
        return right(runs, policy, log_start, _FAR, now_ms)

    return [(log_retention, "log_start_after", log_start_after)]


def _retention_at_once() -> list[Patch]:
    """Every record with an age is too old."""
    return [(retention, "is_old", lambda run, policy, _: policy.retention_ms >= 0)]


def _hole_in_the_log() -> list[Patch]:
    """Retention takes one segment too many."""
    right = retention.segments_below

    def segments_below(segments: Sequence[TableSegment], log_start: int) -> tuple[SegmentName, ...]:
        below = len(right(segments, log_start))
        return tuple(stored.segment.name for stored in segments[: below + 1]) if below else ()

    return [(log_retention, "segments_below", segments_below)]


def _log_start_forgotten() -> list[Patch]:
    """A new owner begins the log at 0 again."""
    right = PartitionLog.begin_tenure

    def begin_tenure(self: PartitionLog, leader_epoch: Any) -> None:
        right(self, leader_epoch)
        PartitionLog.__init__(self, replace(self.image(), log_start=0))

    return [(PartitionLog, "begin_tenure", begin_tenure)]


def _stable_below_start() -> list[Patch]:
    """A transaction holds up readers at its beginning, though that was deleted."""

    def last_stable_offset(self: PartitionLog) -> int:
        return self.first_undecided_offset

    return [(PartitionLog, "last_stable_offset", property(last_stable_offset))]


def _older_kept() -> list[Patch]:
    """Compaction keeps the record before the latest one of a key."""

    def latest_rows(batches: Any, keys: KeyOffsets, round_: Round) -> Any:
        found = []
        for batch in batches:
            offsets = integers_of(batch.column("offset"))
            has_key = ~nulls_of(batch.column("key"))
            is_older = has_key & (keys.latest(batch.column("key")) != offsets)
            found.append(is_older | (offsets >= round_.end))
        return np.concatenate(found)

    return [(segment_rewriting, "latest_rows", latest_rows)]


def _tombstones_at_once() -> list[Patch]:
    """The next compaction takes a tombstone."""
    return [(Round, "is_expired", lambda *_: True)]


def _views_once() -> list[Patch]:
    """A reader of the bucket does not read the table again when the WAL is ahead of it (G1)."""
    right = partition_view.view_of

    def view_of(
        topic: str, image: PartitionImage, end: TableEnd, *, is_internal: bool
    ) -> PartitionView | None:
        forgetful = replace(image, table_next=min(image.table_next, end.table.next_offset))
        return right(topic, forgetful, end, is_internal=is_internal)

    return [(reading, "view_of", view_of)]


def _undecided_shown() -> list[Patch]:
    """An atomic view does not ask the coordinators (G4)."""
    return [(atomic, "excluded_transactions", lambda *_: frozenset())]


def _sink_blind() -> list[Patch]:
    """A sink's commit does not look which batch was committed last (H7)."""

    async def read_progress(*_: Any) -> None:
        return None

    return [(sink, "read_progress", read_progress)]


SEGMENT_VARIANTS: dict[str, Breakage] = {
    "no-grace": _no_grace,
    "floor-ignored": _floor_ignored,
    "retention-past-stable": _retention_past_stable,
    "retention-at-once": _retention_at_once,
    "hole-in-the-log": _hole_in_the_log,
    "log-start-forgotten": _log_start_forgotten,
    "stable-below-start": _stable_below_start,
    "older-kept": _older_kept,
    "tombstones-at-once": _tombstones_at_once,
    "views-once": _views_once,
    "undecided-shown": _undecided_shown,
    "sink-blind": _sink_blind,
}
