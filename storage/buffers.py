"""Arithmetic on put bodies and read ranges that the stores share."""

from __future__ import annotations

from collections.abc import Sequence

from tidelog.storage.object_store import Buffer, ByteRange, Suffix


def pieces(data: Buffer | Sequence[Buffer]) -> list[Buffer]:
    """The buffers of a put, in order."""
    if isinstance(data, bytes | bytearray | memoryview):
        return [data]
    return list(data)


def size_of(data: Buffer | Sequence[Buffer]) -> int:
    if isinstance(data, bytes | bytearray | memoryview):
        return memoryview(data).nbytes
    return sum(memoryview(piece).nbytes for piece in data)


def joined(data: Buffer | Sequence[Buffer]) -> Buffer:
    """The data as one buffer; several pieces are copied."""
    parts = pieces(data)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def clip(byte_range: ByteRange | Suffix | None, size: int) -> tuple[int, int]:
    """[start, end) of the bytes that a get returns from an object of `size` bytes."""
    match byte_range:
        case None:
            return 0, size
        case Suffix(length):
            return max(0, size - length), size
        case ByteRange(start, length):
            return min(start, size), min(start + length, size)
