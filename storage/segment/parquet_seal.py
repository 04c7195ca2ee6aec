"""Checksums within a Parquet file, so that Arrow never reads unchecked bytes.

Wrong bytes in a footer can crash the process within Arrow, and Parquet has no checksum for it. So
each of Tidelog's files has a seal between its data and its footer, where Parquet readers do not
look:

    CRC-32C of each column chunk, row group by row group (u32 each)
    their number (u32)
    CRC-32C of all of the above and of the footer (u32)
    magic TIDESEAL (8 bytes)

The integers are little-endian. The footer is Parquet's, with its length and magic. Positions in a
Parquet file count from its beginning, so the seal shifts none of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from struct import Struct
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from awscrt.checksums import crc32c

from tidelog.errors import CorruptObject
from tidelog.storage.object_store import Buffer

MAGIC: Final = b"TIDESEAL"
_PARQUET_MAGIC = b"PAR1"
_PARQUET_TAIL_BYTES = 8
"""The length of the footer's content, and the magic."""
_END = Struct("<II8s")
_UINT32 = np.dtype("<u4")
TAIL_BYTES_MIN: Final = _END.size + _PARQUET_TAIL_BYTES


class SealedFile(NamedTuple):
    """The pieces of a Parquet file to be stored, in order."""

    pieces: tuple[Buffer, ...]
    tail_bytes: int
    """The length of seal and footer, which a reader reads first."""

    @property
    def size_bytes(self) -> int:
        return sum(map(len, self.pieces))


class Footer(NamedTuple):
    """A footer whose checksum is correct."""

    metadata: Any
    """pyarrow's `FileMetaData`."""
    chunk_crcs: list[list[int]]
    """CRC-32C of the column chunks, for each row group."""


def seal(data: Buffer, checksum: Callable[[int, int], int] | None = None) -> SealedFile:
    """A finished Parquet file with its seal.

    `data` may be only the end of the file, with the whole footer. The pieces are then those of that
    end, and `checksum` gives the CRC-32C of the file's bytes [begin, end), a column chunk.
    """
    whole = memoryview(data)
    if checksum is None:

        def checksum(begin: int, end: int) -> int:
            return int(crc32c(whole[begin:end]))

    at = len(whole) - _footer_bytes("", whole)
    body, footer = whole[:at], whole[at:]
    metadata = pq.read_metadata(pa.BufferReader(footer))
    crcs = [
        checksum(begin, end)
        for group in range(metadata.num_row_groups)
        for begin, end in chunk_places(metadata, group)
    ]
    table = np.array(crcs, _UINT32).tobytes()
    content = table + _UINT32.type(len(crcs)).tobytes()
    sealed = table + _END.pack(len(crcs), crc32c(footer, crc32c(content)), MAGIC)
    return SealedFile((body, sealed, footer), len(sealed) + len(footer))


def is_sealed(tail: Buffer) -> bool:
    """True if the file with this end has a seal, valid or not. Only Tidelog writes seals."""
    if len(tail) < TAIL_BYTES_MIN or bytes(tail[-4:]) != _PARQUET_MAGIC:
        return False
    at = len(tail) - _footer_bytes("", tail) - len(MAGIC)
    return at >= 0 and bytes(tail[at : at + len(MAGIC)]) == MAGIC


def tail_bytes(key: str, tail: Buffer) -> int:
    """The length of seal and footer, from the object's last bytes.

    If these do not reach to the seal's end, the result is a lower bound that does. CorruptObject.
    """
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
    """Compare a row group's chunks with their checksums; `data` begins at byte `start` of the file.

    Raises CorruptObject.
    """
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
    """The byte range of each of a row group's columns."""
    row_group = metadata.row_group(group)
    for index in range(metadata.num_columns):
        chunk = row_group.column(index)
        begin = chunk.data_page_offset
        if chunk.has_dictionary_page:
            begin = min(begin, chunk.dictionary_page_offset)
        yield begin, begin + chunk.total_compressed_size


def _footer_bytes(key: str, tail: Buffer) -> int:
    """The length of Parquet's footer, with its length field and magic."""
    if len(tail) < TAIL_BYTES_MIN or bytes(tail[-4:]) != _PARQUET_MAGIC:
        raise CorruptObject(key, "it does not end as a Parquet file does")
    return int.from_bytes(tail[-_PARQUET_TAIL_BYTES:-4], "little") + _PARQUET_TAIL_BYTES
