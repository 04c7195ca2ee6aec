"""A store in memory: for tests, simulation and `memory://`."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from typing import Any

import numpy as np

from tidelog.clock import Clock
from tidelog.storage.object_store import (
    Buffer,
    ByteRange,
    Condition,
    IfAbsent,
    IfMatch,
    ObjectMeta,
    ObjectNotFound,
    PreconditionFailed,
    StoredObject,
    Suffix,
    clip,
    pieces,
    validate_key,
    validate_prefix,
)
from tidelog.workers.memory_files import SealedMemory

_PAGE_ENTRIES = 1000
_DELETED_KEYS_MAX = 1000
"""Deleted keys kept beside the live ones: removing one from the list costs a pass over it."""


class _Body:
    """An object's bytes.

    Immutable buffers are kept without a copy: copying a segment of tens of MiB would block the
    event loop for as many milliseconds. The first read joins the pieces.
    """

    __slots__ = ("_pieces", "size")

    def __init__(self, data: Buffer | Sequence[Buffer]) -> None:
        self._pieces = _frozen(pieces(data))
        self.size = sum(map(len, self._pieces))

    def whole(self) -> memoryview:
        """All bytes, read-only."""
        if len(self._pieces) != 1:
            self._pieces = [b"".join(self._pieces)]
        return memoryview(self._pieces[0])


def _frozen(parts: Sequence[Buffer]) -> list[Buffer]:
    """The parts as buffers that never change.

    An immutable view is kept as it is, unless it would keep an owner alive that is more than twice
    as large. Other parts are copied.
    """
    owners = [part.obj if isinstance(part, memoryview) else part for part in parts]
    wanted: Counter[int] = Counter()
    for owner, part in zip(owners, parts, strict=True):
        wanted[id(owner)] += len(part)
    return [
        part
        if _never_changes(owner) and memoryview(owner).nbytes <= 2 * wanted[id(owner)]
        else bytes(part)
        for owner, part in zip(owners, parts, strict=True)
    ]


def _never_changes(owner: Any) -> bool:
    """True if the buffer's owner is immutable.

    Code that makes an array read-only must not have handed out a writable view before.
    """
    if isinstance(owner, np.ndarray):
        is_its_own = owner.flags.owndata or isinstance(owner.base, SealedMemory)
        return is_its_own and not owner.flags.writeable
    return type(owner) is bytes


class MemoryStore:
    """A store whose methods act at once, without suspending; FaultyStore adds faults and delays.

    Gets return read-only memoryviews, as the S3 store does, so that callers work on both. Etags
    count the store's puts: they never repeat and are the same in each run.
    """

    def __init__(self, clock: Clock, url: str = "memory://") -> None:
        self._clock = clock
        self._url = url
        self._objects: dict[str, tuple[_Body, ObjectMeta]] = {}
        self._keys: list[str] = []
        """Sorted. At most half of them are deleted keys, plus _DELETED_KEYS_MAX."""
        self._puts = 0

    @property
    def url(self) -> str:
        return self._url

    async def get(self, key: str, byte_range: ByteRange | Suffix | None = None) -> StoredObject:
        body, meta = self._find(key)
        start, end = clip(byte_range, meta.size)
        return StoredObject(data=body.whole()[start:end], size=meta.size, etag=meta.etag)

    async def head(self, key: str) -> ObjectMeta:
        return self._find(key)[1]

    async def put(
        self, key: str, data: Buffer | Sequence[Buffer], condition: Condition | None = None
    ) -> str:
        validate_key(key)
        current = self._objects.get(key)
        match condition:
            case IfAbsent() if current is not None:
                raise PreconditionFailed(key, "an object is there already")
            case IfMatch(etag) if current is None or current[1].etag != etag:
                raise PreconditionFailed(key, "the object is not the expected version")
        if current is None:
            self._remember(key)
        body = _Body(data)
        self._puts += 1
        meta = ObjectMeta(
            key=key, size=body.size, etag=str(self._puts), modified_ms=self._clock.time_ms()
        )
        self._objects[key] = (body, meta)
        return meta.etag

    async def list(self, prefix: str = "", start_after: str = "") -> AsyncIterator[ObjectMeta]:
        validate_prefix(prefix)
        position = start_after
        first = max(bisect_left(self._keys, prefix), bisect_right(self._keys, position))
        while page := self._keys[first : first + _PAGE_ENTRIES]:
            for key in page:
                if not key.startswith(prefix):
                    return
                found = self._objects.get(key)
                if found is not None:
                    yield found[1]
            first = bisect_right(self._keys, page[-1])

    async def delete(self, *keys: str) -> None:
        for key in keys:
            self._objects.pop(validate_key(key), None)
        if len(self._keys) > 2 * len(self._objects) + _DELETED_KEYS_MAX:
            # Replace the list instead of changing it: a listing may be reading it.
            self._keys = [key for key in self._keys if key in self._objects]

    async def close(self) -> None:
        """Do nothing: the objects stay."""

    def _remember(self, key: str) -> None:
        position = bisect_left(self._keys, key)
        if position == len(self._keys) or self._keys[position] != key:
            self._keys.insert(position, key)

    def _find(self, key: str) -> tuple[_Body, ObjectMeta]:
        try:
            return self._objects[validate_key(key)]
        except KeyError:
            raise ObjectNotFound(key, "no such object") from None
