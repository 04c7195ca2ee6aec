"""Retention compared with Kafka's own algorithm: one pass by age, then one by size."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import given

from tidelog.storage.clean.retention import RetentionPolicy, RetentionRun, log_start_after

runs = st.lists(
    st.tuples(
        st.integers(1, 10),
        st.integers(0, 3),
        st.one_of(st.none(), st.integers(0, 50)),
        st.integers(0, 20),
    ),
    max_size=8,
)
"""Offsets of each segment, offsets without a record before it, its latest time, its bytes."""


@given(
    runs,
    st.integers(-1, 60),
    st.integers(-1, 100),
    st.integers(0, 30),
    st.integers(0, 100),
    st.integers(0, 60),
)
def test_retention_agrees_with_kafkas_rules(
    shapes: list[tuple[int, int, int | None, int]],
    retention_ms: int,
    retention_bytes: int,
    log_start: int,
    stable: int,
    now_ms: int,
) -> None:
    held: list[RetentionRun] = []
    offset = 0
    for count, gap, latest, size in shapes:
        offset += gap
        held.append(RetentionRun(offset, offset + count - 1, latest, size))
        offset += count
    stable = max(stable, log_start)
    policy = RetentionPolicy(retention_ms, retention_bytes)
    found = log_start_after(held, policy, log_start, stable, now_ms)

    left = [run for run in held if run.last_offset >= log_start]
    before = len(left)
    if retention_ms >= 0:
        while (
            left
            and left[0].last_offset < stable
            and (left[0].latest_ms is not None and now_ms - left[0].latest_ms > retention_ms)
        ):
            left.pop(0)
    if retention_bytes >= 0:
        while (
            left
            and left[0].last_offset < stable
            and (sum(run.size_bytes for run in left) - left[0].size_bytes >= retention_bytes)
        ):
            left.pop(0)
    gone = [run for run in held if run.last_offset < found]
    assert found >= log_start
    # If the pass by size has uncovered old segments, Kafka deletes these in the next pass.
    assert len([run for run in held if run.last_offset >= found]) <= len(left)
    assert log_start_after(held, policy, found, stable, now_ms) == found
    assert all(run.last_offset < max(stable, log_start) for run in gone)
    if len(left) == before:
        assert found == log_start
    for run in held:
        assert not run.base_offset < found <= run.last_offset or found == log_start
