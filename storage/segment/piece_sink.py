"""A file that grows in memory without copies, with checksums taken during the writes."""

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
    """A file for Arrow to write to, as `pyarrow.PythonFile`.

    It keeps the written pieces as they are. A doubling buffer would hold the file up to three times
    while it moves, and would fragment the heap.
    """

    def __init__(self) -> None:
        super().__init__()
        self._pieces: list[Buffer] = []
        self._small: list[bytes] = []
        self._small_bytes = 0
        self._ends = array("q", [0])
        """The end of each write; 0 comes first."""
        self._crcs = array("L", [0])
        """CRC-32C of each write."""

    @property
    def size_bytes(self) -> int:
        return self._ends[-1]

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        """Append bytes. Arrow never changes the buffers that it passes."""
        piece = data if isinstance(data, bytes) else memoryview(data).cast("B")
        size = len(piece)
        if size:
            self._ends.append(self.size_bytes + size)
            # Compute it now, while the bytes are in the processor's cache.
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
        """The pieces written since the last call, in order."""
        self._settle()
        taken, self._pieces = self._pieces, []
        return taken

    def crc32c(self, begin: int, end: int) -> int:
        """CRC-32C of bytes [begin, end) of the file, including taken pieces.

        ValueError unless the range consists of whole writes.
        """
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
