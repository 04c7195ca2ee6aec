"""Direct reads and writes of large files, past the system's page cache.

The broker caches a new large object itself, and a reader keeps the object it reads. A second copy
in the page cache costs more than the rest of a put: the kernel finds and fills pages, and later
evicts pages in use. So whole blocks go straight between the caller's memory and the disk. A read
takes pages that the cache already holds from there. Small objects use the page cache: their cost is
the syncs.

If a file system does not support direct I/O, the caller falls back to ordinary I/O.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import threading
from collections.abc import Iterator

import numpy as np

from tidelog.storage.object_store import Buffer

DIRECT_BYTES_MIN = 256 * 1024
"""Below this size the page cache costs no more than direct I/O."""
BLOCK_BYTES = 4096
"""Devices require addresses, positions and lengths to be multiples of the block size; some accept
smaller multiples.
"""
_BOUNCE_BYTES = 1024 * 1024

_DIRECT_FLAG = getattr(os, "O_DIRECT", 0)
_CACHED_ONLY = getattr(os, "RWF_NOWAIT", 0)
_UNSUPPORTED = frozenset({errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS, errno.ENOTTY})

IS_POSSIBLE = bool(_DIRECT_FLAG and _CACHED_ONLY)
"""True if this system supports O_DIRECT and cache-only reads."""


class _Bounce(threading.local):
    """One block-aligned buffer per thread, through which unaligned data is copied."""

    def __init__(self) -> None:
        self.view = memoryview(mmap.mmap(-1, _BOUNCE_BYTES))


_bounce = _Bounce()


def write_directly(descriptor: int, data: list[Buffer], size_bytes: int) -> int:
    """Write the whole blocks of the buffers, `size_bytes` in all, to the beginning of a file.

    Returns the number of bytes written. The caller writes the rest by ordinary I/O: less than a
    block, unless direct I/O stopped early.
    """
    whole = size_bytes - size_bytes % BLOCK_BYTES
    written = 0
    if not _set_direct(descriptor, True):
        return 0
    try:
        for chunk in _aligned_chunks(data, whole):
            count = _write_chunk(descriptor, chunk, written)
            written += count
            if count < len(chunk):
                break
    finally:
        _set_direct(descriptor, False)
    return written


def read_directly(descriptor: int, start: int, end: int) -> memoryview:
    """Bytes [start, end) of a file, or the leading part that direct I/O could read.

    The file's position and flags stay unchanged.
    """
    first = start - start % BLOCK_BYTES
    buffer = aligned_buffer(end - first + -(end - first) % BLOCK_BYTES)
    cached = _read_cached(descriptor, buffer[: end - first], first)
    filled = cached - cached % BLOCK_BYTES if cached < end - first else cached
    if filled < end - first and _set_direct(descriptor, True):
        try:
            filled += os.preadv(descriptor, [buffer[filled:]], first + filled)
        except OSError as error:
            if error.errno not in _UNSUPPORTED:
                raise
        finally:
            _set_direct(descriptor, False)
    return buffer[start - first : min(filled, end - first)]


def aligned_buffer(size_bytes: int) -> memoryview:
    """Uninitialised memory that begins at a block boundary."""
    raw = np.empty(size_bytes + BLOCK_BYTES, np.uint8)
    skipped = -raw.__array_interface__["data"][0] % BLOCK_BYTES
    return raw.data[skipped : skipped + size_bytes]


def _aligned_chunks(data: list[Buffer], size_bytes: int) -> Iterator[memoryview]:
    """The first `size_bytes` of the buffers in pieces of whole blocks.

    The consumer must use each piece before it takes the next one.
    """
    bounce, filled = _bounce.view, 0
    left = size_bytes
    for piece in data:
        view = memoryview(piece).cast("B")[:left]
        left -= len(view)
        if not filled and _is_aligned(view):
            whole = len(view) - len(view) % BLOCK_BYTES
            if whole:
                yield view[:whole]
            view = view[whole:]
        while view:
            count = min(len(view), len(bounce) - filled)
            bounce[filled : filled + count] = view[:count]
            filled += count
            view = view[count:]
            if filled == len(bounce):
                yield bounce
                filled = 0
    if filled:
        yield bounce[:filled]


def _is_aligned(view: memoryview) -> bool:
    if not len(view):
        return False
    address: int = np.frombuffer(view, np.uint8).__array_interface__["data"][0]
    return address % BLOCK_BYTES == 0


def _write_chunk(descriptor: int, chunk: memoryview, position: int) -> int:
    """The number of bytes of the chunk written, in whole blocks."""
    written = 0
    while written < len(chunk):
        try:
            count = os.pwrite(descriptor, chunk[written:], position + written)
        except OSError as error:
            if error.errno not in _UNSUPPORTED:
                raise
            break
        written += count
        if count % BLOCK_BYTES:
            return written - written % BLOCK_BYTES
    return written


def _read_cached(descriptor: int, buffer: memoryview, position: int) -> int:
    """The number of bytes copied from the page cache."""
    try:
        return os.preadv(descriptor, [buffer], position, _CACHED_ONLY)
    except BlockingIOError:
        return 0
    except OSError as error:
        if error.errno not in _UNSUPPORTED:
            raise
        return 0


def _set_direct(descriptor: int, is_direct: bool) -> bool:
    """Switch the file's direct I/O on or off; False if the file system refuses."""
    flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
    wanted = flags | _DIRECT_FLAG if is_direct else flags & ~_DIRECT_FLAG
    try:
        fcntl.fcntl(descriptor, fcntl.F_SETFL, wanted)
    except OSError as error:
        if error.errno not in _UNSUPPORTED:
            raise
        return False
    return True
