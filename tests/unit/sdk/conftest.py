"""Brokers in memory for the SDK's tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tidelog.testing.broker import Broker


@pytest.fixture(scope="module")
def shared() -> Iterator[Broker]:
    """A broker that the tests of a module share. They do not end it."""
    with Broker() as broker:
        yield broker


@pytest.fixture
def broker() -> Iterator[Broker]:
    """A broker for one test, which may kill it."""
    with Broker() as broker:
        yield broker
