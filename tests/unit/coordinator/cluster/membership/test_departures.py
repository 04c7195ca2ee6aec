"""Answers about leaders wait until the broker knows whether another broker has died, and which
broker leads then."""

from __future__ import annotations

import asyncio
import dataclasses

import pytest

from tests.unit.coordinator.cluster.members import Member, fences, member, retirements, until
from tests.unit.coordinator.cluster.membership.test_connection_watch import SOON, connected
from tests.unit.coordinator.cluster.world import World, simulate, within
from tidelog.coordinator.cluster.membership.departures import (
    LISTED_SECONDS,
    WAIT_SECONDS_MAX,
    Departures,
)
from tidelog.identifiers import BrokerId

MOMENT = 0.05


async def waited(world: World, one: Member) -> float:
    """The seconds that an answer of this broker waits."""
    asked_at = world.loop.time()
    await within(one.broker.process, one.departures.settled())
    return world.loop.time() - asked_at


def listed(one: Member) -> list[BrokerId]:
    return [info.broker_id for info in one.departures.listed()]


@pytest.mark.parametrize("seed", range(4))
def test_an_answer_waits_for_the_successors_of_a_killed_broker(seed: int) -> None:
    async def story(world: World) -> None:
        first, dead, third = await connected(world, 3)
        await dead.broker.create("flights", 4)
        assert await waited(world, first) < MOMENT
        dead.kill()
        await asyncio.sleep(MOMENT)
        # Survivors send each other no hints here, so one of them knows only its own take-over.
        states = []
        for one in (first, third):
            assert await waited(world, one) < WAIT_SECONDS_MAX + MOMENT
            states.append(one.broker.log.state)
        newest = max(states, key=lambda state: state.sequence)
        assert newest.is_retired(dead.broker.registered.incarnation)
        assert not newest.owned_by(dead.epoch)

    simulate(story, seed, slow_probability=0.0)


async def beside_a_failing_take_over(world: World) -> Member:
    """A broker that knows of a fenced one, whose partitions nobody can take over for now."""
    first, dead, _ = await connected(world, 3)
    dead.kill()
    await until(lambda: fences(world) == [dead.epoch], SOON)
    world.store.refuse_puts_for(20.0)
    await within(first.broker.process, first.broker.log.refresh())
    return first


def test_an_answer_waits_no_longer_than_a_second_for_a_take_over_that_fails() -> None:
    async def story(world: World) -> None:
        first = await beside_a_failing_take_over(world)
        assert await waited(world, first) == pytest.approx(WAIT_SECONDS_MAX, abs=2 * MOMENT)
        assert await waited(world, first) < MOMENT
        assert retirements(world) == []

    simulate(story, slow_probability=0.0)


def test_a_broker_that_starts_waits_for_the_take_over_of_one_that_was_fenced_before() -> None:
    async def story(world: World) -> None:
        first = await beside_a_failing_take_over(world)
        begun = Departures(first.broker.log, first.broker.process.clock)
        started = dataclasses.replace(first, departures=begun)
        assert await waited(world, started) == pytest.approx(WAIT_SECONDS_MAX, abs=2 * MOMENT)
        assert listed(started) == []

    simulate(story, slow_probability=0.0)


def test_an_answer_hardly_waits_for_a_broker_that_only_lost_its_connections() -> None:
    async def story(world: World) -> None:
        first, second, _ = await connected(world, 3)
        world.network.reset_connections(second.broker.process.host)
        assert await waited(world, first) < 10 * MOMENT
        assert (fences(world), listed(first)) == ([], [])

    simulate(story, slow_probability=0.0)


def test_a_killed_broker_is_listed_for_a_while() -> None:
    """A client that no longer finds the broker would drop it in the middle of a move of its
    partitions."""

    async def story(world: World) -> None:
        first, dead, third = await connected(world, 3)
        dead.kill()
        await until(lambda: retirements(world) == [dead.epoch], SOON)
        await asyncio.sleep(1.0)
        assert listed(first) == listed(third) == [dead.broker.registered.incarnation.broker_id]
        await asyncio.sleep(LISTED_SECONDS)
        assert listed(first) == listed(third) == []

    simulate(story, slow_probability=0.0)


def test_a_broker_that_comes_back_is_listed_once() -> None:
    async def story(world: World) -> None:
        first, dead, _ = await connected(world, 3)
        dead.kill()
        await until(lambda: retirements(world) == [dead.epoch], SOON)
        await member(world, int(dead.broker.registered.incarnation.broker_id), listening=True)
        await until(lambda: len(first.broker.log.state.live_epochs) == 3, 5.0)
        assert listed(first) == []

    simulate(story, slow_probability=0.0)


def test_a_broker_that_hangs_is_not_listed() -> None:
    """The clients of a broker that hangs wait for its answers, and must drop it."""

    async def story(world: World) -> None:
        first, hanging, _ = await connected(world, 3)
        hanging.broker.process.pause()
        await until(lambda: fences(world) == [hanging.epoch], 20.0)
        await asyncio.sleep(1.0)
        assert listed(first) == []

    simulate(story, slow_probability=0.0)
