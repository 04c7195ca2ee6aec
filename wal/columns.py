"""Tables stored column by column, little-endian: what images and indexes are made of."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tidelog.errors import CorruptObject
from tidelog.storage.object_store import Buffer


def table_of(dtype: np.dtype[np.void], rows: Sequence[tuple[Any, ...]]) -> NDArray[np.void]:
    """Rows as a structured array; OverflowError for a value that its column cannot hold."""
    return np.array(rows, dtype) if rows else np.empty(0, dtype)


def column_bytes(table: NDArray[np.void]) -> list[bytes]:
    """The columns one after the other, in the order of the type's fields."""
    assert table.dtype.names is not None
    return [table[name].tobytes() for name in table.dtype.names]


def strings_bytes(strings: Iterable[str]) -> list[bytes]:
    """Lengths (u4), then the UTF-8 bytes of all strings."""
    encoded = [string.encode() for string in strings]
    return [np.array([len(e) for e in encoded], "<u4").tobytes(), *encoded]


class ColumnReader:
    """Reads columns one after the other; whatever does not fit raises CorruptObject."""

    def __init__(self, key: str, data: Buffer, position: int, end: int) -> None:
        self._key = key
        self._view = memoryview(data)
        self._position = position
        self._end = end

    def column(self, dtype: np.dtype[Any] | str, count: int) -> NDArray[Any]:
        """The next `count` values; a view of the data."""
        kind = np.dtype(dtype)
        start, size = self._position, kind.itemsize * count
        if size > self._end - start:
            raise CorruptObject(self._key, f"a column of {count} values is cut off at byte {start}")
        self._position = start + size
        if not count:
            return np.empty(0, kind)
        return np.frombuffer(self._view[start : start + size], kind)

    def table(self, dtype: np.dtype[np.void], count: int) -> dict[str, NDArray[Any]]:
        """The next table's columns by name; views of the data."""
        assert dtype.fields is not None
        return {name: self.column(field[0], count) for name, field in dtype.fields.items()}

    def strings(self, count: int) -> list[str]:
        """The next `count` strings."""
        found = []
        for length in self.column("<u4", count).tolist():
            start, end = self._position, self._position + length
            if end > self._end:
                raise CorruptObject(self._key, f"a string is cut off at byte {start}")
            try:
                found.append(str(self._view[start:end], "utf-8"))
            except UnicodeDecodeError as error:
                raise CorruptObject(self._key, f"a string at byte {start}: {error}") from None
            self._position = end
        return found

    def finish(self) -> None:
        """Everything must have been read."""
        if self._position != self._end:
            raise CorruptObject(self._key, f"{self._end - self._position} bytes are left over")
