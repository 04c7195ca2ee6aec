"""Deletes what collections find superfluous: after a grace, a bounded number at a time, counted.

Marks are in memory: a new process waits for the grace once more. If the process dies anywhere, less
is deleted. A deletion whose answer is lost is repeated.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from tidelog.bucket.object_keys import SegmentObject, parse_key
from tidelog.clock import Clock
from tidelog.crash_points import CrashPoint, CrashPoints
from tidelog.storage.object_store import ObjectStore
from tidelog.wal.reading import read_all

logger = logging.getLogger(__name__)

K = TypeVar("K")

MARKED_MAX = 100_000
DELETES_AT_ONCE_MAX = 16
DELETES_A_SECOND_MAX = 400


@dataclass(slots=True)
class CollectorMetrics:
    """What was deleted, by the folder that it lay in."""

    objects: dict[str, int] = field(default_factory=dict)
    bytes: dict[str, int] = field(default_factory=dict)
    marked: dict[str, int] = field(default_factory=dict)
    """What waits for the grace, by the pass that looks after it."""
    passes: int = 0
    failures: int = 0
    """Passes that were given up."""

    def deleted(self, key: str, size_bytes: int) -> None:
        """Count an object."""
        folder = key.partition("/")[0]
        self.objects[folder] = self.objects.get(folder, 0) + 1
        self.bytes[folder] = self.bytes.get(folder, 0) + size_bytes


class Marks(Generic[K]):
    """What was found superfluous, since when. Pure."""

    def __init__(self, grace_seconds: float) -> None:
        self._grace_seconds = grace_seconds
        self._marked: dict[K, float] = {}

    def __len__(self) -> int:
        return len(self._marked)

    def update(self, superfluous: Iterable[K], now: float) -> list[K]:
        """What was found superfluous in this pass and in all for so long as the grace."""
        found = dict.fromkeys(superfluous)
        self._marked = {key: since for key, since in self._marked.items() if key in found}
        for key in found:
            if len(self._marked) >= MARKED_MAX:
                break
            self._marked.setdefault(key, now)
        # Strictly longer: a grace that has just passed may be a little shorter by another clock.
        return [key for key, since in self._marked.items() if now - since > self._grace_seconds]


class Deleter:
    """Deletes objects, a bounded number at a time and a second."""

    def __init__(
        self,
        store: ObjectStore,
        clock: Clock,
        crash_points: CrashPoints,
        metrics: CollectorMetrics,
    ) -> None:
        self._store = store
        self._clock = clock
        self._crash_points = crash_points
        self._metrics = metrics

    async def delete(self, objects: Iterable[tuple[str, int]]) -> None:
        """Delete objects, given by key and size, in this order, some at a time. Raises StoreError:
        the rest is left for the next pass."""

        async def one(found: tuple[str, int]) -> None:
            key, size_bytes = found
            self._crash_points.hit(CrashPoint.COLLECTED_OBJECT)
            if isinstance(parse_key(key), SegmentObject):
                self._crash_points.hit(CrashPoint.COLLECTED_SEGMENT)
            await self._store.delete(key)
            self._metrics.deleted(key, size_bytes)

        waiting = list(objects)
        at_once = asyncio.Semaphore(DELETES_AT_ONCE_MAX)
        for first in range(0, len(waiting), DELETES_AT_ONCE_MAX):
            batch = waiting[first : first + DELETES_AT_ONCE_MAX]
            await read_all(one, batch, at_once)
            await self._clock.sleep(len(batch) / DELETES_A_SECOND_MAX)
        if waiting:
            logger.info(
                "objects were collected",
                extra={
                    "objects": len(waiting),
                    "bytes": sum(size for _, size in waiting),
                    "first": waiting[0][0],
                },
            )
