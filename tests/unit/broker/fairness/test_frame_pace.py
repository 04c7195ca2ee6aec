"""How long a client may take to send a request."""

from __future__ import annotations

import pytest

from tidelog.broker.fairness.frame_pace import FramePace, ReceiveLimits
from tidelog.broker.fairness.progress import NEVER

LIMITS = ReceiveLimits(seconds_max=60.0, grace_seconds=10.0, bytes_per_second_min=1000.0)


def begun(size: int = 4) -> FramePace:
    pace = FramePace(LIMITS)
    pace.begin(100.0, size)
    return pace


def test_nothing_is_late_before_it_has_begun_or_when_it_is_complete() -> None:
    assert not FramePace(LIMITS).is_late(1e9)
    pace = begun()
    pace.end()
    assert not pace.is_late(1e9)


def test_a_request_without_further_bytes_is_late_after_the_grace() -> None:
    pace = begun()
    assert not pace.is_late(109.9)
    assert pace.is_late(110.0)


def test_bytes_gain_time_but_never_more_than_the_grace() -> None:
    pace = begun()
    pace.go_on(105.0, 2000)
    assert not pace.is_late(111.9)
    assert pace.is_late(112.0)
    # A client that has sent most of a large request at once must still keep the pace.
    pace.go_on(106.0, 10**9)
    assert pace.is_late(116.0)


def test_a_request_that_drips_is_late_when_its_time_is_over() -> None:
    pace = begun()
    for second in range(101, 160):
        pace.go_on(float(second), 1000)
        assert not pace.is_late(float(second))
    assert pace.is_late(160.0)


def test_time_without_reads_of_the_broker_does_not_count() -> None:
    pace = begun()
    pace.stop(105.0)
    pace.stop(106.0)
    assert not pace.is_late(1000.0)
    pace.resume(1005.0)
    assert not pace.is_late(1009.9)
    assert pace.is_late(1010.0)


def test_the_time_left_follows_the_bytes_since_the_last_look() -> None:
    pace = begun()
    assert pace.seconds_left(101.0, 1000) == 0
    pace.go_on(102.0, 500)
    assert pace.seconds_left(103.0, 1000) == pytest.approx(4.0)
    assert pace.seconds_left(104.0, 1000) == NEVER
    pace.stop(104.5)
    assert pace.seconds_left(105.0, 1000) == 0
    pace.resume(105.5)
    # The server did not read the frame all the time since the last look.
    assert pace.seconds_left(106.0, 1000) == 0
    assert pace.seconds_left(107.0, 1000) == NEVER
