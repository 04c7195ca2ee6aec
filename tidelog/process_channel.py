"""Messages between two processes of one machine, each of which waits for the other's answer.

A message is a pickle; larger buffers (memory views, numpy's arrays) lie behind it as they are. It
goes through memory that both sides share, of which one speaks at a time; a socket says how long it
is, and when the other side has gone. Through the socket itself megabytes would go in some twenty
steps, for each of which both sides wake each other up.
"""

from __future__ import annotations

import mmap
import os
import pickle
import socket
import struct
import sys
import tempfile
from collections.abc import Sequence
from io import BytesIO, FileIO
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

_COUNT: Final = struct.Struct(">I")
_ZEROS: Final = bytes(1024 * 1024)


class Channel:
    """One side."""

    def __init__(self, connection: socket.socket, memory: FileIO) -> None:
        """`memory`: of `shared_memory`. `close` closes both."""
        self._connection = connection
        self._memory = memory
        self._mapped: mmap.mmap | None = None
        """As much as the largest message so far; Python unmaps it when nobody looks at it."""

    def close(self) -> None:
        self._mapped = None
        self._connection.close()
        self._memory.close()

    def send(self, parts: Sequence[memoryview]) -> None:
        """What `packed` made of a message. OSError: the other side has gone, or there is no
        memory."""
        area = self._area(sum(map(len, parts)))
        position = 0
        for part in parts:
            # numpy lets other threads go on while it copies.
            area[position : position + len(part)] = np.asarray(part)
            position += len(part)
        sizes = struct.pack(f">{len(parts)}Q", *map(len, parts))
        self._connection.sendall(_COUNT.pack(len(parts)) + sizes)

    def receive(self) -> Any:
        """The other side's message; its views and arrays are read-only. OSError or EOFError: it
        has gone."""
        (count,) = _COUNT.unpack(self._read(_COUNT.size))
        sizes = struct.unpack(f">{count}Q", self._read(8 * count))
        # Not cleared before, as a bytearray would be, with the interpreter's lock held.
        copy = np.empty(sum(sizes), np.uint8)
        copy[:] = self._area(len(copy))
        # Whoever is given a part of it can keep it as it is.
        copy.flags.writeable = False
        whole, parts, position = copy.data, [], 0
        for size in sizes:
            parts.append(whole[position : position + size])
            position += size
        return pickle.loads(parts[0], buffers=parts[1:])  # noqa: S301 - from our own process

    def _area(self, size: int) -> NDArray[np.uint8]:
        """The beginning of the shared memory, which grows if it has to."""
        if self._mapped is None or len(self._mapped) < size:
            file = self._memory.fileno()
            _grow(file, size)
            self._mapped = mmap.mmap(file, size)
        return np.frombuffer(self._mapped, np.uint8, size)

    def _read(self, size: int) -> bytes:
        found = self._connection.recv(size, socket.MSG_WAITALL)
        if len(found) < size:
            raise EOFError
        return found


def shared_memory() -> FileIO:
    """A file without a name, empty yet, whose descriptor is given to the other side."""
    if sys.platform == "linux":
        return FileIO(os.memfd_create("tidelog"), "r+")
    with tempfile.TemporaryFile() as file:
        return FileIO(os.dup(file.fileno()), "r+")


def packed(message: object) -> list[memoryview]:
    """The pickle, its buffers. What cannot be pickled raises what pickle raises."""
    buffers: list[pickle.PickleBuffer] = []
    stream = BytesIO()
    _Pickler(stream, protocol=5, buffer_callback=buffers.append).dump(message)
    return [stream.getbuffer(), *(buffer.raw() for buffer in buffers)]


class _Pickler(pickle.Pickler):
    """Memory views lie beside the pickle."""

    def reducer_override(self, obj: Any) -> Any:
        if type(obj) is memoryview:
            return memoryview, (pickle.PickleBuffer(obj),)
        return NotImplemented


def _grow(file: int, size: int) -> None:
    """Make a file at least that long. It is written, so that memory that is not to be had is an
    error here, not a signal to who uses it."""
    length = os.fstat(file).st_size
    while length < size:
        length += os.pwrite(file, _ZEROS[: size - length], length)
