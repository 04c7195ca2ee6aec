"""Parts of the wire format that compiled readers and writers share."""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import NoReturn, TypeAlias
from uuid import UUID

Buffer: TypeAlias = bytes | bytearray | memoryview
"""Bytes. A memoryview has format `B`, so that its length counts bytes."""

Records: TypeAlias = Buffer | list[Buffer]
"""Record batches: one buffer, or several adjacent ones when encoding."""

NULL_UUID = UUID(int=0)
"""Kafka's value for a missing topic id."""

STRING_BYTES_MAX = 32767
"""The limit of a string in UTF-8, in all versions of all messages."""

ELEMENTS_MAX = 200_000
"""The limit of all array elements in one message. An element of three bytes becomes an object of a
hundred, so without the limit a large request could take fifty times its size in memory.
"""

SHORT_ELEMENTS_MAX = 2_000
"""The limit of elements of a message read at once, which takes a millisecond or two."""

UNKNOWN_TAGS_MAX = 1_000
"""The limit of unknown tagged fields in one section."""

STEP_ELEMENTS = 256
"""Array elements per step of a long message, which takes some tenths of a millisecond. A power of
two.
"""

COPIED_BYTES_MAX = 1024
"""Records up to this size are copied into the message: that is cheaper than another buffer."""

_VARINT_BYTES_MAX = 5


class LongMessage(Exception):
    """The message must be read or written in steps."""


_ONE_BYTE = [bytes((value,)) for value in range(1 << 7)]


def read_uvarint(view: memoryview, position: int) -> tuple[int, int]:
    """The unsigned varint at `position` and the position after it.

    Raises:
        IndexError: the bytes end within it.
        ValueError: it does not fit 32 bits.
    """
    byte = view[position]
    value = byte & 0x7F
    shift = 7
    position += 1
    while byte > 0x7F:
        byte = view[position]
        position += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if shift > 7 * _VARINT_BYTES_MAX:
            raise ValueError("a variable-length number has more than five bytes")
    if value > 0xFFFFFFFF:
        raise ValueError(f"a variable-length number of {value} does not fit 32 bits")
    return value, position


def uvarint(value: int) -> bytes:
    """`value`, of up to 32 bits, as an unsigned varint.

    Unrolled for the sizes of records: every partition of a fetch has one.
    """
    if value < 1 << 7:
        return _ONE_BYTE[value]
    if value < 1 << 14:
        return bytes((value & 0x7F | 0x80, value >> 7))
    if value < 1 << 21:
        return bytes((value & 0x7F | 0x80, value >> 7 & 0x7F | 0x80, value >> 14))
    return bytes((value & 0x7F | 0x80,)) + uvarint(value >> 7)


def skip_tags(
    view: memoryview, position: int, end: int, left: int = UNKNOWN_TAGS_MAX
) -> tuple[int, int]:
    """The position after a section of unknown tagged fields, and the number of elements still
    allowed.

    Each field counts as one element. The fields are dropped, so that they cost no memory.
    """
    if not view[position]:
        return position + 1, left
    count, position = read_uvarint(view, position)
    left -= count
    if count > UNKNOWN_TAGS_MAX:
        too_many()
    for _ in range(count):
        _, position = read_uvarint(view, position)
        size, position = read_uvarint(view, position)
        position += size
        if position > end:
            overrun("a tagged field", size, end - position + size)
    return position, left


@lru_cache(maxsize=8192)
def uuid_of(encoded: bytes) -> UUID:
    """The UUID of 16 bytes. Cached, because every request repeats the same topic ids."""
    return UUID(bytes=encoded)


def overrun(where: str, size: int, left: int) -> NoReturn:
    """Refuse a length beyond the message's end."""
    raise ValueError(f"{where} announces a length of {size}, but {left} bytes follow")


def null(where: str) -> NoReturn:
    """Refuse a null that the schema forbids."""
    raise ValueError(f"{where} must not be null")


def bad_marker(where: str, marker: int, null_marker: int) -> NoReturn:
    """Refuse an invalid byte before a nullable structure."""
    why = f"neither present (1) nor null ({null_marker})"
    raise ValueError(f"{where} is marked {marker}, which is {why}")


def bad_tag(where: str, size: int) -> NoReturn:
    """Refuse a tagged field whose value does not fill its size."""
    raise ValueError(f"the tagged field {where} does not take up its {size} bytes")


def too_many() -> NoReturn:
    """Refuse a message with more elements than `ELEMENTS_MAX`."""
    raise ValueError(f"it has more than {ELEMENTS_MAX} array elements")


def too_long() -> NoReturn:
    """Refuse to read or write a long message at once."""
    raise LongMessage


def long_string(size: int) -> bytes:
    """The compact length prefix of a string, if length + 1 does not fit one byte."""
    if size > STRING_BYTES_MAX + 1:
        raise ValueError(f"a string of {size - 1} bytes is longer than {STRING_BYTES_MAX}")
    return uvarint(size)


def unpack_array(view: memoryview, position: int, code: str, count: int) -> list[int]:
    """`count` numbers of struct format `code`."""
    return list(struct.unpack_from(f">{count}{code}", view, position))


def pack_array(code: str, values: list[int]) -> bytes:
    """Numbers of struct format `code`, without their count."""
    return struct.pack(f">{len(values)}{code}", *values)
