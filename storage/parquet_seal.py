"""Checksums within a Parquet file, so that Arrow is never given bytes that were not checked.

Wrong bytes in a footer can end the process within Arrow, and Parquet has no checksum for it. So
each file of ours has a seal between its data and its footer, where no reader looks for anything:

    CRC-32C of each column chunk, row group by row group (u32 each)
    their number (u32)
    CRC-32C of all of the above and of the footer (u32)
    magic TIDESEAL (8 bytes)

Little-endian. The footer is what Parquet calls so, with its length and magic. Places in a Parquet
file count from its beginning, so that nothing else has to know.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate
from struct import Struct
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from awscrt.checksums import crc32c

from tidelog.errors import CorruptObject
from tidelog.storage.buffers import joined, pieces
from tidelog.storage.object_store import Buffer

MAGIC: Final = b"TIDESEAL"
_PARQUET_MAGIC = b"PAR1"
_PARQUET_TAIL_BYTES = 8
"""The length of the footer's content, and the magic."""
_END = Struct("<II8s")
_UINT32 = np.dtype("<u4")
TAIL_BYTES_MIN: Final = _END.size + _PARQUET_TAIL_BYTES


class SealedFile(NamedTuple):
    """A Parquet file to be stored: its pieces, one behind the other."""

    pieces: tuple[Buffer, ...]
    tail_bytes: int
    """Of seal and footer: what a reader has to read first."""

    @property
    def size_bytes(self) -> int:
        """Of the whole file."""
        return sum(map(len, self.pieces))

    @property
    def crc32c(self) -> int:
        """Of the whole file."""
        crc = 0
        for piece in self.pieces:
            crc = crc32c(piece, crc)
        return crc


class Footer(NamedTuple):
    """A footer whose checksum is right."""

    metadata: Any
    """pyarrow's `FileMetaData`."""
    chunk_crcs: list[list[int]]
    """CRC-32C of the column chunks, for each row group."""


def seal(data: Buffer | Sequence[Buffer]) -> SealedFile:
    """The finished Parquet file with its seal. `data`: all of it, or pieces of it in order."""
    file = _Pieces(data)
    end = file.size_bytes
    footer_bytes = _footer_bytes("", file.joined(max(0, end - TAIL_BYTES_MIN), end))
    footer = file.joined(end - footer_bytes, end)
    metadata = pq.read_metadata(pa.BufferReader(footer))
    crcs = [
        file.crc32c(begin, end)
        for group in range(metadata.num_row_groups)
        for begin, end in chunk_places(metadata, group)
    ]
    table = np.array(crcs, _UINT32).tobytes()
    content = table + _UINT32.type(len(crcs)).tobytes()
    sealed = table + _END.pack(len(crcs), crc32c(footer, crc32c(content)), MAGIC)
    body = file.views(0, file.size_bytes - footer_bytes)
    return SealedFile((*body, sealed, footer), len(sealed) + footer_bytes)


class _Pieces:
    """Pieces of a file, read as one."""

    def __init__(self, data: Buffer | Sequence[Buffer]) -> None:
        self._views = [memoryview(piece) for piece in pieces(data)]
        self._starts = list(accumulate(map(len, self._views), initial=0))

    @property
    def size_bytes(self) -> int:
        return self._starts[-1]

    def views(self, begin: int, end: int) -> Iterator[memoryview]:
        """Bytes [begin, end), as they lie in the pieces."""
        index = bisect_right(self._starts, begin) - 1
        while begin < end:
            start = self._starts[index]
            view = self._views[index][begin - start : end - start]
            yield view
            begin, index = begin + len(view), index + 1

    def joined(self, begin: int, end: int) -> Buffer:
        """Bytes [begin, end); copied where they lie in several pieces."""
        return joined(list(self.views(begin, end)))

    def crc32c(self, begin: int, end: int) -> int:
        """The checksum of bytes [begin, end)."""
        crc = 0
        for view in self.views(begin, end):
            crc = crc32c(view, crc)
        return crc


