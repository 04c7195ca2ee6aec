"""Keys and values of `__consumer_offsets`: the version (int16), and the fields of that version."""

from __future__ import annotations

from struct import Struct as StructCode
from typing import Final, TypeVar

from tidelog.errors import TidelogError
from tidelog.protocol.codec import decode, encode
from tidelog.protocol.message import Message
from tidelog.protocol.wire import Buffer

VERSION: Final = StructCode(">h")

M = TypeVar("M", bound=Message)


class UnknownGroupRecord(TidelogError):
    """A record of `__consumer_offsets` does not decode.

    State that depends on it must not be used.
    """


def versioned(message_type: type[M], data: Buffer) -> tuple[M, int]:
    """The message, and its version. Raises MalformedMessage, UnsupportedVersion or struct.error."""
    version = VERSION.unpack_from(data)[0]
    return decode(message_type, data, version, VERSION.size), version


def encoded(message: Message, version: int) -> bytes:
    """The message, preceded by its version."""
    return b"".join(encode(message, version, bytearray(VERSION.pack(version))))
