"""The audit log is bounded in lines and in the length of a line."""

from __future__ import annotations

import json
import logging

import pytest

from tidelog.broker.authorization.audit import TEXT_LENGTH_MAX, AuditLog
from tidelog.broker.authorization.decisions import AccessDecision, Ground
from tidelog.clock import SystemClock
from tidelog.security.acl_codes import AclOperation, ResourceType
from tidelog.security.principal import Principal


class Clock(SystemClock):
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now


def note(audit: AuditLog, name: str | None = "t", user: str = "alice") -> None:
    audit.note(
        Principal(user),
        "10.0.0.1",
        None,
        "Fetch",
        AclOperation.READ,
        ResourceType.TOPIC,
        name,
        AccessDecision(False, Ground.NO_RULE),
    )


def lines(caplog: pytest.LogCaptureFixture) -> list[dict[str, object]]:
    found = [json.loads(record.getMessage()) for record in caplog.records]
    assert all(record.name == "tidelog.audit" for record in caplog.records)
    caplog.clear()
    return found


def test_a_second_has_a_limited_number_of_lines(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "tidelog.audit")
    clock = Clock()
    audit = AuditLog(clock, 2)
    for _ in range(10):
        note(audit)
    assert len(lines(caplog)) == 2
    clock.now = 0.9
    note(audit)
    assert lines(caplog) == []
    clock.now = 1.0
    note(audit)
    note(audit)
    first, second = lines(caplog)
    assert first["left_out"] == 9
    assert "left_out" not in second


def test_long_names_are_cut_and_line_breaks_are_escaped(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "tidelog.audit")
    audit = AuditLog(Clock(), 10)
    note(audit, "x" * 32_000, "eve\n{}")
    assert "\n" not in caplog.records[0].getMessage()
    (line,) = lines(caplog)
    assert line["principal"] == "User:eve\n{}"
    assert len(str(line["resource"])) == TEXT_LENGTH_MAX
    note(audit, None)
    assert lines(caplog)[0]["resource"] == "Topic:*"
