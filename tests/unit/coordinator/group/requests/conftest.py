"""The world of a consumer group, new for each test."""

from __future__ import annotations

import pytest

from tests.unit.coordinator.group.consumer_world import ConsumerWorld


@pytest.fixture
def world() -> ConsumerWorld:
    """A group coordinator that members of consumer groups speak to."""
    return ConsumerWorld()