def is_sealed(tail: Buffer) -> bool:
    """Whether the file with this end has a seal, right or wrong; others write none."""
    if len(tail) < TAIL_BYTES_MIN or bytes(tail[-4:]) != _PARQUET_MAGIC:
        return False
    at = len(tail) - _footer_bytes("", tail) - len(MAGIC)
    return at >= 0 and bytes(tail[at : at + len(MAGIC)]) == MAGIC


def tail_bytes(key: str, tail: Buffer) -> int:
    """How long seal and footer are, from the object's last bytes; where these do not reach to the
    seal's end, an estimate from below that does. CorruptObject."""
    footer_bytes = _footer_bytes(key, tail)
    if len(tail) < footer_bytes + _END.size:
        return footer_bytes + _END.size
    count, _, magic = _END.unpack_from(tail, len(tail) - footer_bytes - _END.size)
    if magic != MAGIC:
        raise CorruptObject(key, "it has no seal before its footer")
    return footer_bytes + _END.size + int(count) * _UINT32.itemsize


def open_footer(key: str, tail: Buffer) -> Footer:
    """The footer, from the object's last `tail_bytes` or more. CorruptObject."""
    needed = tail_bytes(key, tail)
    if len(tail) < needed:
        raise CorruptObject(key, f"a seal and footer of {needed} bytes do not fit into it")
    sealed = memoryview(tail)[len(tail) - needed :]
    footer_bytes = _footer_bytes(key, tail)
    end = len(sealed) - footer_bytes - _END.size
    count, crc, _ = _END.unpack_from(sealed, end)
    footer = sealed[len(sealed) - footer_bytes :]
    if crc32c(footer, crc32c(sealed[: end + _UINT32.itemsize])) != crc:
        raise CorruptObject(key, "its footer does not match its checksum")
    metadata = pq.read_metadata(pa.BufferReader(footer))
    if count != metadata.num_row_groups * metadata.num_columns:
        raise CorruptObject(key, f"its seal has {count} checksums, which are not its chunks'")
    crcs = np.frombuffer(sealed, _UINT32, count).reshape(
        metadata.num_row_groups, metadata.num_columns
    )
    return Footer(metadata, crcs.tolist())


def check_chunks(
    key: str, footer: Footer, group: int, columns: Sequence[int], start: int, data: Buffer
) -> None:
    """Compare the chunks of a row group with their checksums, in bytes that begin at `start`.

    CorruptObject."""
    view = memoryview(data)
    places = list(chunk_places(footer.metadata, group))
    for column in columns:
        begin, end = places[column]
        if begin < start or end > start + len(view):
            raise CorruptObject(key, f"column {column} of row group {group} lies outside of it")
        if crc32c(view[begin - start : end - start]) != footer.chunk_crcs[group][column]:
            raise CorruptObject(
                key, f"column {column} of row group {group} does not match its checksum"
            )


def chunk_places(metadata: Any, group: int) -> Iterator[tuple[int, int]]:
    """Where the bytes of each of a row group's columns begin and end."""
    row_group = metadata.row_group(group)
    for index in range(metadata.num_columns):
        chunk = row_group.column(index)
        begin = chunk.data_page_offset
        if chunk.has_dictionary_page:
            begin = min(begin, chunk.dictionary_page_offset)
        yield begin, begin + chunk.total_compressed_size


def _footer_bytes(key: str, tail: Buffer) -> int:
    """Parquet's footer, with its length and magic."""
    if len(tail) < TAIL_BYTES_MIN or bytes(tail[-4:]) != _PARQUET_MAGIC:
        raise CorruptObject(key, "it does not end as a Parquet file does")
    return int.from_bytes(tail[-_PARQUET_TAIL_BYTES:-4], "little") + _PARQUET_TAIL_BYTES
