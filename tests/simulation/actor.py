"""What a client of a simulated cluster runs with: its library, clock, chance and the history."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from tests.simulation.history import History, Key
from tests.simulation.log_client import LogClient, NoAnswer, RequestRefused
from tidelog.clock import Clock

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class WorkloadSettings:
    """The load of one run. Seconds are virtual."""

    keys: tuple[Key, ...]
    producers: int = 2
    plain_producers: int = 1
    consumers: int = 2
    observers: int = 2
    topic_churns: int = 1
    pause_seconds_mean: float = 0.25
    records_max: int = 4
    padding_bytes_max: int = 2000
    delivery_seconds_max: float = 40.0
    fetch_wait_seconds: float = 0.5
    consume_pause_seconds_mean: float = 0.03
    reassign_probability: float = 0.02
    forget_probability: float = 0.05


@dataclass(slots=True)
class Actor:
    """What a client's code runs with."""

    name: str
    client: LogClient
    clock: Clock
    random: random.Random
    history: History
    settings: WorkloadSettings
    stopping: asyncio.Event

    async def pause(self, mean_seconds: float) -> None:
        """Think for a while; at once when the run is ending."""
        if not self.stopping.is_set():
            await self.clock.sleep(self.random.expovariate(1.0 / mean_seconds))

    async def backoff(self, attempt: int) -> None:
        """Wait before a retry, as clients do: 0.1 s doubling up to 1 s, with jitter."""
        await self.clock.sleep(min(0.1 * 2**attempt, 1.0) * self.random.uniform(0.8, 1.2))

    async def persist(self, request: Callable[[], Awaitable[T]]) -> T:
        """Repeat a harmless request until it is answered."""
        attempt = 0
        while True:
            try:
                return await request()
            except (RequestRefused, NoAnswer):
                await self.backoff(attempt)
                attempt += 1


def error_text(error: Exception) -> str:
    """How an error is counted."""
    return error.name if isinstance(error, RequestRefused) else f"no answer: {error}"
