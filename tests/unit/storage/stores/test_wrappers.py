"""Retries, statistics, timeouts and planned faults, in virtual time."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from itertools import pairwise

import pytest

from tests.simulation.world.clock import SimulatedClock
from tests.simulation.world.loop import SimulatedLoop
from tidelog.entropy import SeededEntropy
from tidelog.storage.object_store import (
    AccessDenied,
    Buffer,
    Condition,
    IfAbsent,
    IfMatch,
    ObjectMeta,
    ObjectNotFound,
    PreconditionFailed,
    StoreFull,
    StoreNotApplied,
    StoreOutcomeUnknown,
    failure_behind,
)
from tidelog.storage.stores.faulty import FaultRates, FaultyStore, StoreFault
from tidelog.storage.stores.memory import MemoryStore
from tidelog.storage.stores.metered import LATENCY_BOUNDS_SECONDS, MeteredStore
from tidelog.storage.stores.retrying import RetryingStore, StoreRetrySettings
from tidelog.storage.stores.timeouts import TimeoutStore


class World:
    def __init__(self, loop: SimulatedLoop) -> None:
        self.clock = SimulatedClock(loop)
        self.truth = MemoryStore(self.clock)
        self.faulty = FaultyStore(self.truth, self.clock, SeededEntropy(5))
        self.metered = MeteredStore(self.faulty, self.clock)
        self.store = RetryingStore(self.metered, self.clock, SeededEntropy(6))

    async def holds(self, key: str) -> bytes | None:
        try:
            return bytes((await self.truth.get(key)).data)
        except ObjectNotFound:
            return None


def tell(story: Callable[[World], Awaitable[None]]) -> None:
    async def main(loop: SimulatedLoop) -> None:
        world = World(loop)
        await story(world)
        await world.store.close()

    with SimulatedLoop(1) as loop:
        loop.run(main(loop), seconds_max=100_000)
        assert loop.unhandled == []


# --- retries ---


def test_safe_requests_are_repeated() -> None:
    async def story(world: World) -> None:
        await world.truth.put("a", b"x")
        for operation in ("get", "head", "list"):
            world.faulty.plan(operation, StoreFault.REFUSED, StoreFault.REFUSED)
        assert (await world.store.get("a")).data == b"x"
        assert (await world.store.head("a")).size == 1
        assert [meta.key async for meta in world.store.list()] == ["a"]
        world.faulty.plan(
            "delete", StoreFault.REFUSED, StoreFault.REQUEST_LOST, StoreFault.ANSWER_LOST
        )
        await world.store.delete("a")
        assert await world.holds("a") is None
        world.faulty.plan(
            "put", StoreFault.REFUSED, StoreFault.REQUEST_LOST, StoreFault.ANSWER_LOST
        )
        await world.store.put("a", b"y")
        assert await world.holds("a") == b"y"

    tell(story)


@pytest.mark.parametrize("fault", [StoreFault.REQUEST_LOST, StoreFault.ANSWER_LOST])
@pytest.mark.parametrize("absent", [True, False])
def test_a_conditional_put_whose_outcome_is_unknown_is_not_repeated(
    fault: StoreFault, absent: bool
) -> None:
    async def story(world: World) -> None:
        condition = IfAbsent() if absent else IfMatch(await world.truth.put("a", b"x"))
        world.faulty.plan("put", fault)
        with pytest.raises(StoreOutcomeUnknown):
            await world.store.put("a", b"y", condition)
        assert world.metered.statistics.put.requests == 1

    tell(story)


def test_a_conditional_put_that_was_not_applied_is_repeated() -> None:
    async def story(world: World) -> None:
        world.faulty.plan("put", StoreFault.REFUSED, StoreFault.REFUSED)
        await world.store.put("a", b"x", IfAbsent())
        assert world.metered.statistics.put.outcomes == {"not_applied": 2, "ok": 1}
        with pytest.raises(PreconditionFailed):
            await world.store.put("a", b"y", IfAbsent())

    tell(story)


def test_a_repeated_put_lets_its_data_go_without_a_garbage_collection() -> None:
    class Data(bytearray):
        """Bytes that a weak reference can follow."""

    async def story(world: World) -> None:
        world.faulty.plan("put", StoreFault.REFUSED)
        data = Data(b"x")
        followed = weakref.ref(data)
        gc.disable()
        try:
            await world.store.put("a", data)
            del data
            assert followed() is None
        finally:
            gc.enable()
        assert await world.holds("a") == b"x"

    tell(story)


def test_answers_that_repeating_does_not_change_are_given_at_once() -> None:
    class Denying(MemoryStore):
        async def head(self, key: str) -> ObjectMeta:
            raise AccessDenied(key, "no")

    async def story(world: World) -> None:
        began = world.clock.monotonic()
        with pytest.raises(ObjectNotFound) as absent:
            await world.store.get("a")
        assert str(absent.value) == "a: no such object"
        denying = RetryingStore(Denying(world.clock), world.clock, SeededEntropy(1))
        with pytest.raises(AccessDenied) as denied:
            await denying.head("a")
        assert str(denied.value) == f"{denying.url}: a: no"
        assert world.clock.monotonic() - began < 0.01

    tell(story)


class Rotating(MemoryStore):
    """A store that denies all requests while `denied` is set."""

    denied = True

    def _check(self, key: str) -> None:
        if self.denied:
            raise AccessDenied(key, "the key was rotated")

    async def head(self, key: str) -> ObjectMeta:
        self._check(key)
        return await super().head(key)

    async def put(
        self, key: str, data: Buffer | Sequence[Buffer], condition: Condition | None = None
    ) -> str:
        self._check(key)
        return await super().put(key, data, condition)

    async def list(self, prefix: str = "", start_after: str = "") -> AsyncIterator[ObjectMeta]:
        self._check(prefix)
        async for meta in super().list(prefix, start_after):
            yield meta


def test_a_permission_that_was_there_may_come_back() -> None:
    async def story(world: World) -> None:
        rotating = Rotating(world.clock)
        store = RetryingStore(rotating, world.clock, SeededEntropy(1))
        began = world.clock.monotonic()
        for missing in (store.put("a", b"x"), store.head("a"), anext(aiter(store.list()))):
            with pytest.raises(AccessDenied):
                await missing
        assert world.clock.monotonic() - began < 0.01, "final before the first success"
        rotating.denied = False
        await store.put("a", b"x")
        await store.head("a")
        assert [meta.key async for meta in store.list()] == ["a"]

        rotating.denied = True
        requests = asyncio.gather(
            store.put("b", b"y", IfAbsent()), store.head("a"), anext(aiter(store.list()))
        )
        await world.clock.sleep(10)
        assert not requests.done()
        rotating.denied = False
        await requests

        rotating.denied = True
        began = world.clock.monotonic()
        with pytest.raises(AccessDenied, match="rotated"):
            await store.put("c", b"z", IfAbsent())
        assert 50 <= world.clock.monotonic() - began <= 60

    tell(story)


def test_a_caller_that_gives_up_finds_the_last_error() -> None:
    async def story(world: World) -> None:
        world.faulty.rates = FaultRates(refused=1.0)
        with pytest.raises(TimeoutError) as given_up:
            async with asyncio.timeout(5):
                await world.store.put("a", b"x", IfAbsent())
        last = failure_behind(given_up.value)
        assert isinstance(last, StoreNotApplied)
        assert failure_behind(TimeoutError()) is None

    tell(story)


def test_pauses_grow_to_the_longest_and_end_at_the_deadline() -> None:
    async def story(world: World) -> None:
        settings = StoreRetrySettings(deadline_ms=30_000, pause_ms_first=100, pause_ms_max=4_000)
        attempts: list[float] = []

        class Refusing(MemoryStore):
            async def head(self, key: str) -> ObjectMeta:
                attempts.append(world.clock.monotonic())
                raise StoreNotApplied(key, "busy")

        store = RetryingStore(Refusing(world.clock), world.clock, SeededEntropy(2), settings)
        with pytest.raises(StoreNotApplied, match="busy"):
            await store.head("a")
        pauses = [later - earlier for earlier, later in pairwise(attempts)]
        longest = [min(4.0, 0.1 * 2**n) for n in range(len(pauses))]
        assert all(
            most / 2 <= pause <= most + 0.001 for pause, most in zip(pauses, longest, strict=True)
        )
        assert len(set(pauses)) == len(pauses)
        assert 26 <= attempts[-1] - attempts[0] <= 30

    tell(story)


def test_a_store_that_is_given_up_is_named_and_the_log_says_how_long_it_is_asked(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def story(world: World) -> None:
        world.faulty.rates = FaultRates(refused=1.0)
        url, why = world.store.url, "the request failed, as was planned"
        with pytest.raises(StoreNotApplied) as given_up:
            await world.store.head("a")
        assert str(given_up.value) == f"{url}: a: {why}"
        said = [record.getMessage() for record in caplog.records]
        assert said[0] == f"a store request failed; it is retried for 60 s: {why}"
        assert {record.__dict__["store"] for record in caplog.records} == {url}
        with pytest.raises(StoreNotApplied) as given_up:
            await anext(aiter(world.store.list()))
        assert str(given_up.value) == f"{url}: {why}"

    tell(story)


def test_a_broken_listing_goes_on_where_it_was() -> None:
    class Breaking(MemoryStore):
        broken = 0

        async def list(self, prefix: str = "", start_after: str = "") -> AsyncIterator[ObjectMeta]:
            count = 0
            async for meta in super().list(prefix, start_after):
                if count == 3:
                    self.broken += 1
                    raise StoreNotApplied(prefix, "the connection broke")
                count += 1
                yield meta

    async def story(world: World) -> None:
        breaking = Breaking(world.clock)
        names = [f"{number:02d}" for number in range(20)]
        for name in names:
            await breaking.put(name, b"x")
        store = RetryingStore(breaking, world.clock, SeededEntropy(1))
        assert [meta.key async for meta in store.list()] == names
        assert breaking.broken == 6

    tell(story)


# --- timeouts ---


def test_no_caller_waits_longer_than_the_timeout() -> None:
    async def story(world: World) -> None:
        await world.truth.put("a", b"x")
        store = TimeoutStore(world.faulty, 2.0)
        world.faulty.pause()
        began = world.clock.monotonic()
        with pytest.raises(StoreNotApplied, match="no answer within 2 s"):
            await store.get("a")
        with pytest.raises(StoreNotApplied):
            await store.head("a")
        with pytest.raises(StoreNotApplied):
            await anext(aiter(store.list()))
        with pytest.raises(StoreOutcomeUnknown):
            await store.put("b", b"y", IfAbsent())
        with pytest.raises(StoreOutcomeUnknown):
            await store.delete("a")
        assert world.clock.monotonic() - began == pytest.approx(10.0, abs=0.1)
        world.faulty.resume()
        await world.faulty.settled()
        assert [await world.holds("a"), await world.holds("b")] == [None, b"y"]

    tell(story)


# --- statistics ---


def test_requests_bytes_outcomes_and_latencies_are_counted() -> None:
    async def story(world: World) -> None:
        store, statistics = world.metered, world.metered.statistics
        etag = await store.put("a", [b"12345", b"678"])
        await store.put("b", b"xy", IfAbsent())
        with pytest.raises(PreconditionFailed):
            await store.put("b", b"long body", IfAbsent())
        await store.put("a", b"12345", IfMatch(etag))
        await store.get("a")
        with pytest.raises(ObjectNotFound):
            await store.get("c")
        world.faulty.rates = FaultRates(slow=1.0, late_seconds_max=20.0)
        await store.get("a")
        world.faulty.rates = FaultRates()
        assert len([meta async for meta in store.list()]) == 2
        await anext(aiter(store.list()))
        # A listing that its caller leaves is closed by the event loop, a little later.
        await world.clock.sleep(1)
        assert statistics.put.outcomes == {"ok": 3, "precondition_failed": 1}
        assert statistics.put.bytes_total == 8 + 2 + 5
        assert statistics.get.outcomes == {"ok": 2, "not_found": 1}
        assert statistics.get.bytes_total == 10
        assert statistics.get.requests == sum(statistics.get.latencies.counts) == 3
        slow = [
            bound
            for bound, count in zip(
                LATENCY_BOUNDS_SECONDS, statistics.get.latencies.counts, strict=False
            )
            if count and bound > 0.1
        ]
        assert len(slow) == 1
        assert statistics.get.latencies.seconds <= slow[0] + 0.1
        assert statistics.list.entries_total == 3
        assert statistics.in_flight == 0
        assert [name for name, _ in statistics.operations()] == [
            "get",
            "head",
            "put",
            "list",
            "delete",
        ]

    tell(story)


def test_a_put_that_a_full_disk_refuses_counts_as_not_applied() -> None:
    class Full(MemoryStore):
        async def put(
            self, key: str, data: Buffer | Sequence[Buffer], condition: Condition | None = None
        ) -> str:
            raise StoreFull(key, "the disk is full")

    async def story(world: World) -> None:
        metered = MeteredStore(Full(world.clock), world.clock)
        with pytest.raises(StoreFull):
            await metered.put("a", b"x")
        assert metered.statistics.put.outcomes == {"not_applied": 1}

    tell(story)


def test_requests_under_way_are_counted() -> None:
    async def story(world: World) -> None:
        world.faulty.pause()
        gets = [asyncio.create_task(world.metered.get("a")) for _ in range(3)]
        await world.clock.sleep(1)
        assert world.metered.statistics.in_flight == 3
        gets[0].cancel()
        await world.clock.sleep(1)
        assert world.metered.statistics.in_flight == 2
        world.faulty.resume()
        await asyncio.gather(*gets, return_exceptions=True)
        assert world.metered.statistics.get.outcomes == {"cancelled": 1, "not_found": 2}

    tell(story)


# --- planned faults ---


def test_a_put_outlives_its_caller() -> None:
    async def story(world: World) -> None:
        world.faulty.rates = FaultRates(slow=1.0, late_seconds_max=60.0)
        caller = asyncio.create_task(world.faulty.put("a", b"x", IfAbsent()))
        await world.clock.sleep(0.01)
        caller.cancel()
        with pytest.raises(asyncio.CancelledError):
            await caller
        assert await world.holds("a") is None
        await world.faulty.settled()
        assert await world.holds("a") == b"x"

    tell(story)


def test_faults_come_at_their_rates_and_repeat_for_a_seed() -> None:
    async def outcomes(world: World, seed: int) -> list[str]:
        rates = FaultRates(refused=0.2, request_lost=0.2, answer_lost=0.2)
        store = FaultyStore(world.truth, world.clock, SeededEntropy(seed), rates)
        seen = []
        for number in range(300):
            try:
                await store.put(f"{seed}/{number}", b"x")
                outcome = "ok"
            except (StoreNotApplied, StoreOutcomeUnknown) as error:
                outcome = type(error).__name__
            applied = await world.holds(f"{seed}/{number}") is not None
            await world.truth.delete(f"{seed}/{number}")
            seen.append(f"{outcome} {applied}")
        return seen

    async def story(world: World) -> None:
        first = await outcomes(world, 1)
        assert first == await outcomes(world, 1)
        assert first != await outcomes(world, 2)
        for expected in (
            "ok True",
            "StoreNotApplied False",
            "StoreOutcomeUnknown False",
            "StoreOutcomeUnknown True",
        ):
            assert 30 <= first.count(expected) <= 150, expected

    tell(story)
