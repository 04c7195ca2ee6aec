"""The simulated store: one bucket, whose requests outlive their senders and whose answers get
lost."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from tests.simulation.world.loop import SimulatedLoop
from tests.simulation.world.process import SimulatedProcess
from tests.simulation.world.store import SimulatedStore, StoreSettings, finish
from tidelog.storage.object_store import (
    ByteRange,
    IfAbsent,
    IfMatch,
    ObjectNotFound,
    ObjectStore,
    PreconditionFailed,
    StoreNotApplied,
    StoreOutcomeUnknown,
)


class World:
    """A store and one process that uses it."""

    def __init__(self, loop: SimulatedLoop, seed: int, settings: StoreSettings) -> None:
        self.loop = loop
        self.store = SimulatedStore(loop, seed, settings)
        self.process = SimulatedProcess(loop, "writer", "host")

    def view(self) -> ObjectStore:
        return self.store.of(self.process)

    def holds(self, key: str) -> bytes | None:
        """The bucket's present content, without a request."""
        try:
            return bytes(finish(self.store.memory.get(key)).data)
        except ObjectNotFound:
            return None


def simulate(
    story: Callable[[World], Awaitable[None]], seed: int = 1, **settings: float
) -> SimulatedStore:
    """Run a story outside of all processes; the world's process is alive."""

    async def main(loop: SimulatedLoop) -> SimulatedStore:
        world = World(loop, seed, StoreSettings(**settings))  # type: ignore[arg-type]
        await story(world)
        return world.store

    with SimulatedLoop(seed) as loop:
        store = loop.run(main(loop), seconds_max=3600)
        assert loop.unhandled == []
    return store


def test_a_view_is_an_object_store() -> None:
    async def story(world: World) -> None:
        view = world.view()
        etag = await view.put("a/1", [b"one", b"two"], IfAbsent())
        with pytest.raises(PreconditionFailed):
            await view.put("a/1", b"other", IfAbsent())
        await view.put("a/1", b"three", IfMatch(etag))
        assert bytes((await view.get("a/1", ByteRange(1, 3))).data) == b"hre"
        assert (await view.head("a/1")).size == 5
        await view.delete("a/1")
        with pytest.raises(ObjectNotFound):
            await view.get("a/1")

    simulate(story)


def test_listings_come_in_pages_and_in_order() -> None:
    async def story(world: World) -> None:
        view = world.view()
        keys = [f"x/{number:04d}" for number in range(120)]
        for key in keys:
            await view.put(key, b"")
        await view.put("y", b"")
        assert [entry.key async for entry in view.list("x/")] == keys
        assert [entry.key async for entry in view.list("x/", "x/0099")] == keys[100:]
        assert [entry.key async for entry in view.list("z")] == []

    store = simulate(story)
    assert store.counts["list"] > 5


def test_a_lost_reply_is_an_unknown_outcome_that_was_applied() -> None:
    async def story(world: World) -> None:
        with pytest.raises(StoreOutcomeUnknown):
            await world.view().put("k", b"v", IfAbsent())
        assert world.holds("k") == b"v"

    simulate(story, reply_lost_probability=1.0)


def test_a_lost_request_is_an_unknown_outcome_that_was_not_applied() -> None:
    async def story(world: World) -> None:
        with pytest.raises(StoreOutcomeUnknown):
            await world.view().put("k", b"v", IfAbsent())
        await asyncio.sleep(100)
        assert world.holds("k") is None

    simulate(story, request_lost_probability=1.0)


def test_a_delayed_put_arrives_after_its_caller_has_been_told_unknown() -> None:
    late = 0

    async def story(world: World) -> None:
        nonlocal late
        with pytest.raises(StoreOutcomeUnknown):
            await world.view().put("k", b"v", IfAbsent())
        late += world.holds("k") is None
        await asyncio.sleep(40)
        assert world.holds("k") == b"v"

    for seed in range(10):
        simulate(story, seed, delayed_probability=1.0)
    assert late >= 5


def test_a_repeated_put_is_refused_the_second_time() -> None:
    async def story(world: World) -> None:
        view = world.view()
        etag = await view.put("k", b"first", IfAbsent())
        await view.put("k", b"second", IfMatch(etag))
        await asyncio.sleep(100)
        assert world.holds("k") == b"second"

    simulate(story, repeated_probability=1.0)


