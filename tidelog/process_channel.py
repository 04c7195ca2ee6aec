"""Messages between two processes of one machine, each of which waits for the other's answer.

A message is a pickle; larger buffers (memory views, numpy's arrays) lie behind it as they are. It
goes through memory; a socket says how long it is, and when the other side has gone. Through the
socket itself megabytes would go in some twenty steps, for each of which both sides wake each other
up.
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

from tidelog.memory_files import mapped, sealed

STEP_BYTES: Final = 256 * 1024
"""As much as is sent at a time where somebody else may go on in between."""
GIVEN_BYTES_MIN: Final = 256 * 1024
"""Of a message that is worth memory of its own."""
_HEAD: Final = struct.Struct(">QI?")
"""How long the message is, how many parts it has, whether it is given away. The parts' sizes lie
before them. So little is sent and received in one go, whatever kind of socket it is."""
_ZEROS: Final = bytes(STEP_BYTES)


class Channel:
    """One side."""

    def __init__(self, connection: socket.socket, memory: FileIO) -> None:
        """`memory`: of `memory_file`, which both sides have. `close` closes both."""
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
        parts = [_sizes(parts), *parts]
        size = size_of(parts)
        length = os.fstat(self._memory.fileno()).st_size
        while length < size:
            # Written, so that memory that is not to be had is an error here, not a signal to who
            # uses it.
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
        """The same at once; larger messages in memory of their own, which the other side need not
        copy, and has for as long as it looks at it."""
        if size_of(parts) < GIVEN_BYTES_MIN:
            for _ in self.send(parts):
                pass
            return
        parts = [_sizes(parts), *parts]
        head = _HEAD.pack(size_of(parts), len(parts), True)
        with sealed(parts) as file:
            socket.send_fds(self._connection, [head], [file.fileno()])

    def receive(self) -> Any:
        """The other side's message; its views and arrays are read-only. OSError or EOFError: it
        has gone."""
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
                # The system drops what there is no number for.
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
    """The pickle, its buffers. What cannot be pickled raises what pickle raises."""
    buffers: list[pickle.PickleBuffer] = []
    stream = BytesIO()
    _Pickler(stream, protocol=5, buffer_callback=buffers.append).dump(message)
    return [stream.getbuffer(), *(buffer.raw() for buffer in buffers)]


def size_of(parts: Sequence[memoryview]) -> int:
    """Bytes."""
    return sum(map(len, parts))


class _Pickler(pickle.Pickler):
    """Memory views lie beside the pickle."""

    def reducer_override(self, obj: Any) -> Any:
        if type(obj) is memoryview:
            return memoryview, (pickle.PickleBuffer(obj),)
        return NotImplemented


def _sizes(parts: Sequence[memoryview]) -> memoryview:
    return memoryview(struct.pack(f">{len(parts)}Q", *map(len, parts)))


def _copied(memory: FileIO, size: int) -> NDArray[np.uint8]:
    """The memory's beginning."""
    # Not cleared before, as a bytearray would be.
    copy = np.empty(size, np.uint8)
    if os.preadv(memory.fileno(), [copy.data], 0) < size:
        raise EOFError
    # Whoever is given a part of it can keep it as it is.
    copy.flags.writeable = False
    return copy
