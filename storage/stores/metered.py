"""Counts a store's requests, outcomes, bytes and latencies."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal

from tidelog.clock import Clock
from tidelog.counts import Durations
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
    StoreMisconfigured,
    StoreNotApplied,
    StoreOutcomeUnknown,
    Suffix,
    size_of,
)

LATENCY_BOUNDS_SECONDS = (
    *(0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1),
    *(0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0),
)
"""Upper bounds of the latency buckets; one more bucket holds slower requests."""

Operation = Literal["get", "head", "put", "list", "delete"]
Outcome = Literal[
    "ok",
    "not_found",
    "precondition_failed",
    "denied",
    "not_applied",
    "unknown",
    "misconfigured",
    "cancelled",
    "other",
]
_OUTCOMES: dict[type[BaseException], Outcome] = {
    ObjectNotFound: "not_found",
    PreconditionFailed: "precondition_failed",
    AccessDenied: "denied",
    StoreNotApplied: "not_applied",
    StoreOutcomeUnknown: "unknown",
    StoreMisconfigured: "misconfigured",
    asyncio.CancelledError: "cancelled",
}


@dataclass(slots=True)
class OperationStatistics:
    """Statistics of one kind of request.

    Latencies cover all outcomes. A listing lasts until its end.
    """

    outcomes: Counter[Outcome] = field(default_factory=Counter)
    bytes_total: int = 0
    """Bytes of the bodies that gets returned and puts stored."""
    entries_total: int = 0
    """Entries that listings returned."""
    latencies: Durations = field(default_factory=lambda: Durations(LATENCY_BOUNDS_SECONDS))

    @property
    def requests(self) -> int:
        """Completed requests, whatever their outcome."""
        return self.outcomes.total()

    def observe(self, outcome: Outcome, seconds: float) -> None:
        """Count one completed request."""
        self.outcomes[outcome] += 1
        self.latencies.observe(seconds)


@dataclass(slots=True)
class StoreStatistics:
    """The statistics of one MeteredStore since its start."""

    get: OperationStatistics = field(default_factory=OperationStatistics)
    head: OperationStatistics = field(default_factory=OperationStatistics)
    put: OperationStatistics = field(default_factory=OperationStatistics)
    list: OperationStatistics = field(default_factory=OperationStatistics)
    delete: OperationStatistics = field(default_factory=OperationStatistics)
    in_flight: int = 0

    def operations(self) -> Iterator[tuple[Operation, OperationStatistics]]:
        """Each kind of request, by name."""
        yield "get", self.get
        yield "head", self.head
        yield "put", self.put
        yield "list", self.list
        yield "delete", self.delete


class MeteredStore:
    """Another store, with statistics. Place it below RetryingStore to count each attempt."""

    def __init__(
        self, store: ObjectStore, clock: Clock, statistics: StoreStatistics | None = None
    ) -> None:
        self._store = store
        self._clock = clock
        self.statistics = statistics or StoreStatistics()

    @property
    def url(self) -> str:
        return self._store.url

    async def get(self, key: str, byte_range: ByteRange | Suffix | None = None) -> StoredObject:
        with self._observed(self.statistics.get):
            stored = await self._store.get(key, byte_range)
        self.statistics.get.bytes_total += size_of(stored.data)
        return stored

    async def head(self, key: str) -> ObjectMeta:
        with self._observed(self.statistics.head):
            return await self._store.head(key)

    async def put(
        self, key: str, data: Buffer | Sequence[Buffer], condition: Condition | None = None
    ) -> str:
        with self._observed(self.statistics.put):
            etag = await self._store.put(key, data, condition)
        self.statistics.put.bytes_total += size_of(data)
        return etag

    async def list(self, prefix: str = "", start_after: str = "") -> AsyncIterator[ObjectMeta]:
        with self._observed(self.statistics.list):
            async for meta in self._store.list(prefix, start_after):
                self.statistics.list.entries_total += 1
                yield meta

    async def delete(self, *keys: str) -> None:
        with self._observed(self.statistics.delete):
            await self._store.delete(*keys)

    async def close(self) -> None:
        await self._store.close()

    @contextmanager
    def _observed(self, statistics: OperationStatistics) -> Iterator[None]:
        started = self._clock.monotonic()
        outcome: Outcome = "other"
        self.statistics.in_flight += 1
        try:
            yield
            outcome = "ok"
        except GeneratorExit:
            # A caller may stop reading a listing before its end.
            outcome = "ok"
            raise
        except (Exception, asyncio.CancelledError) as error:
            outcome = _outcome_of(error)
            raise
        finally:
            self.statistics.in_flight -= 1
            statistics.observe(outcome, self._clock.monotonic() - started)


def _outcome_of(error: BaseException) -> Outcome:
    found = (outcome for kind, outcome in _OUTCOMES.items() if isinstance(error, kind))
    return next(found, "other")
