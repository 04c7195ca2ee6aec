"""A file that grows in memory without being moved."""

from __future__ import annotations

import io
from typing import Any, Final

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
        self.size_bytes = 0
        """Of all that was written."""

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        """Arrow gives bytes of their own or a buffer that nobody changes any more."""
        piece = data if isinstance(data, bytes) else memoryview(data).cast("B")
        size = len(piece)
        self.size_bytes += size
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

    def _settle(self) -> None:
        if self._small:
            self._pieces.append(b"".join(self._small))
            self._small, self._small_bytes = [], 0
