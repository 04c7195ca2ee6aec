"""A broker that is away does not fill an application's log."""

from __future__ import annotations

import logging

import pytest

from tidelog.clock import SystemClock
from tidelog.localstack.ports import free_ports
from tidelog.sdk import connecting
from tidelog.sdk.connecting import LINES_MAX, QUIET_SECONDS, ConnectionFailures
from tidelog.sdk.consumer import Consumer


class ClockOfLines(SystemClock):
    """A clock that stands still until a test moves it."""

    seconds = 0.0

    def monotonic(self) -> float:
        return self.seconds


def line(text: str, facility: str = "FAIL") -> logging.LogRecord:
    """A line as librdkafka gives it to a logger."""
    arguments = (facility, "rdkafka#consumer-1", text)
    return logging.LogRecord("tidelog.sdk", logging.ERROR, "", 0, "%s [%s] %s", arguments, None)


def failure(address: str, after_ms: int = 0) -> logging.LogRecord:
    return line(f"Connect to {address} failed: refused (after {after_ms}ms in state CONNECT)")


def test_the_same_failure_is_shown_once_in_a_while() -> None:
    clock = ClockOfLines()
    lines = ConnectionFailures(clock)
    assert lines.filter(failure("a:1"))
    clock.seconds = QUIET_SECONDS - 1
    assert not lines.filter(failure("a:1", after_ms=3))
    assert lines.filter(failure("b:1"))
    clock.seconds = QUIET_SECONDS
    assert lines.filter(failure("a:1"))
    assert not lines.filter(failure("a:1"))


def test_other_lines_are_shown_each_time() -> None:
    lines = ConnectionFailures(ClockOfLines())
    for _ in range(2):
        assert lines.filter(line("the configuration is odd", facility="CONFWARN"))
        assert lines.filter(logging.LogRecord("tidelog.sdk", 30, "", 0, "batch", (), None))


def test_the_oldest_failures_are_forgotten() -> None:
    lines = ConnectionFailures(ClockOfLines())
    for number in range(LINES_MAX + 1):
        assert lines.filter(failure(f"a:{number}"))
    assert not lines.filter(failure(f"a:{LINES_MAX}"))
    assert lines.filter(failure("a:0"))


def test_a_consumer_whose_only_broker_is_away_says_so_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    failures: list[str] = []

    def count(record: logging.LogRecord) -> bool:
        if record.getMessage().startswith("FAIL "):
            failures.append(record.getMessage())
        return True

    monkeypatch.setattr(connecting.logger, "filters", [count, *connecting.logger.filters])
    (port,) = free_ports(1)
    with Consumer(f"127.0.0.1:{port}", "topic", "group") as consumer:
        while len(failures) < 10:
            assert consumer.poll(0.1) is None
    shown = [each.getMessage() for each in caplog.records if each.msg == "%s [%s] %s"]
    refused = [each for each in shown if each.startswith("FAIL ")]
    assert len(refused) == 1
    assert "Connection refused" in refused[0]
