"""Request and response messages between two processes of one machine.

A message is a pickle, followed by its large buffers (memory views, numpy arrays) as they are. It is
passed through shared memory. A socket carries its length and shows the end of the other process.
Through the socket itself, a message of megabytes would take about twenty steps, and each step would
wake up both processes.
"""

from __future__ import annotations

import errno
import mmap
import os
import pickle
import socket
import struct
from collections.abc import Iterator, Sequence
from io import BytesIO, FileIO
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tidelog.workers.memory_files import mapped, sealed

STEP_BYTES: Final = 256 * 1024
"""The bytes that `send` copies per step, between which other tasks may run."""
GIVEN_BYTES_MIN: Final = 256 * 1024
"""A message of this size gets a memory file of its own."""
_HEAD: Final = struct.Struct(">QI?")
"""The message's length, its number of parts, and whether it has its own memory file. The parts'
sizes precede the parts. The head is so short that one call sends and receives it."""
_ZEROS: Final = bytes(STEP_BYTES)


class Channel:
    """One end of the channel."""

    def __init__(self, connection: socket.socket, memory: FileIO) -> None:
        """`memory`: a file of `memory_file` that both ends share. `close` closes both arguments."""
        self._connection = connection
        self._memory = memory
        self._mapped: mmap.mmap | None = None
        """The shared memory, mapped up to the size of the largest sent message."""

    def close(self) -> None:
        self._mapped = None
        self._connection.close()
        self._memory.close()

    def fileno(self) -> int:
        """The descriptor that becomes readable for a message or when the other end closes."""
        return self._connection.fileno()

    def send(self, parts: Sequence[memoryview]) -> Iterator[None]:
        """Send the parts of a packed message through the shared memory, one step per iteration.

        Only one end may send at a time. Raises OSError if the other end is closed or no memory is
        left.
        """
        parts = [_sizes(parts), *parts]
        size = size_of(parts)
        length = os.fstat(self._memory.fileno()).st_size
        while length < size:
            # Written instead of truncated: a lack of memory raises here, and no SIGBUS later.
            length += os.pwrite(self._memory.fileno(), _ZEROS[: size - length], length)
            yield
        if self._mapped is None or len(self._mapped) < size:
            self._mapped = mmap.mmap(self._memory.fileno(), size)
        position, left = 0, STEP_BYTES
        for part in parts:
            first = 0
            while first < len(part):
                some = part[first : first + left]
                self._mapped[position : position + len(some)] = some
                first += len(some)
                position += len(some)
                left -= len(some)
                if not left:
                    left = STEP_BYTES
                    yield
        self._connection.sendall(_HEAD.pack(size, len(parts), False))

    def give(self, parts: Sequence[memoryview]) -> None:
        """Send the parts at once. The other end maps a large message instead of copying it."""
        if size_of(parts) < GIVEN_BYTES_MIN:
            for _ in self.send(parts):
                pass
            return
        parts = [_sizes(parts), *parts]
        head = _HEAD.pack(size_of(parts), len(parts), True)
        with sealed(parts) as file:
            socket.send_fds(self._connection, [head], [file.fileno()])

    def receive(self) -> Any:
        """The next message; its views and arrays are read-only.

        Raises OSError or EOFError if the other end is closed.
        """
        head, descriptors, _, _ = socket.recv_fds(self._connection, _HEAD.size, 1)
        try:
            if len(head) < _HEAD.size:
                raise EOFError
            size, count, is_given = _HEAD.unpack(head)
            if not is_given:
                memory = _copied(self._memory, size)
            elif descriptors:
                memory = mapped(descriptors[0], size)
            else:
                # The process has no free descriptor, so the system dropped this one.
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
        whole, parts, position = memory.data, [], 8 * (count - 1)
        for each in struct.unpack_from(f">{count - 1}Q", whole):
            parts.append(whole[position : position + each])
            position += each
        return pickle.loads(parts[0], buffers=parts[1:])  # noqa: S301 - from our own process


def packed(message: object) -> list[memoryview]:
    """The pickle of a message, then its buffers. Raises as pickle does."""
    buffers: list[pickle.PickleBuffer] = []
    stream = BytesIO()
    _Pickler(stream, protocol=5, buffer_callback=buffers.append).dump(message)
    return [stream.getbuffer(), *(buffer.raw() for buffer in buffers)]


def size_of(parts: Sequence[memoryview]) -> int:
    return sum(map(len, parts))


class _Pickler(pickle.Pickler):
    """Pickles memory views out of band."""

    def reducer_override(self, obj: Any) -> Any:
        if type(obj) is memoryview:
            return memoryview, (pickle.PickleBuffer(obj),)
        return NotImplemented


def _sizes(parts: Sequence[memoryview]) -> memoryview:
    return memoryview(struct.pack(f">{len(parts)}Q", *map(len, parts)))


def _copied(memory: FileIO, size: int) -> NDArray[np.uint8]:
    """A read-only copy of the first `size` bytes."""
    # np.empty does not clear the memory, as a bytearray would.
    copy = np.empty(size, np.uint8)
    if os.preadv(memory.fileno(), [copy.data], 0) < size:
        raise EOFError
    # Read-only, so receivers may keep parts without a copy.
    copy.flags.writeable = False
    return copy
