"""Encodes and decodes messages, with readers and writers compiled at the first use of a version."""

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
    """`decode` for short messages, ignoring bytes after the message.

    Raises LongMessage for a long one, which the caller must decode in steps.
    """
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
    """The message that fills `frame` from `position` on.

    Bytes and records of the message are views into the frame and keep it alive. Unknown tagged
    fields are skipped.

    Bytes after the message raise an error: sender and receiver disagree about the schema, so the
    message may be misread. With `whole` false they are ignored, as in Kafka. A broker needs that:
    librdkafka (seen in 2.16) appends three bytes to a Metadata request for all topics.

    Raises:
        MalformedMessage: the bytes are not such a message.
        UnsupportedVersion: the schema lacks the version.
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
        # UnicodeDecodeError is a ValueError. The other two mean that the bytes ended too early.
        raise MalformedMessage(f"{message_type.__name__} version {version}: {error}") from error
    if whole and position != end:
        raise MalformedMessage(
            f"{message_type.__name__} version {version} is followed by {end - position} bytes "
            "that do not belong to it"
        )
    return message


def encode(message: Message, version: int, begun: bytearray | None = None) -> list[Buffer]:
    """The message as buffers to send in order; the first one continues `begun`.

    Records above a kilobyte are not copied: they must not change until they are sent.

    Raises:
        UnencodableMessage: a field's value does not fit its type or this version.
        UnsupportedVersion: the schema lacks the version.
    """
    first = bytearray() if begun is None else begun
    try:
        return encode_short(message, version, first)
    except LongMessage:
        return _exhausted(encode_in_steps(message, version, first))


def encode_short(message: Message, version: int, begun: bytearray) -> list[Buffer]:
    """`encode` for short messages.

    Raises LongMessage for a long one, which the caller must encode in steps; `begun` is unchanged
    then.
    """
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
    """`decode` of a long message, ignoring bytes after it.

    The generator pauses so often that a step takes less than a millisecond. It returns the message.
    """
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
    """The return value of a generator, run without pauses."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result


def encode_in_steps(
    message: Message, version: int, begun: bytearray
) -> Generator[None, None, list[Buffer]]:
    """`encode` of a long message.

    The generator pauses so often that a step takes less than a millisecond. It returns the buffers.
    """
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
