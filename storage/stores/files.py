"""File calls that finish completely and durably, or raise one of the store's errors."""

# Plain system calls on strings: every put takes this path.
# ruff: noqa: PTH102, PTH110, PTH116, PTH120

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from tidelog.storage.object_store import (
    AccessDenied,
    Buffer,
    ObjectMeta,
    ObjectNotFound,
    StoreError,
    StoreFull,
    StoreMisconfigured,
    StoreNotApplied,
)
from tidelog.storage.stores.direct_io import (
    DIRECT_BYTES_MIN,
    IS_POSSIBLE,
    read_directly,
    write_directly,
)

_BUFFERS_PER_WRITE = 512
_ANY_DIRECTORY = 0
_DENIED = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
_CLASHES = frozenset({errno.ENOTDIR, errno.EISDIR, errno.ENOTEMPTY, errno.EEXIST})
_CLASH = "a file stands where a directory is needed, or a directory where the object would be"

sync_data = getattr(os, "fdatasync", os.fsync)
"""Make a file's content durable, by its descriptor."""


def create_root(root: str) -> None:
    """Create the directory and its missing parents, durably."""
    missing: list[str] = []
    while not os.path.exists(root):
        missing.append(root)
        root = os.path.dirname(root)
    for directory in reversed(missing):
        with suppress(FileExistsError):
            os.mkdir(directory)
        sync_directory(os.path.dirname(directory))
    if not missing:
        # Its creator may not have synced it yet. A parent without read permission is old enough to
        # be durable.
        with suppress(PermissionError):
            sync_directory(os.path.dirname(root))


def sync_directory(directory: str) -> None:
    """Make the directory's entries durable."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def link_file(source: str, path: str) -> None:
    """Give a file another name. FileExistsError if the name is taken.

    A source below /proc/self/fd is followed to the open file; `os.link` does so only when it is
    given a directory, which an absolute path does not use.
    """
    os.link(source, path, src_dir_fd=_ANY_DIRECTORY, follow_symlinks=True)


def write_fully(descriptor: int, data: list[Buffer]) -> None:
    """Write all of the buffers to an empty file, in as many system calls as it takes."""
    remaining = [view for view in (memoryview(piece).cast("B") for piece in data) if view.nbytes]
    first = 0
    size_bytes = sum(map(len, remaining))
    if size_bytes >= DIRECT_BYTES_MIN and IS_POSSIBLE:
        written = write_directly(descriptor, data, size_bytes)
        os.lseek(descriptor, written, os.SEEK_SET)
        while written:
            count = min(written, len(remaining[first]))
            remaining[first] = remaining[first][count:]
            written -= count
            first += not remaining[first]
    while first < len(remaining):
        written = os.writev(descriptor, remaining[first : first + _BUFFERS_PER_WRITE])
        while first < len(remaining) and written >= remaining[first].nbytes:
            written -= remaining[first].nbytes
            first += 1
        if written:
            remaining[first] = remaining[first][written:]


def read_fully(descriptor: int, start: int, end: int) -> Buffer:
    """Bytes [start, end) of the file. OSError if it ends before."""
    parts: list[Buffer] = []
    if end - start >= DIRECT_BYTES_MIN and IS_POSSIBLE:
        parts.append(read_directly(descriptor, start, end))
        start += len(parts[0])
    while start < end:
        part = os.pread(descriptor, end - start, start)
        if not part:
            raise OSError(errno.EIO, "the file became shorter while it was read")
        parts.append(part)
        start += len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def stat_or_none(path: str) -> os.stat_result | None:
    """The file's status, or None if there is no such file."""
    try:
        return os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None


def etag_of(status: os.stat_result) -> str:
    """The version of the object in this file."""
    return f"{status.st_ino:x}-{status.st_size:x}-{status.st_mtime_ns:x}"


def meta_of(key: str, status: os.stat_result) -> ObjectMeta:
    return ObjectMeta(
        key=key,
        size=status.st_size,
        etag=etag_of(status),
        modified_ms=status.st_mtime_ns // 1_000_000,
    )


@contextmanager
def nothing_applied(key: str) -> Iterator[None]:
    """Convert system errors of a put that is not visible yet into store errors."""
    try:
        yield
    except OSError as error:
        raise write_error(key, error) from error


def read_error(key: str, error: OSError) -> StoreError:
    """The store's error for a failed read."""
    if isinstance(error, FileNotFoundError | NotADirectoryError | IsADirectoryError):
        return ObjectNotFound(key, "no such object")
    if error.errno in _DENIED:
        return AccessDenied(key, f"reading is not allowed: {error.strerror}")
    return StoreNotApplied(key, f"it could not be read: {error.strerror}")


def write_error(key: str, error: OSError) -> StoreError:
    """The store's error for a change that failed before it became visible."""
    if error.errno in _DENIED:
        return AccessDenied(key, f"writing is not allowed ({error.strerror}); nothing was stored")
    if error.errno in _FULL:
        name = errno.errorcode[error.errno]
        why = f"the disk is full: {error.strerror} ({name}); nothing was stored; free some space"
        return StoreFull(key, why)
    if error.errno in _CLASHES:
        return StoreMisconfigured(key, f"{_CLASH}; nothing was stored")
    return StoreNotApplied(key, f"{error.strerror}; nothing was stored")
