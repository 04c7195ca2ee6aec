"""Headers of requests and responses, and whole frames.

Request header: API key, version, correlation id, client id, and in flexible versions tagged fields.
Response header: correlation id, and in flexible versions tagged fields. ApiVersions responses never
have tagged fields, since the client does not know the broker's versions yet (KIP-511).
"""

from __future__ import annotations

import struct
from collections.abc import Generator
from functools import cache
from math import inf
from typing import Final, NamedTuple

from tidelog.named_tuples import new_tuple
from tidelog.protocol.api import ApiKey, request_type
from tidelog.protocol.codec import encode, encode_in_steps, encode_short
from tidelog.protocol.errors import MalformedMessage, UnencodableMessage
from tidelog.protocol.message import Message, Request, Response
from tidelog.protocol.wire import Buffer, skip_tags

FRAME_BYTES_MAX: Final = 2**31 - 1
"""The limit of a frame's four-byte size."""

_API_KEY = struct.Struct(">h")
_REQUEST = struct.Struct(">hhih")
_RESPONSE = struct.Struct(">i")
_SIZE_AND_REQUEST = struct.Struct(">ihhih")
_SIZE_AND_RESPONSE = struct.Struct(">ii")


class RequestHeader(NamedTuple):
    """The header of a request, and the position of the message after it."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None
    body_position: int


def api_key_of(frame: memoryview) -> int:
    """The API key of a request's frame; -1, which no API has, if the frame is too short."""
    return _API_KEY.unpack_from(frame)[0] if len(frame) >= _API_KEY.size else -1


def decode_request_header(frame: memoryview) -> RequestHeader:
    """The header of a request's frame.

    The version is not checked: a broker answers ApiVersions requests of unknown versions. Versions
    above the known ones count as flexible.

    Raises:
        MalformedMessage: the bytes are no header.
        UnknownApi: no API has the key. The caller must close the connection.
    """
    try:
        api_key, api_version, correlation_id, length = _REQUEST.unpack_from(frame)
        position = _REQUEST.size
        client_id = None
        if length >= 0:
            position += length
            if position > len(frame):
                raise ValueError(f"client id of {length} bytes, frame of {len(frame)}")
            client_id = str(frame[_REQUEST.size : position], "utf-8")
        elif length != -1:
            raise ValueError(f"client id of {length} bytes")
        if api_version >= _flexible_from(api_key):
            position, _ = skip_tags(frame, position, len(frame))
    except (ValueError, IndexError, struct.error) as error:
        raise MalformedMessage(f"request header: {error}") from error
    return new_tuple(RequestHeader, (api_key, api_version, correlation_id, client_id, position))


def encode_request(
    message: Request[Response], version: int, correlation_id: int, client_id: str | None
) -> list[Buffer]:
    """A whole request, with its size prefix, as buffers to send in order.

    Raises:
        UnencodableMessage, UnsupportedVersion: see `codec.encode`.
    """
    encoded = b"" if client_id is None else client_id.encode()
    length = -1 if client_id is None else len(encoded)
    begun = bytearray(
        _SIZE_AND_REQUEST.pack(0, message.API_KEY, version, correlation_id, length) + encoded
    )
    if version in message.FLEXIBLE:
        begun.append(0)
    return _framed(message, encode(message, version, begun), begun)


def encode_response(message: Response, version: int, correlation_id: int) -> list[Buffer]:
    """A whole response, with its size prefix, as buffers to send in order.

    Raises:
        UnencodableMessage, UnsupportedVersion: see `codec.encode`.
    """
    begun = _response_header(message, version, correlation_id)
    return _framed(message, encode(message, version, begun), begun)


def encode_short_response(message: Response, version: int, correlation_id: int) -> list[Buffer]:
    """`encode_response` for short messages; raises LongMessage for a long one."""
    begun = _response_header(message, version, correlation_id)
    return _framed(message, encode_short(message, version, begun), begun)


def encode_response_in_steps(
    message: Response, version: int, correlation_id: int
) -> Generator[None, None, list[Buffer]]:
    """`encode_response` of a long message.

    The generator pauses so often that a step takes less than a millisecond. It returns the buffers.
    """
    begun = _response_header(message, version, correlation_id)
    buffers = yield from encode_in_steps(message, version, begun)
    return _framed(message, buffers, begun)


def _response_header(message: Response, version: int, correlation_id: int) -> bytearray:
    begun = bytearray(_SIZE_AND_RESPONSE.pack(0, correlation_id))
    if version in message.FLEXIBLE and message.API_KEY != ApiKey.API_VERSIONS:
        begun.append(0)
    return begun


def decode_correlation_id(frame: memoryview) -> int:
    """The correlation id of a response's frame, which tells the client its request.

    Raises:
        MalformedMessage: the frame is too short.
    """
    if len(frame) < _RESPONSE.size:
        raise MalformedMessage(f"a response of {len(frame)} bytes has no correlation id")
    correlation_id: int = _RESPONSE.unpack_from(frame)[0]
    return correlation_id


def response_body_position(frame: memoryview, message: type[Response], version: int) -> int:
    """The position of the message in a response's frame.

    Raises:
        MalformedMessage: the header's tagged fields do not decode.
    """
    if version not in message.FLEXIBLE or message.API_KEY == ApiKey.API_VERSIONS:
        return _RESPONSE.size
    try:
        position, _ = skip_tags(frame, _RESPONSE.size, len(frame))
    except (ValueError, IndexError) as error:
        raise MalformedMessage(f"response header: {error}") from error
    return position


@cache
def _flexible_from(api_key: int) -> float:
    """The first version with tagged fields. Raises UnknownApi."""
    versions = request_type(api_key).FLEXIBLE
    return versions.start if len(versions) > 0 else inf


def _framed(message: Message, buffers: list[Buffer], begun: bytearray) -> list[Buffer]:
    """The buffers, with the frame's size set in `begun`."""
    size = sum(map(len, buffers)) - 4
    if size > FRAME_BYTES_MAX:
        raise UnencodableMessage(f"{type(message).__name__} of {size} bytes does not fit a frame")
    struct.pack_into(">i", begun, 0, size)
    return buffers
