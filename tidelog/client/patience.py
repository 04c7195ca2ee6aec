"""Retries of a client's request: how long, and how often."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from tidelog.client.errors import RequestFailed, RequestRefused
from tidelog.clock import Clock
from tidelog.entropy import Entropy

T = TypeVar("T")
_JITTER = 0.2


@dataclass(frozen=True, slots=True)
class ClientRetrySettings:
    """Waits double from the shortest to the longest, with jitter, as in Kafka's clients."""

    backoff_ms_min: int = 100
    backoff_ms_max: int = 1000


class Patience:
    """The waits between retries of one request, until a deadline or for ever."""

    def __init__(
        self, clock: Clock, entropy: Entropy, settings: ClientRetrySettings, timeout_ms: int | None
    ) -> None:
        self._clock = clock
        self._entropy = entropy
        self._settings = settings
        self._deadline = None if timeout_ms is None else clock.monotonic() + timeout_ms / 1000
        self.attempts = 0
        """The number of waits so far."""

    async def wait(self, failure: RequestFailed | RequestRefused) -> None:
        """Wait before the next attempt; raise the failure at the deadline."""
        settings = self._settings
        longest_ms = min(
            settings.backoff_ms_min * 2 ** min(self.attempts, 20), settings.backoff_ms_max
        )
        seconds = longest_ms / 1000 * self._entropy.uniform(1 - _JITTER, 1 + _JITTER)
        if self._deadline is not None and self._clock.monotonic() + seconds > self._deadline:
            raise failure
        self.attempts += 1
        await self._clock.sleep(seconds)

    async def answer(self, ask: Callable[[], Awaitable[T]]) -> T:
        """The answer to a request that is safe to repeat.

        Refusals that may pass, as of a coordinator that loads or moves, repeat it. Raises
        RequestRefused: the first other one, or the last at the deadline.
        """
        while True:
            try:
                return await ask()
            except RequestRefused as refusal:
                if not refusal.retriable:
                    raise
                await self.wait(refusal)
