"""The pace of merges that tests of this folder may ask for."""

from __future__ import annotations

import pytest


@pytest.fixture
def without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Merges do not spread their work over the time until the next pass."""
    monkeypatch.setattr("tidelog.broker.collect.merger.OBJECTS_A_SECOND_MIN", 1e9)
