"""The pauses of rolls that nobody waits for, on a whole broker."""

from __future__ import annotations

import asyncio

import pytest

from tests.unit.broker.one_broker import OneBroker, batch, run
from tests.unit.broker.rolled import flush, hosted, offsets, segments
from tests.unit.broker.test_roller import settled, until, world
from tidelog.broker.segment_builder import SegmentBounds

DAY_MS = 86_400_000
BATCHES = 5
ENDLESS = {
    "roll_bytes": 1500,
    "roll_min_bytes": 0,
    "roll_spread_ms": DAY_MS,
    "roll_age_ms": 8 * DAY_MS,
    "log_delete_grace_ms": 8 * DAY_MS,
}
"""What is due is spread over a day."""


@pytest.fixture(autouse=True)
def _small_and_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """A piece for each batch, as slow as `roll.spread.ms` lets them be."""
    monkeypatch.setattr("tidelog.broker.roller.SWEEP_SECONDS", 0.01)
    monkeypatch.setattr("tidelog.wal.roll_pace.BYTES_A_SECOND_MIN", 1e-9)
    bounds = SegmentBounds(piece_bytes_max=400)
    monkeypatch.setattr("tidelog.broker.table_path.SegmentBounds", lambda: bounds)


async def due(one: OneBroker, topic: str) -> None:
    """Produce as much as is due, in pieces."""
    for _ in range(BATCHES):
        await one.produce(batch(bytes(300)), topic=topic)


async def pausing(one: OneBroker) -> None:
    """Wait until a roll pauses behind its first piece."""
    metrics = one.broker.roller.metrics
    await until(lambda: metrics.wal_bytes)


def test_what_is_due_is_rolled_with_pauses_and_at_once_when_somebody_waits() -> None:
    here = world(**ENDLESS)

    async def story() -> None:
        async with here.broker() as one:
            metrics = one.broker.roller.metrics
            topic_id = await one.create_topic()
            await due(one, "flights")
            await pausing(one)
            taken = metrics.wal_bytes
            # Others go on meanwhile.
            await one.create_topic("other")
            await due(one, "other")
            assert metrics.wal_bytes == taken
            assert hosted(one).log.table_next == 0
            await flush(one)
            assert await offsets(here.store, topic_id) == list(range(BATCHES))
            assert len(await segments(here.store, topic_id)) == 1

    run(story)


def test_who_waits_does_not_wait_behind_the_pauses_of_others() -> None:
    here = world(**ENDLESS)

    async def story() -> None:
        async with here.broker() as one:
            await one.create_topic()
            await due(one, "flights")
            await pausing(one)
            other = await one.create_topic("other")
            await one.produce(batch(b"a"), topic="other")
            await flush(one, topic="other")
            assert await offsets(here.store, other) == [0]
            # What was under way is done, too: it was in the way.
            await settled(one, BATCHES)

    run(story)


@pytest.mark.parametrize(
    "at_once",
    [
        {"roll_spread_ms": 0},
        # An eighth of the age at which records are due, and of the grace.
        {"roll_age_ms": 8},
        {"log_delete_grace_ms": 5000},
    ],
)
def test_what_must_be_done_soon_is_not_spread_for_long(at_once: dict[str, int]) -> None:
    here = world(**(ENDLESS | at_once))

    async def story() -> None:
        async with here.broker() as one:
            topic_id = await one.create_topic()
            await due(one, "flights")
            async with asyncio.timeout(20):
                await settled(one, BATCHES)
            assert await offsets(here.store, topic_id) == list(range(BATCHES))

    run(story)


def test_a_roll_whose_topic_is_deleted_in_a_pause_ends_there() -> None:
    """The pauses are of a quarter of a second here."""
    here = world(**(ENDLESS | {"roll_spread_ms": 1250}))

    async def story() -> None:
        async with here.broker() as one:
            topic_id = await one.create_topic()
            await due(one, "flights")
            await pausing(one)
            await one.delete_topic(topic_id)
            other = await one.create_topic("other")
            await due(one, "other")
            async with asyncio.timeout(20):
                await until(lambda: hosted(one, topic="other").log.table_next == BATCHES)
            assert await offsets(here.store, other) == list(range(BATCHES))
            assert await segments(here.store, topic_id) == []

    run(story)
