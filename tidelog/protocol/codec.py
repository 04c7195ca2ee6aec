"""Messages to bytes and back. Readers and writers are compiled when a version is first used."""

from __future__ import annotations

import struct
from collections.abc import Generator
from typing import TypeVar

from tidelog.protocol.errors import MalformedMessage, UnencodableMessage, UnsupportedVersion
from tidelog.protocol.message import Message, Reader, StepReader, StepWriter, Writer
from tidelog.protocol.reader import compile_reader, compile_step_reader
from tidelog.protocol.wire import Buffer, LongMessage
from tidelog.protocol.writer import compile_step_writer, compile_writer

M = TypeVar("M", bound=Message)
T = TypeVar("T")


def decode_short(message_type: type[M], frame: memoryview, version: int, position: int) -> M:
    """`decode` with bytes left over ignored, for those who have no time for a long message. Raises
    LongMessage where it is one, and should be read in steps."""
    reader = message_type.READERS.get(version) or _reader(message_type, version)
    message: M
    try:
        message, _ = reader(frame, position, len(frame))
    except (ValueError, IndexError, struct.error) as error:
        raise MalformedMessage(f"{message_type.__name__} version {version}: {error}") from error
    return message


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
    except LongMessage:
        message, position = _exhausted(_read_in_steps(message_type, view, version, position))
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
    first = bytearray() if begun is None else begun
    try:
        return encode_short(message, version, first)
    except LongMessage:
        return _exhausted(encode_in_steps(message, version, first))


def encode_short(message: Message, version: int, begun: bytearray) -> list[Buffer]:
    """`encode` for those who have no time for a long message. Raises LongMessage where it is one,
    and should be written in steps; `begun` is as before then."""
    writer = message.WRITERS.get(version) or _writer(type(message), version)
    buffers: list[Buffer] = []
    size = len(begun)
    try:
        buffers.append(writer(message, begun, buffers))
    except LongMessage:
        del begun[size:]
        raise
    except (AttributeError, TypeError, ValueError, struct.error) as error:
        name = type(message).__name__
        raise UnencodableMessage(f"{name} version {version} cannot be encoded: {error}") from error
    return buffers


def decode_in_steps(
    message_type: type[M], frame: memoryview, version: int, position: int
) -> Generator[None, None, M]:
    """`decode` of a message that may be long, with bytes left over ignored: a generator that
    returns it, and pauses before a step takes a millisecond."""
    message, _ = yield from _read_in_steps(message_type, frame, version, position)
    return message


def _read_in_steps(
    message_type: type[M], frame: memoryview, version: int, position: int
) -> Generator[None, None, tuple[M, int]]:
    reader = message_type.STEP_READERS.get(version) or _step_reader(message_type, version)
    try:
        return (yield from reader(frame, position, len(frame)))
    except (ValueError, IndexError, struct.error) as error:
        raise MalformedMessage(f"{message_type.__name__} version {version}: {error}") from error


def _exhausted(steps: Generator[None, None, T]) -> T:
    """What a generator returns, without its pauses."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result


def encode_in_steps(
    message: Message, version: int, begun: bytearray
) -> Generator[None, None, list[Buffer]]:
    """`encode` of a message that may be long: a generator that returns the buffers, and pauses
    before a step takes a millisecond."""
    writer = message.STEP_WRITERS.get(version) or _step_writer(type(message), version)
    buffers: list[Buffer] = []
    try:
        buffers.append((yield from writer(message, begun, buffers)))
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


def _step_reader(message_type: type[Message], version: int) -> StepReader:
    _reader(message_type, version)
    reader = message_type.STEP_READERS[version] = compile_step_reader(message_type, version)
    return reader


def _step_writer(message_type: type[Message], version: int) -> StepWriter:
    _writer(message_type, version)
    writer = message_type.STEP_WRITERS[version] = compile_step_writer(message_type, version)
    return writer
