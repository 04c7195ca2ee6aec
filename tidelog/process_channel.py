"""Messages between two processes of one machine, each of which waits for the other's answer.

A message is a pickle; larger buffers (memory views, numpy's arrays) lie behind it as they are. It
goes through memory; a socket says how long it is, and when the other side has gone. Through the
socket itself megabytes would go in some twenty steps, for each of which both sides wake each other
up.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
import pickle
import socket
import struct
import sys
import tempfile
import weakref
from collections.abc import Iterator, Sequence
from io import BytesIO, FileIO
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

STEP_BYTES: Final = 256 * 1024
"""As much as is sent at a time where somebody else may go on in between."""
GIVEN_BYTES_MIN: Final = 256 * 1024
"""Of a message that is worth memory of its own."""
_HEAD: Final = struct.Struct(">I?")
"""How many parts there are, whether they are given away."""
_BUFFERS_PER_WRITE: Final = 1024
"""As many as Linux takes at a time, IOV_MAX."""
_TEXT_BYTES: Final = 1 << 16
_ZEROS: Final = bytes(STEP_BYTES)


class Channel:
    """One side."""

    def __init__(self, connection: socket.socket, memory: FileIO) -> None:
        """`memory`: of `shared_memory`. `close` closes both."""
        self._connection = connection
        self._memory = memory
        self._mapped: mmap.mmap | None = None
        """As much as the largest message that was sent."""

    def close(self) -> None:
        self._mapped = None
        self._connection.close()
        self._memory.close()

    def fileno(self) -> int:
        """Of what can be read when an answer is there, or the other side has gone."""
        return self._connection.fileno()

    def send(self, parts: Sequence[memoryview]) -> Iterator[None]:
        """What `packed` made of a message, through the memory that both sides share, of which one
        speaks at a time; step by step, as the caller asks for the next. OSError: the other side has
        gone, or there is no memory."""
        size = sum(map(len, parts))
        length = os.fstat(self._memory.fileno()).st_size
        while length < size:
            # Written, so that memory that is not to be had is an error here, not a signal to who
            # uses it.
            length += os.pwrite(self._memory.fileno(), _ZEROS[: size - length], length)
            yield
        if self._mapped is None or len(self._mapped) < size:
            self._mapped = mmap.mmap(self._memory.fileno(), size)
        position = 0
        for part in parts:
            for first in range(0, len(part), STEP_BYTES):
                some = part[first : first + STEP_BYTES]
                self._mapped[position : position + len(some)] = some
                position += len(some)
                if len(some) == STEP_BYTES:
                    yield
        self._connection.sendall(_text(parts, is_given=False))

    def give(self, parts: Sequence[memoryview]) -> None:
        """The same at once; larger messages in memory of their own, which the other side need not
        copy, and has for as long as it looks at it."""
        if sum(map(len, parts)) < GIVEN_BYTES_MIN:
            for _ in self.send(parts):
                pass
            return
        with shared_memory() as own:
            _write(own, parts)
            _seal(own)
            text = _text(parts, is_given=True)
            sent = socket.send_fds(self._connection, [text], [own.fileno()])
        self._connection.sendall(text[sent:])

    def receive(self) -> Any:
        """The other side's message; its views and arrays are read-only. OSError or EOFError: it
        has gone."""
        text = bytearray()
        descriptors: list[int] = []
        try:
            self._read(text, descriptors, _HEAD.size)
            count, is_given = _HEAD.unpack_from(text)
            self._read(text, descriptors, _HEAD.size + 8 * count)
            sizes = struct.unpack_from(f">{count}Q", text, _HEAD.size)
            if not is_given:
                memory = _copied(self._memory, sum(sizes))
            elif descriptors:
                memory = _mapped(descriptors[0], sum(sizes))
            else:
                # The system drops what there is no number for.
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
        whole, parts, position = memory.data, [], 0
        for size in sizes:
            parts.append(whole[position : position + size])
            position += size
        return pickle.loads(parts[0], buffers=parts[1:])  # noqa: S301 - from our own process

    def _read(self, text: bytearray, descriptors: list[int], size: int) -> None:
        """So much of what the socket says, at least."""
        while len(text) < size:
            found, with_it, _, _ = socket.recv_fds(self._connection, _TEXT_BYTES, 1)
            if not found:
                raise EOFError
            text += found
            descriptors += with_it


def shared_memory() -> FileIO:
    """A file without a name, empty yet, whose descriptor is given to the other side."""
    if sys.platform == "linux":
        return FileIO(os.memfd_create("tidelog", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING), "r+")
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


def _text(parts: Sequence[memoryview], *, is_given: bool) -> bytes:
    sizes = struct.pack(f">{len(parts)}Q", *map(len, parts))
    return _HEAD.pack(len(parts), is_given) + sizes


def _write(memory: FileIO, parts: Sequence[memoryview]) -> None:
    """To an empty file."""
    position = 0
    for first in range(0, len(parts), _BUFFERS_PER_WRITE):
        some = parts[first : first + _BUFFERS_PER_WRITE]
        size = sum(map(len, some))
        if os.pwritev(memory.fileno(), some, position) < size:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        position += size


def _seal(memory: FileIO) -> None:
    """Nobody changes it any more, or makes it shorter."""
    if sys.platform == "linux":
        seals = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
        fcntl.fcntl(memory, fcntl.F_ADD_SEALS, seals)


def _copied(memory: FileIO, size: int) -> NDArray[np.uint8]:
    """The memory's beginning."""
    # Not cleared before, as a bytearray would be.
    copy = np.empty(size, np.uint8)
    if os.preadv(memory.fileno(), [copy.data], 0) < size:
        raise EOFError
    # Whoever is given a part of it can keep it as it is.
    copy.flags.writeable = False
    return copy


# With the interpreter's lock: it takes less time than to have it back.
_LIBC: Final = ctypes.PyDLL(None, use_errno=True)
_LIBC.mmap.restype = ctypes.c_void_p
_LIBC.mmap.argtypes = [
    *(ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int),
    *(ctypes.c_int, ctypes.c_int, ctypes.c_long),
]
_LIBC.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_MAP_FAILED: Final = ctypes.c_void_p(-1).value


def _mapped(descriptor: int, size: int) -> NDArray[np.uint8]:
    """The memory itself, until nobody looks at it. Python's own mapping would keep a descriptor
    open for as long."""
    # Private: Linux before 6.7 maps no sealed file as a shared one.
    address = _LIBC.mmap(None, size, mmap.PROT_READ, mmap.MAP_PRIVATE, descriptor, 0)
    if address == _MAP_FAILED:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    memory = SealedMemory(address, size)
    weakref.finalize(memory, _LIBC.munmap, address, size).atexit = False
    return np.asarray(memory)


class SealedMemory:
    """What numpy makes a read-only array of. Nobody changes it."""

    def __init__(self, address: int, size: int) -> None:
        self.__array_interface__ = {
            "version": 3,
            "data": (address, True),
            "typestr": "|u1",
            "shape": (size,),
        }
