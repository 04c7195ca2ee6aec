"""A start does not take longer after many dead processes, even on a distant store."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from statistics import median

import pytest

from tests.simulation.growth import GrowingBucket, Growth, Load
from tests.simulation.world.clock import SimulatedClock
from tests.simulation.world.loop import SimulatedLoop
from tidelog.storage.object_store import ByteRange, ObjectMeta, StoredObject, Suffix
from tidelog.storage.stores.memory import MemoryStore

GET_SECONDS = 0.1
PAGE_ENTRIES = 1000


class DistantStore(MemoryStore):
    """Gets, heads and pages of listings take their time. Puts take none, so that there is much to
    read."""

    def __init__(self, clock: SimulatedClock) -> None:
        super().__init__(clock)
        self._waiting = clock

    async def get(self, key: str, byte_range: ByteRange | Suffix | None = None) -> StoredObject:
        await self._waiting.sleep(GET_SECONDS)
        return await super().get(key, byte_range)

    async def head(self, key: str) -> ObjectMeta:
        await self._waiting.sleep(GET_SECONDS)
        return await super().head(key)

    async def list(self, prefix: str = "", start_after: str = "") -> AsyncIterator[ObjectMeta]:
        number = 0
        await self._waiting.sleep(GET_SECONDS)
        async for meta in super().list(prefix, start_after):
            number += 1
            if number % PAGE_ENTRIES == 0:
                await self._waiting.sleep(GET_SECONDS)
            yield meta


def restarts(rate: float, lives: int, low: float, high: float) -> Growth:
    """Run this many processes. Each writes for a while after it is ready."""
    drawn = random.Random(1)
    with SimulatedLoop(1) as loop:
        bucket = GrowingBucket(loop, Load(rate, hours=1))
        bucket.store = DistantStore(bucket._clock)

        async def live_and_die() -> None:
            for _ in range(lives):
                await bucket.live(drawn.uniform(low, high), since_ready=True)

        loop.run(live_and_die())
    return bucket.growth


@pytest.mark.parametrize(
    ("lives", "low", "high"),
    [(12, 8.0, 8.0), (31, 1.0, 3.0), pytest.param(101, 1.0, 3.0, marks=pytest.mark.slow)],
)
def test_the_tenth_restart_takes_no_longer_than_the_first(
    lives: int, low: float, high: float
) -> None:
    growth = restarts(100, lives, low, high)
    ready = growth.ready_seconds[1:]
    assert len(ready) == lives - 1
    # A restart reads only the records that the life before has written.
    assert max(ready[9:]) <= 1.2 * max(ready[:3]), ready
    # And the metadata log's entries behind its newest snapshot: up to 200, in six round trips.
    assert median(ready[-10:]) <= 1.2 * median(ready[:10]), ready
    assert max(ready) <= 8.0, ready
