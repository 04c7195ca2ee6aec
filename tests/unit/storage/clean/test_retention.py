"""The log's start after retention, by Kafka's rules."""

from __future__ import annotations

import pytest

from tests.unit.storage.segments import STAMP, listed
from tidelog.storage.clean.retention import (
    RetentionPolicy,
    RetentionRun,
    log_start_after,
    run_of,
    segments_below,
    share_below,
)
from tidelog.storage.segment.segment import Segment
from tidelog.storage.table.table_state import TableSegment

DAY = 24 * 3600 * 1000
ALL = RetentionPolicy(-1, -1)
RUNS = [
    RetentionRun(0, 9, 1_000, 100),
    RetentionRun(10, 19, 5_000, 100),
    RetentionRun(25, 29, 3_000, 100),
    RetentionRun(30, 39, 9_000, 100),
]


def start(policy: RetentionPolicy, now_ms: int, log_start: int = 0, stable: int = 1000) -> int:
    return log_start_after(RUNS, policy, log_start, stable, now_ms)


def test_everything_is_kept_without_a_limit() -> None:
    assert start(ALL, 10**15) == 0
    assert start(ALL, 10**15, log_start=7) == 7


def test_age_is_that_of_a_runs_latest_record_and_must_be_above_the_limit() -> None:
    policy = RetentionPolicy(1_000, -1)
    assert start(policy, 2_000) == 0
    assert start(policy, 2_001) == 10
    assert start(policy, 6_000) == 10


def test_a_run_that_is_old_waits_for_earlier_runs() -> None:
    # The third is older than the second.
    assert start(RetentionPolicy(1_000, -1), 5_999) == 10
    assert start(RetentionPolicy(1_000, -1), 6_001) == 30


def test_the_log_begins_at_the_base_of_the_first_kept_run_or_behind_all() -> None:
    runs = RUNS[:2]
    policy = RetentionPolicy(1_000, -1)
    assert log_start_after(RUNS, RetentionPolicy(4_500, -1), 0, 1000, 9_600) == 30
    assert log_start_after([*runs, RetentionRun(25, 29, 10**9, 1)], policy, 0, 1000, 10_000) == 25
    assert log_start_after(runs, policy, 0, 1000, 10_000) == 20


def test_a_limit_of_age_alone_reads_no_run_behind_the_first_kept_one() -> None:
    runs = iter(RUNS)
    assert log_start_after(runs, RetentionPolicy(1_000, -1), 0, 1000, 2_001) == 10
    assert list(runs) == RUNS[2:]


@pytest.mark.parametrize(
    ("size", "expected"),
    [(400, 0), (399, 0), (301, 0), (300, 10), (250, 10), (200, 25), (1, 30), (0, 40)],
)
def test_remaining_segments_hold_at_least_the_retained_bytes(size: int, expected: int) -> None:
    assert start(RetentionPolicy(-1, size), 0) == expected


def test_segments_below_the_log_start_do_not_count() -> None:
    assert start(RetentionPolicy(-1, 200), 0, log_start=10) == 25
    # A run that lies partly below the start counts as a whole. It stays until all of it exceeds the
    # size.
    assert start(RetentionPolicy(-1, 200), 0, log_start=15) == 25
    assert start(RetentionPolicy(-1, 300), 0, log_start=15) == 15


def test_undecided_records_stay() -> None:
    assert start(RetentionPolicy(0, 0), 10**15, stable=30) == 30
    assert start(RetentionPolicy(0, 0), 10**15, stable=27) == 25
    assert start(RetentionPolicy(0, 0), 10**15, stable=5) == 0


def test_a_time_in_the_future_or_unknown_holds_up_deletion_by_age() -> None:
    future = [RetentionRun(0, 9, 10**12, 1), *RUNS[1:]]
    assert log_start_after(future, RetentionPolicy(0, -1), 0, 1000, 10**9) == 0
    unknown = [RetentionRun(0, 9, None, 1), *RUNS[1:]]
    assert log_start_after(unknown, RetentionPolicy(0, -1), 0, 1000, 10**9) == 0
    assert log_start_after(unknown, RetentionPolicy(-1, 300), 0, 1000, 10**9) == 10


def test_a_segment_without_timestamps_is_as_old_as_it_was_added() -> None:
    undated = TableSegment(listed(0, 0, 9, 1, None), STAMP + DAY)
    assert run_of(undated) == RetentionRun(0, 9, STAMP + DAY, 1000)
    dated = TableSegment(listed(0, 0, 9, 1, STAMP), STAMP + DAY)
    assert run_of(dated).latest_ms == STAMP


def test_segments_wholly_below_the_log_start_go() -> None:
    stored = [TableSegment(listed(0, base, base + 9), 0) for base in (0, 10, 20)]
    names = [each.segment.name for each in stored]
    assert segments_below(stored, 0) == ()
    assert segments_below(stored, 19) == tuple(names[:1])
    assert segments_below(stored, 20) == tuple(names[:2])
    assert segments_below(stored, 500) == tuple(names)


@pytest.mark.parametrize(("offset", "share"), [(0, 0.0), (100, 0.0), (150, 0.5), (500, 1.0)])
def test_how_much_of_a_segment_is_deleted_is_told_by_offsets(offset: int, share: float) -> None:
    segment: Segment = listed(0, 100, 199)
    assert share_below(segment, offset) == share
