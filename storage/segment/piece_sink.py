"""A file that grows in memory without being moved, and whose checksums are made as it grows."""

from __future__ import annotations

import io
from array import array
from bisect import bisect_left
from typing import Any, Final

from awscrt.checksums import combine_crc32c, crc32c

from tidelog.storage.object_store import Buffer

PIECE_BYTES_MIN: Final = 64 * 1024
"""Smaller writes are joined."""


class PieceSink(io.RawIOBase):
    """For Arrow to write to, as `pyarrow.PythonFile`. It keeps what is written in the pieces in
    which it comes. A buffer that doubles would hold the file up to three times, each time that it
    is moved, and leave behind what it outgrew.
    """

    def __init__(self) -> None:
        super().__init__()
        self._pieces: list[Buffer] = []
        self._small: list[bytes] = []
        self._small_bytes = 0
        self._ends = array("q", [0])
        """Where each write ended; before the first there is nothing."""
        self._crcs = array("L", [0])
        """CRC-32C of each write."""

    @property
    def size_bytes(self) -> int:
        """Of all that was written."""
        return self._ends[-1]

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        """Arrow gives bytes of their own or a buffer that nobody changes any more."""
        piece = data if isinstance(data, bytes) else memoryview(data).cast("B")
        size = len(piece)
        if size:
            self._ends.append(self.size_bytes + size)
            # Taken now, while the bytes are in the processor's cache.
            self._crcs.append(crc32c(piece))
        if size < PIECE_BYTES_MIN:
            self._small.append(bytes(piece))
            self._small_bytes += size
            if self._small_bytes < PIECE_BYTES_MIN:
                return size
        self._settle()
        if size >= PIECE_BYTES_MIN:
            self._pieces.append(piece)
        return size

    def take(self) -> list[Buffer]:
        """What was written since the last call, one piece behind the other."""
        self._settle()
        taken, self._pieces = self._pieces, []
        return taken

    def crc32c(self, begin: int, end: int) -> int:
        """CRC-32C of bytes [begin, end) of all that was written, taken or not. ValueError if these
        are not whole writes."""
        first, last = bisect_left(self._ends, begin), bisect_left(self._ends, end)
        is_known = begin <= end and last < len(self._ends)
        if not is_known or (self._ends[first], self._ends[last]) != (begin, end):
            raise ValueError(f"no writes begin at byte {begin} and end at byte {end}")
        crc = 0
        for index in range(first + 1, last + 1):
            size = self._ends[index] - self._ends[index - 1]
            crc = combine_crc32c(crc, self._crcs[index], size)
        return crc

    def _settle(self) -> None:
        if self._small:
            self._pieces.append(b"".join(self._small))
            self._small, self._small_bytes = [], 0
