"""The object store interface: keys that every store can hold, bodies, byte ranges, and errors that
say whether a request was applied."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, TypeAlias

from tidelog.errors import TidelogError

Buffer: TypeAlias = bytes | bytearray | memoryview

DELETED_AT_ONCE_MAX: Final = 1000
"""Keys in one delete: the limit of an S3 DeleteObjects request."""
KEY_BYTES_MAX: Final = 1024
"""S3's limit on a key, prefix included."""
KEY_SEGMENT_BYTES_MAX: Final = 255
"""The limit of common file systems on one name."""
RESERVED_DIRECTORY: Final = ".tidelog"
"""The filesystem store's own files."""
RESERVED_DIRECTORIES: Final = frozenset({RESERVED_DIRECTORY, "lost+found"})
"""No key in any store begins with one of them. `lost+found` is ext4's, which root alone reads."""
_FORBIDDEN = frozenset(map(chr, [*range(32), 127])) | frozenset("\\")


class StoreError(TidelogError):
    """Root of the store's errors. `key` names the object, or a listing's prefix."""

    def __init__(self, key: str, why: str) -> None:
        super().__init__(f"{key}: {why}")
        self.key = key
        self.why = why
        self.store = ""
        """The store's address, with which the message begins; empty while it is not known."""

    def __str__(self) -> str:
        return ": ".join(filter(None, (self.store, self.key, self.why)))


class ObjectNotFound(StoreError):
    """The key holds no object. Not applied."""


class PreconditionFailed(StoreError):
    """The condition of a put does not hold. Not applied.

    The key may hold another writer's object, this writer's own object after a lost response,
    another version, or (for IfMatch) no object.
    """


class AccessDenied(StoreError):
    """The credentials or their permissions do not allow the request. Not applied.

    A retry helps only if the same operation has succeeded before.
    """


class StoreNotApplied(StoreError):
    """A transient fault. The store did not apply the request, so a retry is safe."""


class StoreFull(StoreNotApplied):
    """The store has no room for the object; `why` names the full device. Not applied."""


class StoreOutcomeUnknown(StoreError):
    """A transient fault. The request may or may not be applied: read the object back."""


class StoreMisconfigured(StoreError):
    """The bucket, the endpoint or the store is unusable; a retry does not help."""


@dataclass(frozen=True, slots=True)
class IfAbsent:
    """Put only if the key holds no object."""


@dataclass(frozen=True, slots=True)
class IfMatch:
    """Put only if the object still has this etag."""

    etag: str


Condition: TypeAlias = IfAbsent | IfMatch


@dataclass(frozen=True, slots=True)
class ByteRange:
    """Bytes [start, start + length) of an object, clipped at its end."""

    start: int
    length: int


@dataclass(frozen=True, slots=True)
class Suffix:
    """The last `length` bytes; the whole object if it is shorter."""

    length: int


@dataclass(frozen=True, slots=True)
class StoredObject:
    """The result of a get: the requested bytes, the whole object's size, and its etag."""

    data: Buffer
    size: int
    etag: str


@dataclass(frozen=True, slots=True)
class ObjectMeta:
    """A listed object. `modified_ms` is the store's time; some stores round it to seconds."""

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
        """Store the object durably and return its etag.

        A sequence of buffers is stored joined. The caller must not change a buffer while the put is
        in flight. PreconditionFailed if the condition does not hold.
        """
        ...

    def list(self, prefix: str = "", start_after: str = "") -> AsyncIterator[ObjectMeta]:
        """The objects whose key begins with `prefix` and is above `start_after`, in key order."""
        ...

    async def delete(self, *keys: str) -> None:
        """Remove at most DELETED_AT_ONCE_MAX objects; an absent key is no error.

        After an error each object may or may not be gone.
        """
        ...

    async def close(self) -> None:
        """Release connections."""
        ...


def pieces(data: Buffer | Sequence[Buffer]) -> list[Buffer]:
    """The buffers of a put, in order."""
    if isinstance(data, bytes | bytearray | memoryview):
        return [data]
    return list(data)


def size_of(data: Buffer | Sequence[Buffer]) -> int:
    if isinstance(data, bytes | bytearray | memoryview):
        return memoryview(data).nbytes
    return sum(memoryview(piece).nbytes for piece in data)


def joined(data: Buffer | Sequence[Buffer]) -> Buffer:
    """The data as one buffer; several pieces are copied."""
    parts = pieces(data)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def clip(byte_range: ByteRange | Suffix | None, size: int) -> tuple[int, int]:
    """[start, end) of the bytes that a get returns from an object of `size` bytes."""
    match byte_range:
        case None:
            return 0, size
        case Suffix(length):
            return max(0, size - length), size
        case ByteRange(start, length):
            return min(start, size), min(start + length, size)


def validate_key(key: str) -> str:
    """The key, unchanged. ValueError unless every store can hold it.

    A key is `/`-separated segments, none of them empty, `.` or `..`. Each is at most 255 bytes of
    UTF-8, without control characters or backslashes. No key lies below a reserved directory.
    """
    if (first := key.partition("/")[0]) in RESERVED_DIRECTORIES:
        raise ValueError(f"object key {key!r} begins with {first}, which is reserved")
    if len(key) * 4 > KEY_BYTES_MAX and len(key.encode()) > KEY_BYTES_MAX:
        raise ValueError(f"object key {key[:80]!r}... is longer than {KEY_BYTES_MAX} bytes")
    for segment in key.split("/"):
        _validate_segment(key, segment)
    return key


def validate_prefix(prefix: str) -> str:
    """The prefix of a listing, unchanged: empty, or the beginning of a valid key."""
    *directories, _ = prefix.split("/")
    for segment in directories:
        _validate_segment(prefix, segment)
    return prefix


def _validate_segment(key: str, segment: str) -> None:
    if segment in {"", ".", ".."}:
        raise ValueError(f"object key {key!r} has an empty or relative segment")
    if not _FORBIDDEN.isdisjoint(segment):
        raise ValueError(f"object key {key!r} has a control character or a backslash")
    if len(segment) * 4 > KEY_SEGMENT_BYTES_MAX and len(segment.encode()) > KEY_SEGMENT_BYTES_MAX:
        raise ValueError(
            f"object key {key[:80]!r}... has a segment longer than {KEY_SEGMENT_BYTES_MAX} bytes"
        )


def failure_behind(error: BaseException | None) -> StoreError | None:
    """The first StoreError in the chain of causes of `error`, or None."""
    while error is not None and not isinstance(error, StoreError):
        error = error.__cause__
    return error
