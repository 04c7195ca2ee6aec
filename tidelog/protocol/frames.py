"""Cuts a socket's bytes into frames: a size of four bytes, then that many bytes."""

from __future__ import annotations

import struct
from typing import Final

import numpy as np

from tidelog.protocol.errors import MalformedMessage

SCRATCH_BYTES: Final = 256 * 1024
"""The largest read of a socket, and so the largest frame that is copied once."""
FIRST_READ_BYTES: Final = 4 * 1024
"""The size of a connection's first read. Reads grow with the frames in them: one read of thousands
of small requests would block all other connections.
"""
FRAMES_FEW: Final = 32
"""Reads grow while they deliver at most this many frames, and shrink above it."""

_SIZE_BYTES: Final = 4
_read_size = struct.Struct(">i").unpack_from


def new_scratch() -> memoryview:
    """A buffer that the readers of one event loop share.

    Sharing is safe: a transport requests the buffer, fills it and reports without a pause, and the
    reader leaves no data in it. So an idle connection holds no memory.
    """
    return memoryview(bytearray(SCRATCH_BYTES))


class FrameReader:
    """The reading half of a `BufferedProtocol`.

    Whole frames in the scratch buffer are copied out of it. The rest of a longer frame is read
    straight into a buffer of its size. So each frame owns its bytes, may be changed, and pins no
    others.
    """

    def __init__(self, size_bytes_max: int, limit: str, scratch: memoryview) -> None:
        """Frames above `size_bytes_max` are refused; `limit` is that setting's name."""
        self._size_bytes_max = size_bytes_max
        self._limit = limit
        self._scratch = scratch
        self._held = b""
        """The first bytes of a size that the last read cut."""
        self._frame: memoryview | None = None
        """The incomplete frame."""
        self._filled = 0
        self._read_bytes_max = FIRST_READ_BYTES

    @property
    def waiting(self) -> bool:
        """True if a frame is incomplete."""
        return self._frame is not None or bool(self._held)

    @property
    def announced(self) -> int:
        """The size of the incomplete frame, with its prefix; 0 while unknown."""
        return 0 if self._frame is None else len(self._frame) + _SIZE_BYTES

    @property
    def incomplete(self) -> bytes:
        """The bytes that were read of the incomplete frame, with its prefix."""
        if self._frame is None:
            return self._held
        return len(self._frame).to_bytes(_SIZE_BYTES, "big") + bytes(self._frame[: self._filled])

    def get_buffer(self, bytes_max: int = SCRATCH_BYTES) -> memoryview:
        """The buffer for the next read: at most `bytes_max`, unless a frame is incomplete."""
        if self._frame is not None:
            return self._frame[self._filled :]
        held = len(self._held)
        self._scratch[:held] = self._held
        return self._scratch[held : held + min(bytes_max, self._read_bytes_max)]

    def buffer_updated(self, size: int) -> list[memoryview]:
        """The frames that `size` more bytes complete.

        Raises:
            MalformedMessage: a size is negative or above the limit. The caller must close the
                connection; other frames of the same read are dropped unprocessed.
        """
        if self._frame is not None:
            self._filled += size
            if self._filled < len(self._frame):
                return []
            frame, self._frame = self._frame, None
            return [frame]
        frames = self._cut(len(self._held) + size)
        if len(frames) > FRAMES_FEW:
            self._read_bytes_max = max(FIRST_READ_BYTES, self._read_bytes_max // 2)
        elif size >= self._read_bytes_max:
            self._read_bytes_max = min(SCRATCH_BYTES, self._read_bytes_max * 2)
        return frames

    def _cut(self, end: int) -> list[memoryview]:
        """Cut the first `end` bytes of the scratch buffer into frames."""
        scratch = self._scratch
        frames = []
        position = 0
        while end - position >= _SIZE_BYTES:
            (size,) = _read_size(scratch, position)
            if not 0 <= size <= self._size_bytes_max:
                raise MalformedMessage(self._refusal(size, scratch[position : position + 4]))
            start = position + _SIZE_BYTES
            position = start + size
            if position > end:
                self._begin(size, scratch[start:end])
                position = end
                break
            frames.append(memoryview(bytearray(scratch[start:position])))
        self._held = bytes(scratch[position:end])
        return frames

    def _begin(self, size: int, head: memoryview) -> None:
        """Allocate a frame that begins with `head`.

        The memory is not cleared, unlike a bytearray's, so its pages take no memory until they are
        written. A client that announces a large frame without sending it costs the broker nothing.
        """
        self._frame = np.empty(size, np.uint8).data
        self._filled = len(head)
        self._frame[: len(head)] = head

    def _refusal(self, size: int, prefix: memoryview) -> str:
        start = bytes(prefix)
        if start in (b"GET ", b"POST", b"HEAD", b"PUT "):
            return "this is an HTTP request, but the port speaks the Kafka protocol"
        if start[:2] == b"\x16\x03":
            return "this is a TLS handshake, but the port speaks the Kafka protocol in plain text"
        if size < 0:
            return f"a frame announces a size of {size} bytes"
        return f"a frame of {size} bytes exceeds {self._limit} = {self._size_bytes_max}"
