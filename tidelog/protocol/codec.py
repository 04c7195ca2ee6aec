"""Messages to bytes and back. Readers and writers are compiled when a version is first used."""

from __future__ import annotations

import struct
from typing import TypeVar

from tidelog.protocol.errors import MalformedMessage, UnencodableMessage, UnsupportedVersion
from tidelog.protocol.message import Message, Reader, Writer
from tidelog.protocol.reader import compile_reader
from tidelog.protocol.wire import Buffer
from tidelog.protocol.writer import compile_writer

M = TypeVar("M", bound=Message)


def decode(
    message_type: type[M], frame: Buffer, version: int, position: int = 0, *, whole: bool = True
) -> M:
    """The message that takes up `frame` from `position` on.

    Bytes and records of the message are views into the frame and keep it alive. Unknown tagged
    fields are skipped. Bytes left over are refused: sender and receiver then disagree about the
    schema, and going on would mean to act on what was misread. A broker cannot afford that: with
    `whole` false they are ignored, as Kafka does, since librdkafka (seen in 2.16) ends a Metadata
    request for all topics with three bytes too many.

    Raises:
        MalformedMessage: the bytes are not such a message.
        UnsupportedVersion: the schema does not know the version.
    """
    reader = message_type.READERS.get(version) or _reader(message_type, version)
    view = frame if type(frame) is memoryview else memoryview(frame)
    end = len(view)
    message: M
    try:
        message, position = reader(view, position, end)
    except (ValueError, IndexError, struct.error) as error:
        # UnicodeDecodeError is a ValueError; the other two mean that the bytes ended too early.
        raise MalformedMessage(f"{message_type.__name__} version {version}: {error}") from error
    if whole and position != end:
        raise MalformedMessage(
            f"{message_type.__name__} version {version} is followed by {end - position} bytes "
            "that do not belong to it"
        )
    return message


def encode(message: Message, version: int, begun: bytearray | None = None) -> list[Buffer]:
    """The message as buffers to be sent one after the other, the first of which goes on in `begun`.

    Records above a kilobyte are passed on, not copied: they must not change until they are sent.

    Raises:
        UnencodableMessage: a field holds what its type, or this version, does not allow.
        UnsupportedVersion: the schema does not know the version.
    """
    writer = message.WRITERS.get(version) or _writer(type(message), version)
    buffers: list[Buffer] = []
    try:
        buffers.append(writer(message, bytearray() if begun is None else begun, buffers))
    except (AttributeError, TypeError, ValueError, struct.error) as error:
        name = type(message).__name__
        raise UnencodableMessage(f"{name} version {version} cannot be encoded: {error}") from error
    return buffers


def _reader(message_type: type[Message], version: int) -> Reader:
    if version not in message_type.VERSIONS:
        raise UnsupportedVersion(message_type.__name__, version, message_type.VERSIONS)
    reader = message_type.READERS[version] = compile_reader(message_type, version)
    return reader


def _writer(message_type: type[Message], version: int) -> Writer:
    if version not in message_type.VERSIONS:
        raise UnsupportedVersion(message_type.__name__, version, message_type.VERSIONS)
    writer = message_type.WRITERS[version] = compile_writer(message_type, version)
    return writer
