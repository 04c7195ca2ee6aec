"""The bytes of a put and the clipping of a range: arithmetic that the stores share."""

from __future__ import annotations

from collections.abc import Sequence

from tidelog.storage.object_store import Buffer, ByteRange, Suffix


def pieces(data: Buffer | Sequence[Buffer]) -> list[Buffer]:
    """The buffers of a put, in order."""
    if isinstance(data, bytes | bytearray | memoryview):
        return [data]
    return list(data)


def size_of(data: Buffer | Sequence[Buffer]) -> int:
    """Bytes of a put's data."""
    if isinstance(data, bytes | bytearray | memoryview):
        return memoryview(data).nbytes
    return sum(memoryview(piece).nbytes for piece in data)


def joined(data: Buffer | Sequence[Buffer]) -> Buffer:
    """The data as one buffer; copied only if there is more than one piece."""
    parts = pieces(data)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def clip(byte_range: ByteRange | Suffix | None, size: int) -> tuple[int, int]:
    """[start, end) of the bytes of an object of `size` bytes that a get returns."""
    match byte_range:
        case None:
            return 0, size
        case Suffix(length):
            return max(0, size - length), size
        case ByteRange(start, length):
            return min(start, size), min(start + length, size)
