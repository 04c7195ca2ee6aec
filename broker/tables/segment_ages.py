"""Notes when this process put each segment, so that no commit names a segment that is too old.

The collector may delete a segment that its table does not list. It does so once the table has a
commit later than the grace after the segment's put (`bucket.reachability.loose_segments`). So
`TableLog.commit` refuses segments older than half of the grace, at each of its reads of the table.
Writers of segments put them by way of `SegmentAgingStore`, which notes the time. The commit of a
segment that another store has put is always refused.
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
    """The times of recent puts of segments. Pure."""

    def __init__(self, age_seconds_max: float) -> None:
        """`age_seconds_max`: the age from which on a segment counts as unknown."""
        self._age_seconds_max = age_seconds_max
        self._begun: dict[str, float] = {}

    def begin(self, key: str, now: float) -> None:
        """Note that a put of this segment begins."""
        for old, begun in list(self._begun.items()):
            if now - begun <= self._age_seconds_max:
                break
            del self._begun[old]
        self._begun.setdefault(key, now)

    def begun_at(self, keys: Iterable[str]) -> float | None:
        """The time of the earliest put of these segments.

        -inf if one is unknown, None if there are no keys.
        """
        return min((self._begun.get(key, NEVER) for key in keys), default=None)


class SegmentAgingStore:
    """A store that notes puts of segments and delegates all calls to `inner`."""

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
