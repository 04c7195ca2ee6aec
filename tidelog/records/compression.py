"""The codecs of record batches: compression, and decompression within a size limit.

The framings are those of Kafka's clients: gzip members, xerial-framed or raw snappy, standard lz4
frames with independent blocks, zstd frames (Java's carry no content size).
"""

from __future__ import annotations

import threading
import zlib
from enum import IntEnum
from struct import Struct

import cramjam
import lz4.frame
import zstandard

from tidelog.errors import TidelogError
from tidelog.records.buffers import Buffer

GZIP_LEVEL_DEFAULT = 6
LZ4_LEVEL_DEFAULT = 0
ZSTD_LEVEL_DEFAULT = 3

_GZIP_WBITS = 16 + zlib.MAX_WBITS
_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER = _XERIAL_MAGIC + b"\x00\x00\x00\x01\x00\x00\x00\x01"
_XERIAL_BLOCK_BYTES = 32 * 1024
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_ZSTD_REPEATED_BYTE = 1
_BLOCK_LENGTH = Struct(">i")
_PIECE_BYTES_MIN = 64 * 1024
_PIECE_BYTES_MAX = 4 * 1024 * 1024
_GUESS_RATIO = 8


class Compression(IntEnum):
    """Kafka's codec ids, as in the lowest three bits of a batch's attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


class DecompressedTooLarge(TidelogError):
    """The decompressed data exceeds the limit; the decompressed part is dropped."""

    def __init__(self, size_max: int) -> None:
        super().__init__(f"decompressed data exceeds the limit of {size_max} bytes")
        self.size_max = size_max


class CorruptCompression(TidelogError):
    """The codec cannot decompress the data, the data is cut off, or bytes follow its end."""


class _Contexts(threading.local):
    """The zstd contexts of one thread: they are costly to create and not thread-safe."""

    def __init__(self) -> None:
        # Frames of zstd levels 20 to 22 declare windows up to 128 MiB, the library's own bound. A
        # window takes memory only as output is written, so the size limit holds.
        self.decompressor = zstandard.ZstdDecompressor()
        self.compressors: dict[int, zstandard.ZstdCompressor] = {}

    def compressor(self, level: int) -> zstandard.ZstdCompressor:
        found = self.compressors.get(level)
        if found is None:
            found = self.compressors[level] = zstandard.ZstdCompressor(level=level)
        return found


_contexts = _Contexts()


def compress(codec: Compression, data: Buffer, level: int | None = None) -> bytes:
    """The data in the codec's framing; `level` is the codec's own scale (gzip, lz4 and zstd have
    one).

    Equal data, level and library versions give equal bytes.
    """
    match codec:
        case Compression.NONE:
            return bytes(data)
        case Compression.GZIP:
            compressor = zlib.compressobj(
                GZIP_LEVEL_DEFAULT if level is None else level, zlib.DEFLATED, _GZIP_WBITS
            )
            return compressor.compress(data) + compressor.flush()
        case Compression.SNAPPY:
            return _compress_xerial(memoryview(data))
        case Compression.LZ4:
            # Java's reader refuses frames whose blocks refer to earlier ones.
            framed: bytes = lz4.frame.compress(
                data,
                compression_level=LZ4_LEVEL_DEFAULT if level is None else level,
                block_linked=False,
            )
            return framed
        case Compression.ZSTD:
            return _contexts.compressor(ZSTD_LEVEL_DEFAULT if level is None else level).compress(
                data
            )


def decompress(codec: Compression, data: Buffer, size_max: int) -> bytes | bytearray:
    """The decompressed data, at most `size_max` bytes.

    Allocates that plus a small constant at most, whatever size the data claims. Raises
    DecompressedTooLarge and CorruptCompression.
    """
    match codec:
        case Compression.NONE:
            if len(data) > size_max:
                raise DecompressedTooLarge(size_max)
            return bytes(data)
        case Compression.GZIP:
            return _decompress_gzip(data, size_max)
        case Compression.SNAPPY:
            return _decompress_snappy(memoryview(data), size_max)
        case Compression.LZ4:
            return _decompress_lz4(memoryview(data), size_max)
        case Compression.ZSTD:
            return _decompress_zstd(data, size_max)


def _decompress_gzip(data: Buffer, size_max: int) -> bytes | bytearray:
    output = _Output(data, size_max)
    rest: Buffer = data
    while rest or not output.pieces:
        decompressor = zlib.decompressobj(_GZIP_WBITS)
        while not decompressor.eof:
            try:
                piece = decompressor.decompress(rest, output.room())
            except zlib.error as error:
                raise CorruptCompression(f"gzip: {error}") from None
            output.add(piece)
            rest = decompressor.unconsumed_tail
            if not rest and not decompressor.eof and not piece:
                raise CorruptCompression("gzip: the data ends before the stream does")
        rest = decompressor.unused_data
    return output.content


def _compress_xerial(data: memoryview) -> bytes:
    parts: list[bytes] = [_XERIAL_HEADER]
    for start in range(0, len(data), _XERIAL_BLOCK_BYTES):
        block = bytes(cramjam.snappy.compress_raw(data[start : start + _XERIAL_BLOCK_BYTES]))
        parts.append(_BLOCK_LENGTH.pack(len(block)))
        parts.append(block)
    return b"".join(parts)


def _decompress_snappy(data: memoryview, size_max: int) -> bytearray:
    if bytes(data[: len(_XERIAL_MAGIC)]) != _XERIAL_MAGIC:
        return _join_snappy([data], size_max)
    if bytes(data[: len(_XERIAL_HEADER)]) != _XERIAL_HEADER:
        raise CorruptCompression("snappy: not version 1 of xerial's framing")
    blocks: list[memoryview] = []
    position = len(_XERIAL_HEADER)
    while position < len(data):
        start = position + _BLOCK_LENGTH.size
        if start > len(data):
            raise CorruptCompression("snappy: the data ends within a block's length")
        length = _BLOCK_LENGTH.unpack_from(data, position)[0]
        position = start + length
        if length < 1 or position > len(data):
            raise CorruptCompression(f"snappy: a block of {length} bytes does not fit the data")
        blocks.append(data[start:position])
    return _join_snappy(blocks, size_max)


def _join_snappy(blocks: list[memoryview], size_max: int) -> bytearray:
    # Each block begins with its decompressed size, so the total is known before the allocation.
    sizes = [_snappy_size(block) for block in blocks]
    if sum(sizes) > size_max:
        raise DecompressedTooLarge(size_max)
    output = bytearray(sum(sizes))
    position = 0
    for block, size in zip(blocks, sizes, strict=True):
        if size:
            target = memoryview(output)[position : position + size]
            try:
                written = cramjam.snappy.decompress_raw_into(block, target)
            except cramjam.DecompressionError as error:
                raise CorruptCompression(str(error)) from None
            if written != size:
                raise CorruptCompression(f"snappy: a block of {size} bytes gave {written}")
        elif len(block) != 1:
            raise CorruptCompression("snappy: an empty block has bytes behind its end")
        position += size
    return output


def _snappy_size(block: memoryview) -> int:
    size = 0
    for index, byte in enumerate(block[:5]):
        size |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            if size >= 2**32:
                break
            return size
    raise CorruptCompression("snappy: a block does not begin with its decompressed size")


class _Output:
    """Joins decompressed pieces as they come: memory holds one copy and one piece."""

    def __init__(self, data: Buffer, size_max: int) -> None:
        self.content: bytes | bytearray = b""
        self.pieces = 0
        self._first_room = min(_PIECE_BYTES_MAX, _guess(data, size_max))
        self._size_max = size_max

    def room(self) -> int:
        """The size limit of the next piece. At the end it is one byte more, to detect excess
        data.
        """
        if not self.pieces:
            return self._first_room
        return min(_PIECE_BYTES_MAX, self._size_max - len(self.content) + 1)

    def add(self, piece: bytes) -> None:
        self.pieces += 1
        if len(self.content) + len(piece) > self._size_max:
            raise DecompressedTooLarge(self._size_max)
        if not self.content:
            self.content = piece
            return
        if not isinstance(self.content, bytearray):
            self.content = bytearray(self.content)
        self.content += piece


def _guess(data: Buffer, size_max: int) -> int:
    """The output size of a first attempt: enough for most data, and cheap if unused."""
    return min(size_max + 1, max(_PIECE_BYTES_MIN, _GUESS_RATIO * len(data)))


def _decompress_lz4(data: memoryview, size_max: int) -> bytes | bytearray:
    context = lz4.frame.create_decompression_context()
    output = _Output(data, size_max)
    position = 0
    finished = False
    while not finished:
        try:
            piece, consumed, finished = lz4.frame.decompress_chunk(
                context, data[position:], max_length=output.room()
            )
        except RuntimeError as error:
            raise CorruptCompression(f"lz4: {error}") from None
        output.add(piece)
        position += consumed
        if not finished and not piece and not consumed:
            raise CorruptCompression("lz4: the data ends before the frame does")
    if position != len(data):
        raise CorruptCompression("lz4: bytes behind the end of the frame")
    return output.content


def _decompress_zstd(data: Buffer, size_max: int) -> bytes:
    # The library may miss bytes after a frame; a Java consumer would read on.
    if _zstd_frame_end(data) != len(data):
        raise CorruptCompression("zstd: not exactly one frame")
    decompressor = _contexts.decompressor
    try:
        stated = zstandard.frame_content_size(data)
        if stated > size_max:
            raise DecompressedTooLarge(size_max)
        # A frame that states its size gets exactly that. (A frame that claims to be empty is
        # accepted unread; no records section is empty.) Otherwise guess: unused room costs page
        # faults and a system call for each batch.
        room = _guess(data, size_max)
        while True:
            try:
                plain = decompressor.decompress(data, max_output_size=room)
            except zstandard.ZstdError:
                if room > size_max or stated >= 0:
                    raise
                room = min(size_max + 1, _GUESS_RATIO * room)
                continue
            break
    except zstandard.ZstdError as error:
        if _zstd_exceeds(data, size_max):
            raise DecompressedTooLarge(size_max) from None
        raise CorruptCompression(f"zstd: {error}") from None
    if len(plain) > size_max:
        raise DecompressedTooLarge(size_max)
    return plain


def _zstd_frame_end(data: Buffer) -> int:
    """The end of the first frame by its block lengths (RFC 8878), or -1."""
    if len(data) <= len(_ZSTD_MAGIC) or bytes(data[: len(_ZSTD_MAGIC)]) != _ZSTD_MAGIC:
        return -1
    descriptor = data[len(_ZSTD_MAGIC)]
    single_segment, has_checksum = descriptor >> 5 & 1, descriptor >> 2 & 1
    content_size_bytes = (single_segment, 2, 4, 8)[descriptor >> 6]
    dictionary_bytes = (0, 1, 2, 4)[descriptor & 3]
    position = len(_ZSTD_MAGIC) + 2 - single_segment + dictionary_bytes + content_size_bytes
    while position + 3 <= len(data):
        header = int.from_bytes(data[position : position + 3], "little")
        is_last, kind, size = header & 1, header >> 1 & 3, header >> 3
        position += 3 + (1 if kind == _ZSTD_REPEATED_BYTE else size)
        if is_last:
            return position + 4 * has_checksum
    return -1


def _zstd_exceeds(data: Buffer, size_max: int) -> bool:
    """True if decompression failed for lack of room; the library's message does not tell."""
    size = 0
    try:
        with _contexts.decompressor.stream_reader(data) as reader:
            while piece := reader.read(_PIECE_BYTES_MIN):
                size += len(piece)
                if size > size_max:
                    return True
    except zstandard.ZstdError:
        return False
    return False
