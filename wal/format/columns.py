"""Encodes and reads tables by column, little-endian. Images and indexes consist of such tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from struct import pack
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tidelog.errors import CorruptObject
from tidelog.storage.object_store import Buffer

_STRUCT_CODES: Final = {
    "|u1": "B",
    "<u2": "H",
    "<i2": "h",
    "<u4": "I",
    "<i4": "i",
    "<i8": "q",
}


def table_bytes(dtype: np.dtype[np.void], rows: Iterable[Sequence[Any]]) -> list[bytes]:
    """`columns_bytes` for a table given as rows."""
    columns = list(zip(*rows, strict=True))
    return columns_bytes(dtype, columns) if columns else []


def columns_bytes(dtype: np.dtype[np.void], columns: Iterable[Sequence[Any]]) -> list[bytes]:
    """The encoded columns, in the order of the dtype's fields: integers or fixed bytes.

    It avoids numpy, which converts Python's numbers more slowly, most of all in short columns.
    Raises struct.error for a value that its column cannot hold.
    """
    return [
        b"".join(column) if code is None else pack(f"<{len(column)}{code}", *column)
        for code, column in zip(_codes(dtype), columns, strict=True)
    ]


@cache
def _codes(dtype: np.dtype[np.void]) -> tuple[str | None, ...]:
    """The `struct` code of each integer column; None for fixed bytes."""
    assert dtype.names is not None
    kinds = [dtype[name] for name in dtype.names]
    return tuple(None if kind.kind == "V" else _STRUCT_CODES[kind.str] for kind in kinds)


def strings_bytes(strings: Iterable[str]) -> list[bytes]:
    """The lengths (u4), then the UTF-8 bytes of all strings."""
    encoded = [string.encode() for string in strings]
    return [pack(f"<{len(encoded)}I", *map(len, encoded)), *encoded]


class ColumnReader:
    """Reads one column after the other. Raises CorruptObject if the data does not fit."""

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
        return np.frombuffer(self._view, kind, count, start)

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
        """Raise CorruptObject if bytes are left."""
        if self._position != self._end:
            raise CorruptObject(self._key, f"{self._end - self._position} bytes are left over")
