"""The keys of a listener's issuer, read again from time to time and for keys that are unknown.

A key set that cannot be read leaves the keys in force that were read before, up to an age.
"""

from __future__ import annotations

import asyncio
import logging
from typing import NamedTuple, NoReturn

from tidelog.broker.authentication.key_set import (
    KeySet,
    UnusableKeySet,
    VerificationKey,
    parse_key_set,
)
from tidelog.broker.authentication.key_source import ReadKeys
from tidelog.clock import Clock
from tidelog.errors import TidelogError, Unreachable

logger = logging.getLogger(__name__)


class KeysUnavailable(TidelogError):
    """There are no keys in force: nothing is known of a token."""


class KeyTimes(NamedTuple):
    """When a key set is read, in seconds."""

    refresh: float
    """The pause after a success."""
    retry: float
    """The pause after a first failure; each further one doubles it."""
    retry_max: float
    unknown: float
    """The least pause before a read for the sake of an unknown key."""
    age_max: float
    """The time after which keys that were read last are out of force."""


class SigningKeys:
    """The keys in force."""

    def __init__(
        self,
        name: str,
        read: ReadKeys,
        times: KeyTimes,
        clock: Clock,
        *,
        is_exposed: bool = False,
    ) -> None:
        """`name`: the key set's, for logs and messages. It must hold no secret."""
        self.is_exposed = is_exposed
        """Whether others on the network could replace the keys on their way."""
        self._name = name
        self._read = read
        self._times = times
        self._clock = clock
        self._keys = KeySet()
        self._taken_at = float("-inf")
        self._began_at = float("-inf")
        self._failures = 0
        self._why = "it has not been read yet"
        self._wanted = asyncio.Event()
        self._round: asyncio.Future[None] | None = None

    async def run(self) -> NoReturn:
        """Read the key set when it is due, for ever. One read is under way at a time."""
        while True:
            await self.take()
            await self._pause()

    def reload(self) -> None:
        """Read the key set now."""
        self._wanted.set()

    async def find(self, key_id: str | None, algorithm: str) -> VerificationKey | None:
        """The key for a token; None if the issuer has none such.

        An unknown key id may make the broker read the key set again, at a bounded rate: a client
        chooses it. Raises KeysUnavailable.
        """
        if self._taken_at == float("-inf") and not self._failures:
            await self._next_round()
        found = self._in_force().suited(key_id, algorithm)
        if found is None and key_id is not None and self._may_read():
            await self._next_round()
            found = self._in_force().suited(key_id, algorithm)
        return found

    async def take(self) -> None:
        """Read the key set. A failure is logged, and leaves the keys."""
        self._wanted.clear()
        self._began_at = self._clock.monotonic()
        self._round = self._round or asyncio.get_running_loop().create_future()
        try:
            keys = parse_key_set(await self._read())
        except (Unreachable, UnusableKeySet) as error:
            self._failures += 1
            if str(error) != self._why:
                logger.error(
                    "the key set for tokens cannot be read",
                    extra={"key_set": self._name, "why": str(error)},
                )
            self._why = str(error)
        else:
            if self._failures or self._keys.left_out != keys.left_out:
                logger.info(
                    "key set for tokens taken",
                    extra={"key_set": self._name, "left_out": "; ".join(keys.left_out[:3])},
                )
            self._keys, self._taken_at = keys, self._clock.monotonic()
            self._failures, self._why = 0, ""
        finally:
            done, self._round = self._round, None
            if not done.done():
                done.set_result(None)

    def _in_force(self) -> KeySet:
        age = self._clock.monotonic() - self._taken_at
        if age > self._times.age_max:
            raise KeysUnavailable(
                f"no keys of {self._name} are in force, so no token is accepted: {self._why}"
            )
        return self._keys

    def _may_read(self) -> bool:
        since = self._clock.monotonic() - self._began_at
        return self._round is not None or since >= self._times.unknown

    async def _next_round(self) -> None:
        """Wait for the read that is under way, else for another one."""
        if self._round is None:
            self._round = asyncio.get_running_loop().create_future()
            self._wanted.set()
        await asyncio.shield(self._round)

    async def _pause(self) -> None:
        """Wait until the next read is due or wanted."""
        seconds = self._times.refresh
        if self._failures:
            doubled = self._times.retry * 2.0 ** min(self._failures - 1, 32)
            seconds = min(doubled, self._times.retry_max, self._times.refresh)
        sleeping = asyncio.ensure_future(self._clock.sleep(seconds))
        wanted = asyncio.ensure_future(self._wanted.wait())
        try:
            await asyncio.wait({sleeping, wanted}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            sleeping.cancel()
            wanted.cancel()
