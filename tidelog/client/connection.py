"""One connection to a broker as a pure state machine: no sockets, no futures, no clock.

`submit` encodes and queues a request. The connection sends it once fewer than the maximum of
requests are outstanding. The broker answers in request order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

from tidelog.client.errors import NoCommonVersion, RequestOutcome, TooManyRequests
from tidelog.protocol.api import OWN_KEYS_FROM, response_type
from tidelog.protocol.codec import decode
from tidelog.protocol.error_codes import ErrorCode
from tidelog.protocol.errors import MalformedMessage
from tidelog.protocol.headers import (
    decode_correlation_id,
    encode_request,
    response_body_position,
)
from tidelog.protocol.message import Request, Response
from tidelog.protocol.schemas.cluster.api_versions import ApiVersionsResponse
from tidelog.protocol.schemas.produce import ProduceRequest
from tidelog.protocol.wire import Buffer

T = TypeVar("T")

_CORRELATION_IDS = 2**31


class Outgoing(NamedTuple, Generic[T]):
    """Buffers to write now, and the tokens of their requests that expect no response."""

    buffers: list[Buffer]
    unanswered: list[T]


class Answer(NamedTuple, Generic[T]):
    """A response and the token of its request."""

    token: T
    response: Response


@dataclass(frozen=True, slots=True, eq=False)
class _Submitted(Generic[T]):
    token: T
    correlation_id: int
    response_type: type[Response] | None
    """None if no response follows: Produce with acks 0."""
    version: int
    buffers: list[Buffer]


class ClientConnection(Generic[T]):
    """Requests and responses of one connection. The caller's token names each request."""

    def __init__(self, client_id: str | None, outstanding_max: int, queued_max: int) -> None:
        self._client_id = client_id
        self._outstanding_max = outstanding_max
        self._queued_max = queued_max
        self._queued: deque[_Submitted[T]] = deque()
        self._outstanding: deque[_Submitted[T]] = deque()
        self._next_correlation_id = 0
        self._paused = False
        self._versions: dict[int, range] = {}

    def learn_versions(self, advertised: Mapping[int, range]) -> None:
        """Store the broker's versions of each API."""
        self._versions = dict(advertised)

    def highest_common_version(self, message: type[Request[Response]]) -> int:
        """The version in which to send a message. Brokers do not advertise Tidelog's own requests.

        Raises:
            NoCommonVersion: broker and client share no version.
        """
        if message.API_KEY >= OWN_KEYS_FROM:
            return message.VERSIONS[-1]
        theirs = self._versions.get(message.API_KEY)
        if theirs is None:
            raise NoCommonVersion(f"the broker does not offer {message.__name__}")
        highest = min(theirs[-1], message.VERSIONS[-1])
        if highest not in theirs or highest not in message.VERSIONS:
            raise NoCommonVersion(
                f"the broker offers {message.__name__} in versions {theirs[0]} to {theirs[-1]}, "
                f"this client speaks {message.VERSIONS[0]} to {message.VERSIONS[-1]}"
            )
        return highest

    def submit(self, message: Request[Response], version: int, token: T) -> None:
        """Queue a request.

        Raises:
            TooManyRequests: the queue is full.
            UnencodableMessage, UnsupportedVersion: see `codec.encode`.
        """
        if len(self._queued) >= self._queued_max:
            raise TooManyRequests(f"{self._queued_max} requests are queued already")
        correlation_id = self._next_correlation_id
        buffers = encode_request(message, version, correlation_id, self._client_id)
        answered = not (isinstance(message, ProduceRequest) and message.acks == 0)
        self._next_correlation_id = (correlation_id + 1) % _CORRELATION_IDS
        response = response_type(message.API_KEY) if answered else None
        self._queued.append(_Submitted(token, correlation_id, response, version, buffers))

    @property
    def is_idle(self) -> bool:
        """True if no request waits for anything."""
        return not (self._queued or self._outstanding)

    def pause(self) -> None:
        """Hold requests back: the transport's buffer is full."""
        self._paused = True

    def resume(self) -> None:
        """Send requests again: the transport has room."""
        self._paused = False

    def outgoing(self) -> Outgoing[T]:
        """The requests that may be written now. They count as sent."""
        going = Outgoing[T]([], [])
        if self._paused:
            return going
        while self._queued and len(self._outstanding) < self._outstanding_max:
            submitted = self._queued.popleft()
            going.buffers.extend(submitted.buffers)
            if submitted.response_type is None:
                going.unanswered.append(submitted.token)
            else:
                # The transport owns the buffers now, and they may be large.
                submitted.buffers.clear()
                self._outstanding.append(submitted)
        return going

    def receive(self, frame: memoryview) -> Answer[T]:
        """The response in a frame, which answers the oldest outstanding request.

        Raises:
            MalformedMessage: the frame does not decode or answers another request. The caller must
                close the connection.
        """
        correlation_id = decode_correlation_id(frame)
        if not self._outstanding:
            raise MalformedMessage(f"response {correlation_id} comes without a request")
        asked = self._outstanding[0]
        if correlation_id != asked.correlation_id:
            raise MalformedMessage(
                f"response {correlation_id} comes where {asked.correlation_id} is due"
            )
        assert asked.response_type is not None
        position = response_body_position(frame, asked.response_type, asked.version)
        version = asked.version
        if asked.response_type is ApiVersionsResponse and _is_version_refusal(frame, position):
            version = 0
        response = decode(asked.response_type, frame, version, position)
        self._outstanding.popleft()
        return Answer(asked.token, response)

    def withdraw(self, token: T) -> RequestOutcome:
        """Drop a queued request, or tell that a sent one's outcome is unknown."""
        for submitted in self._queued:
            if submitted.token is token:
                self._queued.remove(submitted)
                return RequestOutcome.NOT_APPLIED
        return RequestOutcome.UNKNOWN

    def end(self) -> list[tuple[T, RequestOutcome]]:
        """End the connection; returns the tokens and outcomes of unanswered requests."""
        ended = [(submitted.token, RequestOutcome.UNKNOWN) for submitted in self._outstanding]
        ended += [(submitted.token, RequestOutcome.NOT_APPLIED) for submitted in self._queued]
        self._outstanding.clear()
        self._queued.clear()
        return ended


def _is_version_refusal(frame: memoryview, position: int) -> bool:
    """True if an ApiVersions response refuses the version; such a response has version 0.

    All versions begin with the error code (KIP-511).
    """
    code = int.from_bytes(frame[position : position + 2], "big", signed=True)
    return code == ErrorCode.UNSUPPORTED_VERSION
