"""Memory files: memory that two processes share, or that one process hands to another."""

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
"""The limit of one Linux system call, IOV_MAX."""


def memory_file() -> FileIO:
    """An empty file in memory, whose descriptor can be passed to another process."""
    if sys.platform == "linux":
        return FileIO(os.memfd_create("tidelog", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING), "r+")
    with tempfile.TemporaryFile() as file:
        return FileIO(os.dup(file.fileno()), "r+")


def sealed(parts: Sequence[memoryview]) -> FileIO:
    """A memory file that holds the parts. OSError if no memory is left.

    On Linux no process can change, shrink or grow it.
    """
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
    """Write the parts. A lack of memory raises OSError here, and no SIGBUS at a later access."""
    position = 0
    for first in range(0, len(parts), _BUFFERS_PER_WRITE):
        some = parts[first : first + _BUFFERS_PER_WRITE]
        size = sum(map(len, some))
        if os.pwritev(file.fileno(), some, position) < size:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        position += size


class SealedMemory:
    """A file of `sealed`, mapped into memory while an array refers to it.

    Python's `mmap` would keep a descriptor open meanwhile. It would also unmap the memory in the
    thread that drops the last reference, which may be the event loop: 1 ms for 3 MiB.
    """

    def __init__(self, descriptor: int, size: int) -> None:
        """Map the file. Raises OSError."""
        unmapped = _unmapped()
        # MAP_PRIVATE, since Linux before 6.7 refuses MAP_SHARED for a sealed file.
        address = _libc().mmap(None, size, mmap.PROT_READ, mmap.MAP_PRIVATE, descriptor, 0)
        if address == _MAP_FAILED:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        weakref.finalize(self, unmapped.put, (address, size)).atexit = False
        # numpy makes an array from it that keeps a reference to this object.
        self.__array_interface__ = {
            "version": 3,
            "data": (address, True),
            "typestr": "|u1",
            "shape": (size,),
        }


def mapped(descriptor: int, size: int) -> NDArray[np.uint8]:
    """The first `size` bytes of a file of `sealed`, read-only and not copied. Raises OSError."""
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
    """The queue of a thread that unmaps memory: addresses and sizes."""
    unmapped: queue.SimpleQueue[tuple[int, int]] = queue.SimpleQueue()

    def work() -> None:
        while True:
            _libc().munmap(*unmapped.get())

    threading.Thread(target=work, name="tidelog-unmap", daemon=True).start()
    return unmapped
