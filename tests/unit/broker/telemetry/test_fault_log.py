"""Faults that keep partitions from being read are logged, but not with each request."""

from __future__ import annotations

import logging

import pytest

from tidelog.broker.telemetry.fault_log import LOGGED_EVERY_SECONDS, REMEMBERED_MAX, FaultLog
from tidelog.clock import SystemClock
from tidelog.errors import CorruptObject, MissingObject

WHAT = "a fetch cannot be served"
LOST, BENT = MissingObject("wal/1", "it is missing"), CorruptObject("wal/2", "it is bent")


class StandingClock(SystemClock):
    """A clock that stands until a test moves it."""

    now = 1000.0

    def monotonic(self) -> float:
        return self.now


def test_a_fault_is_told_at_once_and_again_while_it_lasts(caplog: pytest.LogCaptureFixture) -> None:
    clock = StandingClock()
    faults = FaultLog(clock)

    def told() -> list[tuple[str, str, int]]:
        found = [vars(each) for each in caplog.records]
        caplog.clear()
        return [(each["partition"], each["key"], each["times"]) for each in found]

    with caplog.at_level(logging.ERROR):
        for _ in range(5):
            faults.met(WHAT, "flights-0", LOST)
        assert told() == [("flights-0", "wal/1", 1)]
        faults.met(WHAT, "flights-1", LOST)
        faults.met(WHAT, "flights-0", BENT)
        assert told() == [("flights-1", "wal/1", 1), ("flights-0", "wal/2", 1)]
        clock.now += LOGGED_EVERY_SECONDS
        for _ in range(5):
            faults.met(WHAT, "flights-0", LOST)
        assert told() == [("flights-0", "wal/1", 5)]


def test_few_faults_are_remembered(caplog: pytest.LogCaptureFixture) -> None:
    faults = FaultLog(StandingClock())
    for number in range(REMEMBERED_MAX + 1):
        faults.met(WHAT, f"flights-{number}", LOST)
    caplog.clear()
    faults.met(WHAT, f"flights-{REMEMBERED_MAX}", LOST)
    assert caplog.records == []
    faults.met(WHAT, "flights-0", LOST)
    assert len(caplog.records) == 1
    assert len(faults._lines._logged) == REMEMBERED_MAX
