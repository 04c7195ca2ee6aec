"""Pieces of the wire format that compiled readers and writers share."""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import NoReturn, TypeAlias
from uuid import UUID

Buffer: TypeAlias = bytes | bytearray | memoryview
"""A run of bytes. A memoryview has format `B`, so that its length counts bytes."""

Records: TypeAlias = Buffer | list[Buffer]
"""Record batches: one run of bytes or, when encoding, several that follow each other."""

NULL_UUID = UUID(int=0)
"""What Kafka writes where there is no topic id."""

STRING_BYTES_MAX = 32767
"""The longest string, in UTF-8, that any version of any message may carry."""

ELEMENTS_MAX = 200_000
"""Elements of all arrays in one message. An element of three bytes becomes an object of a hundred,
so without this bound a large request could ask for fifty times its size in memory."""

SHORT_ELEMENTS_MAX = 2_000
"""Elements of a message that is read at once, which takes a millisecond or two."""

UNKNOWN_TAGS_MAX = 1_000
"""Tagged fields that are not understood, in one section."""

STEP_ELEMENTS = 256
"""Elements of arrays that are read or written in one step of a long message: some tenths of a
millisecond. A power of two."""

COPIED_BYTES_MAX = 1024
"""Records up to this size are copied into the message: cheaper than one more buffer to send."""

_VARINT_BYTES_MAX = 5


class LongMessage(Exception):
    """A message is to be read in steps."""


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
    """`value`, which fits 32 bits, as an unsigned varint. Written out for the sizes that records
    have, because one comes with every partition of a fetch."""
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
    """The position after a section of tagged fields none of which is known, and how many elements
    may still come: each of the fields counts as one.

    They are dropped, not kept: what is not understood must not cost memory.
    """
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
    """The UUID of 16 bytes. Cached, because the same topic ids come in every request."""
    return UUID(bytes=encoded)


def overrun(where: str, size: int, left: int) -> NoReturn:
    """Refuse a length that the message cannot hold."""
    raise ValueError(f"{where} announces a length of {size}, but {left} bytes follow")


def null(where: str) -> NoReturn:
    """Refuse a null where the schema has none."""
    raise ValueError(f"{where} must not be null")


def bad_marker(where: str, marker: int, null_marker: int) -> NoReturn:
    """Refuse the byte before a nullable structure if it says neither that it is there nor not."""
    why = f"neither present (1) nor null ({null_marker})"
    raise ValueError(f"{where} is marked {marker}, which is {why}")


def bad_tag(where: str, size: int) -> NoReturn:
    """Refuse a tagged field that does not use up the size that it announces."""
    raise ValueError(f"the tagged field {where} does not take up its {size} bytes")


def too_many() -> NoReturn:
    """Refuse a message with more elements than `ELEMENTS_MAX`."""
    raise ValueError(f"it has more than {ELEMENTS_MAX} array elements")


def too_long() -> NoReturn:
    """Refuse to read a message at once."""
    raise LongMessage


def long_string(size: int) -> bytes:
    """The compact length prefix of a string whose length, plus one, does not fit one byte."""
    if size > STRING_BYTES_MAX + 1:
        raise ValueError(f"a string of {size - 1} bytes is longer than {STRING_BYTES_MAX}")
    return uvarint(size)


def unpack_array(view: memoryview, position: int, code: str, count: int) -> list[int]:
    """`count` numbers of struct format `code`."""
    return list(struct.unpack_from(f">{count}{code}", view, position))


def pack_array(code: str, values: list[int]) -> bytes:
    """Numbers of struct format `code`, without their count."""
    return struct.pack(f">{len(values)}{code}", *values)
