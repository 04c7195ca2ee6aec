"""Retries the requests that are safe to repeat, up to a deadline."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from tidelog.clock import Clock
from tidelog.entropy import Entropy
from tidelog.storage.object_store import (
    AccessDenied,
    Buffer,
    ByteRange,
    Condition,
    ObjectMeta,
    ObjectNotFound,
    ObjectStore,
    PreconditionFailed,
    StoredObject,
    StoreError,
    StoreNotApplied,
    StoreOutcomeUnknown,
    Suffix,
)

T = TypeVar("T")
_log = logging.getLogger(__name__)

_PASSING: tuple[type[StoreError], ...] = (StoreNotApplied, StoreOutcomeUnknown)
_NOT_APPLIED: tuple[type[StoreError], ...] = (StoreNotApplied,)
_ANSWERS: tuple[type[StoreError], ...] = (ObjectNotFound, PreconditionFailed)
"""What a store that works says of an object."""


@dataclass(frozen=True, slots=True)
class StoreRetrySettings:
    """The deadline and the pauses of retries.

    The pause doubles from the first to the longest. A random part of up to a half is subtracted, so
    that clients that failed together do not retry together.
    """

    deadline_ms: int = 60_000
    """Counted from the start of the first attempt; no attempt begins after it."""
    pause_ms_first: int = 50
    pause_ms_max: int = 5_000


class RetryingStore:
    """Another store, whose requests are retried after transient faults.

    | request | retried after |
    |---|---|
    | get, head, delete, unconditional put | not applied, unknown outcome |
    | list | the same, from the last entry on |
    | conditional put | not applied |

    A conditional put with an unknown outcome is not retried. The first attempt's success would
    refuse the second attempt. Only the caller knows the object's expected content and can tell that
    from a defeat.

    AccessDenied is retried once the same operation has succeeded on this store: credentials are
    rotated, and policies take time to spread. Before that a permission is missing, and the error is
    final.

    At the deadline the last error is raised. If the caller is cancelled before, the cancellation
    carries the last error as its cause. An error names the store, unless it is about the object.
    """

    def __init__(
        self,
        store: ObjectStore,
        clock: Clock,
        entropy: Entropy,
        settings: StoreRetrySettings | None = None,
    ) -> None:
        self._store = store
        self._clock = clock
        self._entropy = entropy
        self._settings = settings or StoreRetrySettings()
        self._succeeded: set[str] = set()
        """Operations that have succeeded at least once."""

    @property
    def url(self) -> str:
        return self._store.url

    async def get(self, key: str, byte_range: ByteRange | Suffix | None = None) -> StoredObject:
        return await self._repeat("get", lambda: self._store.get(key, byte_range), _PASSING)

    async def head(self, key: str) -> ObjectMeta:
        return await self._repeat("head", lambda: self._store.head(key), _PASSING)

    async def put(
        self, key: str, data: Buffer | Sequence[Buffer], condition: Condition | None = None
    ) -> str:
        repeatable = _PASSING if condition is None else _NOT_APPLIED
        return await self._repeat("put", lambda: self._store.put(key, data, condition), repeatable)

    async def list(self, prefix: str = "", start_after: str = "") -> AsyncIterator[ObjectMeta]:
        attempts = self._attempts("list")
        while True:
            try:
                async for meta in self._store.list(prefix, start_after):
                    self._succeeded.add("list")
                    start_after = meta.key
                    attempts = self._attempts("list")
                    yield meta
                self._succeeded.add("list")
                return
            except StoreError as error:
                self._raise_final(error, "list", _PASSING)
                await attempts.pause(error)

    async def delete(self, *keys: str) -> None:
        await self._repeat("delete", lambda: self._store.delete(*keys), _PASSING)

    async def close(self) -> None:
        await self._store.close()

    async def _repeat(
        self,
        operation: str,
        attempt: Callable[[], Awaitable[T]],
        repeatable: tuple[type[StoreError], ...],
    ) -> T:
        attempts = self._attempts(operation)
        last: StoreError | None = None
        try:
            while True:
                try:
                    found = await attempt()
                except StoreError as error:
                    last = error
                    self._raise_final(error, operation, repeatable)
                    await attempts.pause(error)
                else:
                    self._succeeded.add(operation)
                    return found
        except asyncio.CancelledError as cancelled:
            # asyncio.timeout raises TimeoutError from this exception.
            cancelled.__cause__ = cancelled.__cause__ or last
            raise
        finally:
            # The error's traceback names this frame: together they would stay, with the data of a
            # put, until a collection.
            last = None

    def _raise_final(
        self, error: StoreError, operation: str, repeatable: tuple[type[StoreError], ...]
    ) -> None:
        """Raise the error unless the request may be repeated."""
        if isinstance(error, AccessDenied) and operation in self._succeeded:
            return
        if not isinstance(error, repeatable):
            if not isinstance(error, _ANSWERS):
                error.store = self.url
            raise error

    def _attempts(self, operation: str) -> _Attempts:
        return _Attempts(self.url, operation, self._clock, self._entropy, self._settings)


class _Attempts:
    """The pauses between one request's attempts."""

    def __init__(
        self, url: str, operation: str, clock: Clock, entropy: Entropy, settings: StoreRetrySettings
    ) -> None:
        self._url = url
        self._operation = operation
        self._clock = clock
        self._entropy = entropy
        self._settings = settings
        self._failed = 0
        self._deadline = clock.monotonic() + settings.deadline_ms / 1000

    async def pause(self, error: StoreError) -> None:
        """Wait before the next attempt; raise `error` if that would pass the deadline."""
        # The exponent is bounded: doubling a float for hours would overflow it.
        pause_ms = min(
            self._settings.pause_ms_max, self._settings.pause_ms_first * 2 ** min(self._failed, 30)
        )
        seconds = self._entropy.uniform(pause_ms / 2, pause_ms) / 1000
        seconds_left = self._deadline - self._clock.monotonic()
        if seconds > seconds_left:
            error.store = self._url
            raise error
        self._failed += 1
        _log.warning(
            "a store request failed; it is retried for %.0f s: %s",
            seconds_left,
            error.why,
            extra={
                "store": self._url,
                "operation": self._operation,
                "key": error.key,
                "attempt": self._failed,
                "pause_ms": round(seconds * 1000),
            },
        )
        await self._clock.sleep(seconds)