def test_a_repeated_put_can_land_once_more_where_the_object_was_deleted() -> None:
    async def story(world: World) -> None:
        view = world.view()
        await view.put("k", b"first", IfAbsent())
        await view.delete("k")
        assert world.holds("k") is None
        await asyncio.sleep(100)
        assert world.holds("k") == b"first"

    simulate(story, repeated_probability=1.0)


def test_a_burst_refuses_and_passes() -> None:
    async def story(world: World) -> None:
        view = world.view()
        world.store.fail_for(10, share=1.0)
        with pytest.raises(StoreNotApplied):
            await view.put("k", b"v")
        with pytest.raises(StoreNotApplied):
            await view.get("k")
        with pytest.raises(StoreNotApplied):
            _ = [entry async for entry in view.list()]
        assert world.holds("k") is None
        await asyncio.sleep(10)
        await view.put("k", b"v")

    simulate(story)


def test_a_store_that_takes_no_puts_still_answers_reads() -> None:
    async def story(world: World) -> None:
        view = world.view()
        await view.put("k", b"v")
        world.store.refuse_puts_for(10)
        with pytest.raises(StoreNotApplied):
            await view.put("k", b"w")
        assert bytes((await view.get("k")).data) == b"v"
        await asyncio.sleep(10)
        await view.put("k", b"w")
        world.store.refuse_puts_for(10)
        world.store.heal()
        await view.put("k", b"x")

    simulate(story)


def test_one_process_can_be_cut_off_from_the_store() -> None:
    async def story(world: World) -> None:
        other = world.store.of(SimulatedProcess(world.loop, "other", "host"))
        world.store.isolate(world.process, 10)
        for number in range(20):
            with pytest.raises((StoreNotApplied, StoreOutcomeUnknown)):
                await world.view().put(f"k{number}", b"v")
            assert world.holds(f"k{number}") is None
            await other.put(f"other{number}", b"v")
        with pytest.raises(StoreNotApplied):
            await world.view().get("other1")
        world.store.heal()
        await world.view().put("k", b"v")
        world.store.isolate(world.process, 10, "a/")
        await world.view().get("k")
        with pytest.raises(StoreNotApplied):
            await world.view().get("a/k")

    simulate(story, unknown_seconds_max=0.1, slow_probability=0.0)


def test_puts_of_a_killed_process_arrive_in_time_late_or_never() -> None:
    fates: dict[str, int] = {"in time": 0, "late": 0, "never": 0}

    async def story(world: World) -> None:
        view = world.view()

        async def main() -> None:
            await view.put("k", b"v", IfAbsent())

        world.process.start(main)
        await asyncio.sleep(0.001)
        assert world.store.in_flight(world.process) == 1
        world.process.kill()
        await asyncio.sleep(0.1)
        in_time = world.holds("k") is not None
        await asyncio.sleep(100)
        fate = "in time" if in_time else "late" if world.holds("k") is not None else "never"
        fates[fate] += 1

    for seed in range(40):
        simulate(story, seed, slow_probability=0.0)
    assert min(fates.values()) >= 5, fates


def test_a_dead_process_sends_nothing_more() -> None:
    async def story(world: World) -> None:
        view = world.view()

        async def main() -> None:
            try:
                await asyncio.sleep(100)
            finally:
                await view.put("last words", b"")

        world.process.start(main)
        await asyncio.sleep(1)
        world.process.kill()
        await asyncio.sleep(100)
        assert world.holds("last words") is None

    store = simulate(story)
    assert store.counts["put"] == 0


def test_a_buffer_that_changes_during_its_put_is_reported() -> None:
    async def story(world: World) -> None:
        buffer = bytearray(b"before")

        async def main() -> None:
            put = asyncio.create_task(world.view().put("k", buffer))
            await asyncio.sleep(0.001)
            buffer[0] = 0
            await put

        world.process.start(main)
        await world.process.exited()
        assert world.holds("k") == b"before"

    store = simulate(story, slow_probability=0.0)
    assert store.violations == ["the buffers of k changed during their put"]


def test_a_cancelled_put_is_applied_all_the_same() -> None:
    async def story(world: World) -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.001):
                await world.view().put("k", b"v")
        await asyncio.sleep(1)
        assert world.holds("k") == b"v"

    simulate(story, slow_probability=0.0)
