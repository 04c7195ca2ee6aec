"""Rolls of these tests begin as soon as they are due."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidelog.broker.roll.roller.SWEEP_SECONDS", 0.01)
