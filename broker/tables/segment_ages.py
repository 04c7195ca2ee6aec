"""When this process began to put each segment, so that none is committed that is too old.

A segment that no table lists may be collected when its table has gone on the grace after it was
put (`bucket.reachability.loose_segments`). `TableLog.commit` refuses segments that are older than
half of that, at each of its looks at the table. So that nobody who writes segments can forget to
tell their age, it is noted where all puts go through.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Final

from tidelog.clock import Clock
from tidelog.storage.object_store import (
    Buffer,
    ByteRange,
    Condition,
    ObjectMeta,
    ObjectStore,
    StoredObject,
    Suffix,
)
from tidelog.storage.segment.segment import TOPICS_PREFIX

SEGMENT_SUFFIX: Final = ".parquet"
NEVER: Final = float("-inf")


class SegmentAges:
    """The segments that were put lately. Pure."""

    def __init__(self, age_seconds_max: float) -> None:
        """`age_seconds_max`: older ones are as good as unknown."""
        self._age_seconds_max = age_seconds_max
        self._begun: dict[str, float] = {}

    def begin(self, key: str, now: float) -> None:
        """A put of this segment begins."""
        for old, begun in list(self._begun.items()):
            if now - begun <= self._age_seconds_max:
                break
            del self._begun[old]
        self._begun.setdefault(key, now)

    def begun_at(self, keys: Iterable[str]) -> float | None:
        """Before this moment none of these was put; long ago where one is unknown, None where there
        are none."""
        return min((self._begun.get(key, NEVER) for key in keys), default=None)


class SegmentAgingStore:
    """A store that notes when segments are put; in all else the store that it is given."""

    def __init__(self, inner: ObjectStore, clock: Clock, ages: SegmentAges) -> None:
        self._inner = inner
        self._clock = clock
        self._ages = ages

    @property
    def url(self) -> str:
        return self._inner.url

    async def get(self, key: str, byte_range: ByteRange | Suffix | None = None) -> StoredObject:
        return await self._inner.get(key, byte_range)

    async def head(self, key: str) -> ObjectMeta:
        return await self._inner.head(key)

    async def put(
        self, key: str, data: Buffer | Sequence[Buffer], condition: Condition | None = None
    ) -> str:
        if key.startswith(TOPICS_PREFIX) and key.endswith(SEGMENT_SUFFIX):
            self._ages.begin(key, self._clock.monotonic())
        return await self._inner.put(key, data, condition)

    def list(self, prefix: str = "", start_after: str = "") -> AsyncIterator[ObjectMeta]:
        return self._inner.list(prefix, start_after)

    async def delete(self, *keys: str) -> None:
        await self._inner.delete(*keys)

    async def close(self) -> None:
        await self._inner.close()
