"""When a key set is read, and which keys are in force between two reads. In virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

import pytest

from tests.simulation.world.clock import SimulatedClock
from tests.simulation.world.loop import SimulatedLoop
from tests.unit.broker.authentication.issuer import Issuer
from tidelog.broker.authentication.signing_keys import KeysUnavailable, KeyTimes, SigningKeys
from tidelog.errors import Unreachable

TIMES = KeyTimes(refresh=3600, retry=0.1, retry_max=10, unknown=10, age_max=7200)


class Source:
    """A key set that can be away, slow, or no key set."""

    def __init__(self, clock: SimulatedClock) -> None:
        self.clock = clock
        self.issuer = Issuer()
        self.answer: Exception | bytes | None = None
        self.seconds = 0.0
        self.reads: list[float] = []

    async def read(self) -> bytes:
        self.reads.append(self.clock.monotonic())
        await self.clock.sleep(self.seconds)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer or self.issuer.key_set()


Story = Callable[[SigningKeys, Source], Coroutine[Any, Any, None]]


def play(story: Story) -> None:
    with SimulatedLoop(1) as loop:
        clock = SimulatedClock(loop)
        source = Source(clock)
        keys = SigningKeys("https://issuer.example/jwks", source.read, TIMES, clock)

        async def main() -> None:
            running = asyncio.create_task(keys.run())
            try:
                await story(keys, source)
            finally:
                running.cancel()
                with suppress(asyncio.CancelledError):
                    await running

        loop.run(main(), seconds_max=100_000)
        assert loop.unhandled == []


async def knows(keys: SigningKeys, key_id: str) -> bool:
    return await keys.find(key_id, "ES256") is not None


def test_the_first_clients_wait_for_the_first_read() -> None:
    async def story(keys: SigningKeys, source: Source) -> None:
        source.seconds = 3
        found = await asyncio.gather(*[knows(keys, "k1") for _ in range(5)])
        assert found == [True] * 5
        assert len(source.reads) == 1

    play(story)


def test_a_new_key_is_known_at_its_first_token() -> None:
    async def story(keys: SigningKeys, source: Source) -> None:
        assert await knows(keys, "k1")
        await source.clock.sleep(60)
        source.issuer.rotate("k2")
        found = await asyncio.gather(*[knows(keys, "k2") for _ in range(5)])
        assert found == [True] * 5
        assert len(source.reads) == 2
        assert not await knows(keys, "k1"), "the issuer has withdrawn k1"

    play(story)


def test_unknown_keys_do_not_make_the_broker_read_more_often_than_its_limit() -> None:
    async def story(keys: SigningKeys, source: Source) -> None:
        assert await knows(keys, "k1")
        began = source.clock.monotonic()
        for number in range(1000):
            assert not await knows(keys, f"invented {number}")
            await source.clock.sleep(0.1)
        assert source.clock.monotonic() - began < 110
        assert len(source.reads) <= 11
        pauses = [b - a for a, b in zip(source.reads, source.reads[1:], strict=False)]
        assert min(pauses) >= TIMES.unknown

    play(story)


def test_a_key_set_is_read_again_when_it_is_due_and_when_the_operator_asks() -> None:
    async def story(keys: SigningKeys, source: Source) -> None:
        assert await knows(keys, "k1")
        await source.clock.sleep(TIMES.refresh + 1)
        assert len(source.reads) == 2
        source.issuer.rotate("k2")
        keys.reload()
        await source.clock.sleep(1)
        assert len(source.reads) == 3
        assert await knows(keys, "k2")

    play(story)


@pytest.mark.parametrize("answer", [Unreachable("no route"), b"<html>"])
def test_old_keys_stay_in_force_up_to_an_age(
    answer: Exception | bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async def story(keys: SigningKeys, source: Source) -> None:
        assert await knows(keys, "k1")
        source.answer = answer
        await source.clock.sleep(TIMES.age_max - 1)
        assert await knows(keys, "k1")
        await source.clock.sleep(2)
        with pytest.raises(KeysUnavailable, match=r"no keys of https://issuer.example/jwks are"):
            await knows(keys, "k1")
        source.answer = None
        await source.clock.sleep(TIMES.retry_max + 1)
        assert await knows(keys, "k1")
        failing = [at for at in source.reads if at > source.reads[0] + TIMES.refresh - 1]
        assert len(failing) < 400, "the pauses grow"

    play(story)
    errors = [each for each in caplog.records if each.levelname == "ERROR"]
    assert len(errors) == 1, "an outage is told once"


def test_without_any_keys_clients_get_no_verdict() -> None:
    async def story(keys: SigningKeys, source: Source) -> None:
        source.answer = Unreachable("no route")
        source.seconds = 1
        with pytest.raises(KeysUnavailable, match="no route"):
            await knows(keys, "k1")
        source.answer, source.seconds = None, 0
        await source.clock.sleep(11)
        assert await knows(keys, "k1")

    play(story)
