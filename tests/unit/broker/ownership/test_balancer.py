"""When a broker looks at its share of the partitions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import cast

import pytest

from tests.simulation.world.clock import SimulatedClock
from tests.simulation.world.loop import SimulatedLoop
from tests.unit.coordinator.cluster.samples import (
    FLIGHTS,
    after,
    cluster,
    incarnation,
    registered,
)
from tidelog.broker.ownership.balancer import Balancer
from tidelog.broker.ownership.partition_giving import PartitionGiving
from tidelog.broker.settings.settings import BrokerSettings
from tidelog.coordinator.cluster.log.metadata_log import MetadataLog
from tidelog.coordinator.cluster.records.records import BrokerFenced, Record, TopicCreated
from tidelog.coordinator.cluster.records.settings import ClusterSettings
from tidelog.identifiers import Epoch, TopicPartition

ME = Epoch(1)
TIMES = ClusterSettings()


class Cluster:
    """A metadata log in which broker 1 has all partitions, and broker 2 has none."""

    settings = TIMES

    def __init__(self) -> None:
        self.state = after(cluster(1, 2), ME, TopicCreated(FLIGHTS, "flights", (ME,) * 4))
        self._follow: Callable[[int, Sequence[Record]], None] | None = None

    def subscribe(self, follow: Callable[[int, Sequence[Record]], None]) -> None:
        self._follow = follow

    def tell(self, record: Record) -> None:
        assert self._follow is not None
        self._follow(self.state.sequence, (record,))


class RefusedGiving:
    """No partition can be given. An entry of the metadata log comes during the first attempt."""

    unmovable: frozenset[TopicPartition] = frozenset()

    def __init__(self, clock: SimulatedClock, cluster: Cluster, record: Record | None) -> None:
        self._clock = clock
        self._cluster = cluster
        self._record = record
        self.attempts: list[float] = []
        self.has_begun_again = asyncio.Event()

    async def give(self, _: Mapping[TopicPartition, Epoch]) -> frozenset[TopicPartition]:
        self.attempts.append(self._clock.monotonic())
        if len(self.attempts) > 1:
            self.has_begun_again.set()
        elif self._record is not None:
            self._cluster.tell(self._record)
        return frozenset()


@pytest.mark.parametrize(
    ("record", "seconds"),
    [
        (None, 300.0),
        (registered(3), TIMES.heartbeat_interval_ms / 1000),
        (BrokerFenced(Epoch(2)), TIMES.session_timeout_ms / 1000),
    ],
)
def test_news_that_come_during_a_look_that_gives_nothing_lead_to_the_next_look(
    record: Record | None, seconds: float
) -> None:
    async def story(clock: SimulatedClock) -> None:
        log = Cluster()
        giving = RefusedGiving(clock, log, record)
        settings = BrokerSettings.of()
        balancer = Balancer(
            cast(MetadataLog, log),
            incarnation(log.state, 1),
            cast(PartitionGiving, giving),
            clock,
            lambda: settings,
            dict,
        )
        balancing = asyncio.create_task(balancer.run())
        await giving.has_begun_again.wait()
        balancing.cancel()
        first, second = giving.attempts
        assert second - first == pytest.approx(seconds, abs=0.1)

    with SimulatedLoop(1) as loop:
        loop.run(story(SimulatedClock(loop)), seconds_max=1000)
