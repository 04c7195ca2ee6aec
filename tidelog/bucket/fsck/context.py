"""The parts that all checks of a bucket share: access, limits and repetition.

A bucket changes during a check: records are rolled, tenures forgotten, objects deleted. So fsck
does not believe a fault at first sight. It repeats a check that finds one, from its listing on;
only a fault that each run finds counts. Brokers delete an object long after its last use
(`log.delete.grace.ms`). So in a check that takes less time, an object that vanishes between its
listing and its reading was needless already.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import TypeAlias, TypeVar

from tidelog.bucket.fsck.faults import Findings
from tidelog.bucket.views.bucket import Bucket
from tidelog.bucket.views.reading import BucketAccess
from tidelog.concurrency import read_all
from tidelog.storage.object_store import ObjectMeta

LOOKS = 3
PAUSE_SECONDS = 1.0
OBJECTS_AT_ONCE_MAX = 8
"""Whole WAL objects, checkpoints and ranges of segments that are in memory at a time."""
INDEXES_AT_ONCE_MAX = 32
"""Ends of objects that are read at a time."""
WINDOW = 256
"""Objects that have tasks at a time."""

T = TypeVar("T")

Check: TypeAlias = Callable[[], Awaitable[Findings]]
Progress: TypeAlias = Callable[[str], None]
"""Called with the key of each object that was checked."""


@dataclass(slots=True)
class CheckContext:
    """One run of fsck."""

    bucket: Bucket
    deep: bool
    """Read every byte, not only the ends of objects."""
    progress: Progress
    objects: asyncio.Semaphore = field(
        default_factory=lambda: asyncio.Semaphore(OBJECTS_AT_ONCE_MAX)
    )
    indexes: asyncio.Semaphore = field(
        default_factory=lambda: asyncio.Semaphore(INDEXES_AT_ONCE_MAX)
    )

    @property
    def grace_ms(self) -> int:
        """How long brokers keep superfluous objects (`log.delete.grace.ms`)."""
        return self.access.settings.delete_grace_ms

    @property
    def access(self) -> BucketAccess:
        return self.bucket.access

    @property
    def gate(self) -> asyncio.Semaphore:
        """Limits the number of objects that are read at a time, at this depth."""
        return self.objects if self.deep else self.indexes

    async def settled(self, check: Check) -> Findings:
        """The findings of a check, with only those faults that each of several runs finds."""
        found = await check()
        for _ in range(LOOKS - 1):
            if not found.faults:
                return found
            await self.access.clock.sleep(PAUSE_SECONDS)
            again = await check()
            known = set(found.faults)
            again.faults = [fault for fault in again.faults if fault in known]
            found = again
        return found

    async def each(self, items: Iterable[T], check: Callable[[T], Awaitable[Findings]]) -> Findings:
        """The findings of a check of all items, each settled by itself, some at a time."""
        findings = Findings()
        window: list[T] = []

        async def one(item: T) -> Findings:
            return await self.settled(lambda: check(item))

        async def flush() -> None:
            for found in await read_all(one, window, self.gate):
                findings.merge(found)
            window.clear()

        for item in items:
            window.append(item)
            if len(window) == WINDOW:
                await flush()
        await flush()
        return findings

    def list(self, prefix: str) -> AsyncIterator[ObjectMeta]:
        """The objects that are under a prefix now."""
        return self.access.store.list(prefix)
