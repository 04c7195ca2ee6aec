"""One connection to a broker as a pure state machine: no sockets, no futures, no clock.

Requests are encoded when they are submitted, wait in a queue, and go out while there is room for
another outstanding one. The broker answers in the order in which it was asked.
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
from tidelog.protocol.schemas.api_versions import ApiVersionsResponse
from tidelog.protocol.schemas.produce import ProduceRequest
from tidelog.protocol.wire import Buffer

T = TypeVar("T")

_CORRELATION_IDS = 2**31


class Outgoing(NamedTuple, Generic[T]):
    """What is to be written now, and the tokens of requests in it that get no answer."""

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
    """None where no answer comes: Produce with acks 0."""
    version: int
    buffers: list[Buffer]


class ClientConnection(Generic[T]):
    """Requests and answers of one connection. A token of the caller's stands for each request."""

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
        """The versions that the broker has of each API."""
        self._versions = dict(advertised)

    def highest_common_version(self, message: type[Request[Response]]) -> int:
        """The version to send a message in. Tidelog's own requests are not advertised.

        Raises:
            NoCommonVersion: there is none.
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

    def pause(self) -> None:
        """The transport takes no more."""
        self._paused = True

    def resume(self) -> None:
        """The transport takes more."""
        self._paused = False

    def outgoing(self) -> Outgoing[T]:
        """What may be written now. It counts as sent."""
        going = Outgoing[T]([], [])
        if self._paused:
            return going
        while self._queued and len(self._outstanding) < self._outstanding_max:
            submitted = self._queued.popleft()
            going.buffers.extend(submitted.buffers)
            if submitted.response_type is None:
                going.unanswered.append(submitted.token)
            else:
                # The buffers belong to the transport now, and may be large.
                submitted.buffers.clear()
                self._outstanding.append(submitted)
        return going

    def receive(self, frame: memoryview) -> Answer[T]:
        """The answer in a frame, which belongs to the oldest outstanding request.

        Raises:
            MalformedMessage: it cannot be read, or belongs to another request. The connection has
                to be closed.
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
        """Nobody waits for the answer any more. A request that is still queued is not sent."""
        for submitted in self._queued:
            if submitted.token is token:
                self._queued.remove(submitted)
                return RequestOutcome.NOT_APPLIED
        return RequestOutcome.UNKNOWN

    def end(self) -> list[tuple[T, RequestOutcome]]:
        """The connection is gone: the tokens of all requests without an answer."""
        ended = [(submitted.token, RequestOutcome.UNKNOWN) for submitted in self._outstanding]
        ended += [(submitted.token, RequestOutcome.NOT_APPLIED) for submitted in self._queued]
        self._outstanding.clear()
        self._queued.clear()
        return ended


def _is_version_refusal(frame: memoryview, position: int) -> bool:
    """Whether an ApiVersions response says that its version is unknown: it is then version 0, and
    all versions begin with the error code (KIP-511)."""
    code = int.from_bytes(frame[position : position + 2], "big", signed=True)
    return code == ErrorCode.UNSUPPORTED_VERSION
