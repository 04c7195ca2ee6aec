"""Files that lie in memory: what two processes share, and what one gives away to the other."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
import queue
import sys
import tempfile
import threading
import weakref
from collections.abc import Sequence
from functools import cache
from io import FileIO
from typing import Final

import numpy as np
from numpy.typing import NDArray

_BUFFERS_PER_WRITE: Final = 1024
"""As many as Linux takes at a time, IOV_MAX."""


def memory_file() -> FileIO:
    """One without a name, empty yet, whose descriptor can be given to another process."""
    if sys.platform == "linux":
        return FileIO(os.memfd_create("tidelog", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING), "r+")
    with tempfile.TemporaryFile() as file:
        return FileIO(os.dup(file.fileno()), "r+")


def sealed(parts: Sequence[memoryview]) -> FileIO:
    """One that holds the parts. On Linux nobody can change it any more, or make it shorter.
    OSError: there is no memory."""
    file = memory_file()
    try:
        _write(file, parts)
        if sys.platform == "linux":
            seals = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
            fcntl.fcntl(file, fcntl.F_ADD_SEALS, seals)
    except OSError:
        file.close()
        raise
    return file


def _write(file: FileIO, parts: Sequence[memoryview]) -> None:
    """Memory that is not to be had is an error here, not a signal to who uses it."""
    position = 0
    for first in range(0, len(parts), _BUFFERS_PER_WRITE):
        some = parts[first : first + _BUFFERS_PER_WRITE]
        size = sum(map(len, some))
        if os.pwritev(file.fileno(), some, position) < size:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        position += size


class SealedMemory:
    """A file of `sealed` as memory, which is there for as long as somebody looks at it.

    Python's own mapping would keep a descriptor open for as long, and give the memory back where
    the last one looks away, on the event loop perhaps: a millisecond for 3 MiB.
    """

    def __init__(self, descriptor: int, size: int) -> None:
        """OSError: it cannot be mapped."""
        unmapped = _unmapped()
        # Private: Linux before 6.7 maps no sealed file as a shared one.
        address = _libc().mmap(None, size, mmap.PROT_READ, mmap.MAP_PRIVATE, descriptor, 0)
        if address == _MAP_FAILED:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        weakref.finalize(self, unmapped.put, (address, size)).atexit = False
        # For numpy, which makes an array of it that holds this object.
        self.__array_interface__ = {
            "version": 3,
            "data": (address, True),
            "typestr": "|u1",
            "shape": (size,),
        }


def mapped(descriptor: int, size: int) -> NDArray[np.uint8]:
    """The first bytes of a file of `sealed`, read-only and not copied. OSError."""
    return np.asarray(SealedMemory(descriptor, size))


@cache
def _libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [
        *(ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int),
        *(ctypes.c_int, ctypes.c_int, ctypes.c_long),
    ]
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    return libc


_MAP_FAILED: Final = ctypes.c_void_p(-1).value


@cache
def _unmapped() -> queue.SimpleQueue[tuple[int, int]]:
    """What a thread is to give back: addresses and sizes."""
    unmapped: queue.SimpleQueue[tuple[int, int]] = queue.SimpleQueue()

    def work() -> None:
        while True:
            _libc().munmap(*unmapped.get())

    threading.Thread(target=work, name="tidelog-unmap", daemon=True).start()
    return unmapped
