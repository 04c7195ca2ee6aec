"""pytest's fixtures, which pytest finds by itself where Tidelog is installed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tidelog.testing.broker import Broker


@pytest.fixture(scope="session")
def tidelog_broker() -> Iterator[Broker]:
    """A broker in memory, for all tests of the run. Give each test a topic of its own."""
    from tidelog.testing import Broker

    with Broker() as broker:
        yield broker


@pytest.fixture
def tidelog_topic(tidelog_broker: Broker) -> str:
    """The name of a new topic with one partition."""
    return tidelog_broker.topic()
