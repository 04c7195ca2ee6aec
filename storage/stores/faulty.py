"""A store with injected faults, for tests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeVar

from tidelog.clock import Clock
from tidelog.entropy import Entropy
from tidelog.storage.object_store import (
    Buffer,
    ByteRange,
    Condition,
    ObjectMeta,
    ObjectNotFound,
    ObjectStore,
    PreconditionFailed,
    StoredObject,
    StoreNotApplied,
    StoreOutcomeUnknown,
    Suffix,
)

T = TypeVar("T")


class StoreFault(Enum):
    """A fault that one request meets."""

    REFUSED = "certainly not applied (a 409 or 429, a refused connection)"
    REQUEST_LOST = "not applied, and the caller does not know (a 503, a broken connection)"
    ANSWER_LOST = "applied, and the caller does not know"
    LATE = "the caller is told that nobody knows; applied some time later"
    SLOW = "applied and answered, but late"
    GONE = "a conditional put is refused (412), and the next get of the key finds nothing (404)"


_WRITES_ONLY = frozenset({StoreFault.REQUEST_LOST, StoreFault.ANSWER_LOST, StoreFault.LATE})


@dataclass(frozen=True, slots=True)
class FaultRates:
    """The probability of each fault, per request.

    `late_seconds_max` bounds the delay of a late or slow request.
    """

    refused: float = 0.0
    request_lost: float = 0.0
    answer_lost: float = 0.0
    late: float = 0.0
    slow: float = 0.0
    late_seconds_max: float = 30.0

    def drawn(self, chance: float) -> StoreFault | None:
        """The fault for a random number from [0, 1), or None."""
        for rate, fault in (
            (self.refused, StoreFault.REFUSED),
            (self.request_lost, StoreFault.REQUEST_LOST),
            (self.answer_lost, StoreFault.ANSWER_LOST),
            (self.late, StoreFault.LATE),
            (self.slow, StoreFault.SLOW),
        ):
            if chance < rate:
                return fault
            chance -= rate
        return None


@dataclass(slots=True)
class _Planned:
    fault: StoreFault
    operation: str
    key: str


class FaultyStore:
    """Another store, with faults drawn at the given rates or planned for certain requests.

    A task of this store carries out each put and delete. Cancelling the caller does not recall it,
    just as a dead process cannot recall a sent request. `settled` waits for all of these tasks.
    While paused, the store holds every request and drops none.
    """

    def __init__(
        self, store: ObjectStore, clock: Clock, entropy: Entropy, rates: FaultRates | None = None
    ) -> None:
        self._store = store
        self._clock = clock
        self._entropy = entropy
        self._planned: list[_Planned] = []
        self._gone: set[str] = set()
        self._under_way: dict[asyncio.Task[Any], None] = {}
        self._running: asyncio.Event | None = None
        self.rates = rates or FaultRates()

    @property
    def url(self) -> str:
        return self._store.url

    def plan(self, operation: str, *faults: StoreFault, key: str = "") -> None:
        """Give the next requests of this kind these faults in turn, before any drawn fault.

        With `key` set, only requests for that key meet them.
        """
        self._planned += [_Planned(fault, operation, key) for fault in faults]

    def pause(self) -> None:
        """Hold all requests until `resume`."""
        self._running = asyncio.Event()

    def resume(self) -> None:
        """Release the held requests."""
        if self._running is not None:
            self._running.set()
        self._running = None

    async def settled(self) -> None:
        """Wait until the store has carried out every put and delete sent to it."""
        while self._under_way:
            await asyncio.wait(list(self._under_way))

    async def get(self, key: str, byte_range: ByteRange | Suffix | None = None) -> StoredObject:
        return await self._read("get", key, lambda: self._store.get(key, byte_range))

    async def head(self, key: str) -> ObjectMeta:
        return await self._read("head", key, lambda: self._store.head(key))

    async def put(
        self, key: str, data: Buffer | Sequence[Buffer], condition: Condition | None = None
    ) -> str:
        fault = self._fault("put", key)
        if fault is StoreFault.GONE:
            self._gone.add(key)
            raise PreconditionFailed(key, "an object was there, and is deleted")
        return await self._write(key, fault, self._store.put(key, data, condition))

    async def list(self, prefix: str = "", start_after: str = "") -> AsyncIterator[ObjectMeta]:
        await self._before_read(prefix, self._fault("list", prefix))
        async for meta in self._store.list(prefix, start_after):
            yield meta

    async def delete(self, *keys: str) -> None:
        fault = next(filter(None, (self._fault("delete", key) for key in keys)), None)
        await self._write(keys[0], fault, self._store.delete(*keys))

    async def close(self) -> None:
        """Release the held requests, wait for them, then close."""
        self.resume()
        await self.settled()
        await self._store.close()

    async def _read(self, operation: str, key: str, action: Callable[[], Awaitable[T]]) -> T:
        await self._before_read(key, self._fault(operation, key))
        if key in self._gone:
            self._gone.discard(key)
            raise ObjectNotFound(key, "no such object")
        return await action()

    async def _before_read(self, key: str, fault: StoreFault | None) -> None:
        if self._running is not None:
            await self._running.wait()
        if fault is StoreFault.REFUSED or fault in _WRITES_ONLY:
            raise StoreNotApplied(key, "the request failed, as was planned")
        if fault is StoreFault.SLOW:
            await self._clock.sleep(self._late_seconds())

    async def _write(self, key: str, fault: StoreFault | None, action: Coroutine[Any, Any, T]) -> T:
        if fault is StoreFault.REFUSED:
            action.close()
            raise StoreNotApplied(key, "refused, as was planned")
        if fault is StoreFault.REQUEST_LOST:
            action.close()
            raise StoreOutcomeUnknown(key, "the request was lost, as was planned")
        seconds = self._late_seconds() if fault in {StoreFault.LATE, StoreFault.SLOW} else 0.0
        sent = asyncio.get_running_loop().create_task(self._carry_out(action, seconds))
        self._under_way[sent] = None
        sent.add_done_callback(self._acted)
        if fault is StoreFault.LATE:
            raise StoreOutcomeUnknown(key, "it is late, as was planned")
        answer = await asyncio.shield(sent)
        if fault is StoreFault.ANSWER_LOST:
            raise StoreOutcomeUnknown(key, "the answer was lost, as was planned")
        return answer

    async def _carry_out(self, action: Coroutine[Any, Any, T], seconds: float) -> T:
        try:
            if seconds:
                await self._clock.sleep(seconds)
            if self._running is not None:
                await self._running.wait()
        except BaseException:
            action.close()
            raise
        return await action

    def _acted(self, task: asyncio.Task[Any]) -> None:
        self._under_way.pop(task, None)
        # Retrieve the exception: the caller already has its answer, or was cancelled.
        if not task.cancelled():
            task.exception()

    def _fault(self, operation: str, key: str) -> StoreFault | None:
        for index, planned in enumerate(self._planned):
            if planned.operation == operation and planned.key in {"", key}:
                return self._planned.pop(index).fault
        return self.rates.drawn(self._entropy.uniform(0.0, 1.0))

    def _late_seconds(self) -> float:
        return self._entropy.uniform(0.0, self.rates.late_seconds_max)
