"""What Tidelog needs of an object store, and the errors that say what happened to the data."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, TypeAlias

from tidelog.errors import TidelogError

Buffer: TypeAlias = bytes | bytearray | memoryview

DELETED_AT_ONCE_MAX: Final = 1000
"""Keys of one delete; what S3 takes in one request."""


class StoreError(TidelogError):
    """Root of the store's errors. `key` names the object, or the prefix of a listing."""

    def __init__(self, key: str, why: str) -> None:
        super().__init__(f"{key}: {why}")
        self.key = key
        self.why = why


class ObjectNotFound(StoreError):
    """Nothing is stored under the key. Not applied."""


class PreconditionFailed(StoreError):
    """The condition of a put does not hold: someone's object is there (perhaps our own, whose
    answer was lost), or it is another version, or for IfMatch nothing at all. Not applied."""


class AccessDenied(StoreError):
    """Credentials or permissions do not allow it. Not applied. Repeating helps only where they did
    before."""


class StoreNotApplied(StoreError):
    """A passing fault; certainly not applied. May be repeated."""


class StoreFull(StoreNotApplied):
    """There is no room for the object; `why` names what is full. Not applied."""


class StoreOutcomeUnknown(StoreError):
    """A passing fault; applied or not, nobody knows: read the object back."""


class StoreMisconfigured(StoreError):
    """The bucket, the endpoint or the store itself cannot be used; repeating does not help."""


@dataclass(frozen=True, slots=True)
class IfAbsent:
    """Put only if the key does not exist."""


@dataclass(frozen=True, slots=True)
class IfMatch:
    """Put only if the object still has this etag."""

    etag: str


Condition: TypeAlias = IfAbsent | IfMatch


@dataclass(frozen=True, slots=True)
class ByteRange:
    """Bytes [start, start + length), or as many of them as the object has."""

    start: int
    length: int


@dataclass(frozen=True, slots=True)
class Suffix:
    """The last `length` bytes; the whole object where it is shorter."""

    length: int


@dataclass(frozen=True, slots=True)
class StoredObject:
    """What a get returns: the bytes asked for, the whole object's size, and its etag."""

    data: Buffer
    size: int
    etag: str


@dataclass(frozen=True, slots=True)
class ObjectMeta:
    """A listed object. `modified_ms` is by the store's clock, in whole seconds where it tells no
    more."""

    key: str
    size: int
    etag: str
    modified_ms: int


class ObjectStore(Protocol):
    """Keys are relative to the store's prefix, `/`-separated. Every method may raise StoreError."""

    @property
    def url(self) -> str:
        """The store's address, without credentials."""
        ...

    async def get(self, key: str, byte_range: ByteRange | Suffix | None = None) -> StoredObject:
        """The object or a range of it. ObjectNotFound if absent."""
        ...

    async def head(self, key: str) -> ObjectMeta:
        """Size and etag. ObjectNotFound if absent."""
        ...

    async def put(
        self, key: str, data: Buffer | Sequence[Buffer], condition: Condition | None = None
    ) -> str:
        """Durable when it returns; the etag. A sequence of buffers is stored joined; buffers must
        not change while the put is in flight. PreconditionFailed if the condition does not hold."""
        ...

    def list(self, prefix: str = "", start_after: str = "") -> AsyncIterator[ObjectMeta]:
        """The objects whose key begins with `prefix` and is above `start_after`, in key order."""
        ...

    async def delete(self, *keys: str) -> None:
        """Remove the objects, at most DELETED_AT_ONCE_MAX; an absent key is no error. After an
        error each of them may be gone or not."""
        ...

    async def close(self) -> None:
        """Release connections."""
        ...


def failure_behind(error: BaseException | None) -> StoreError | None:
    """The store's last answer to a request that was given up, if `error` has it as a cause."""
    while error is not None and not isinstance(error, StoreError):
        error = error.__cause__
    return error
