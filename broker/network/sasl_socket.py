"""A connection until its client has authenticated by SASL.

Only ApiVersions, SaslHandshake and SaslAuthenticate are decoded, one after the other, in small
frames. The whole has a deadline. Then the transport goes to the protocol that serves the client.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol, cast

from tidelog.broker.authentication.attempt import Established, LoginAttempt, SaslTerms
from tidelog.broker.fairness.connection_limits import Idleness
from tidelog.broker.handlers.cluster.versions import answer_api_versions, refuse_api_versions
from tidelog.broker.network.pending_connections import PendingConnections
from tidelog.broker.network.tls_handshake import TlsHandshake
from tidelog.clock import Clock
from tidelog.errors import TidelogError
from tidelog.protocol.api import ADVERTISED, ApiKey, request_type
from tidelog.protocol.codec import decode
from tidelog.protocol.error_codes import ErrorCode
from tidelog.protocol.errors import MalformedMessage, UnknownApi
from tidelog.protocol.frames import FrameReader
from tidelog.protocol.headers import decode_request_header, encode_response
from tidelog.protocol.message import Request, Response
from tidelog.protocol.schemas.cluster.api_versions import ApiVersion, ApiVersionsRequest
from tidelog.protocol.schemas.security.sasl import (
    SaslAuthenticateRequest,
    SaslHandshakeRequest,
)
from tidelog.protocol.wire import Buffer

FAILED: Final = "authentication_failed"
LATE: Final = "authentication_late"
ILLEGAL: Final = "illegal_sasl_state"
UNAVAILABLE: Final = "credentials_unavailable"
FRAMES_MAX: Final = 8
"""Requests that may arrive at once; a client waits for each answer."""
READ_BYTES_MAX: Final = 4096
_DECODED: Final = frozenset({ApiKey.API_VERSIONS, ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE})
_SASL_HEADERS_FROM: Final = 1
"""The version of SaslHandshake after which SaslAuthenticate carries the mechanism's messages."""

Successor = Callable[[Established], asyncio.BufferedProtocol]


class AuthenticationHost(PendingConnections, Protocol):
    """The server, as this socket uses it."""

    @property
    def advertised(self) -> Sequence[ApiVersion]:
        """The APIs that ApiVersions lists."""
        ...


class _Ended(Exception):
    """The connection has to be closed. `reason` is for the metrics."""

    def __init__(self, reason: str, why: str) -> None:
        super().__init__(why)
        self.reason = reason


class SaslSocket(asyncio.BufferedProtocol):
    """The protocol of a connection at a listener with SASL."""

    def __init__(
        self,
        host: AuthenticationHost,
        terms: SaslTerms,
        frames: FrameReader,
        seconds_max: float,
        clock: Clock,
        successor: Successor,
        handshake: TlsHandshake | None = None,
    ) -> None:
        """`successor` makes the protocol that serves the client. `handshake`: the one of TLS."""
        self._host = host
        self._terms = terms
        self._frames = frames
        self._seconds_max = seconds_max
        self._arrived = clock.monotonic()
        self._successor = successor
        self._handshake = handshake
        self._transport: asyncio.Transport | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self._waiting: deque[memoryview] = deque()
        self._work: asyncio.Task[None] | None = None
        self._attempt: LoginAttempt | None = None
        self._raw = False
        """Whether frames hold the mechanism's messages alone, after SaslHandshake version 0."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Wait for the client, or abort the connection if a limit forbids it."""
        opened = cast(asyncio.Transport, transport)
        if self._handshake is not None:
            self._handshake.done()
        peer = transport.get_extra_info("peername")
        host = str(peer[0]) if peer else ""
        if not self._host.arrived(self, host, is_new=self._handshake is None):
            opened.abort()
            return
        self._transport = opened
        self._deadline = asyncio.get_running_loop().call_later(
            self._seconds_max,
            self.evict,
            LATE,
            f"the client has not authenticated within {self._seconds_max:g} s",
        )

    def get_buffer(self, sizehint: int) -> memoryview:
        """The buffer of the next read."""
        return self._frames.get_buffer(READ_BYTES_MAX)

    def buffer_updated(self, nbytes: int) -> None:
        """Take the received bytes; answer requests one after the other."""
        if self._transport is None:
            return
        try:
            self._waiting += self._frames.buffer_updated(nbytes)
        except MalformedMessage as error:
            self._end("malformed", str(error))
            return
        if len(self._waiting) > FRAMES_MAX:
            self._end("malformed", "the client does not wait for answers")
        elif self._waiting and self._work is None:
            # At once: what follows the last message has to wait for memory, as all requests.
            self._transport.pause_reading()
            self._work = asyncio.create_task(self._answer_all())

    def eof_received(self) -> bool:
        """The client has left."""
        self._end("left", "the client left before it had authenticated")
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """The client has left."""
        self._end("left", "the client left before it had authenticated")

    def evict(self, reason: str, why: str) -> None:
        """Close the connection at once."""
        self._end(reason, why)

    def idleness(self) -> Idleness | None:
        """The connection's age; None when it has ended."""
        if self._transport is None:
            return None
        return Idleness(is_established=False, active=self._arrived)

    async def _answer_all(self) -> None:
        """Answer the received requests. The socket reads nothing meanwhile."""
        transport = self._transport
        assert transport is not None
        try:
            while self._waiting:
                established = await self._answer(transport, self._waiting.popleft())
                if established is not None:
                    self._hand_over(transport, established)
                    return
            if not transport.is_closing():
                transport.resume_reading()
        except _Ended as ended:
            self._end(ended.reason, str(ended), politely=True)
        except TidelogError as error:
            # The store does not tell the credentials: the client may try again.
            self._end(UNAVAILABLE, str(error))
        finally:
            self._work = None

    async def _answer(self, transport: asyncio.Transport, frame: memoryview) -> Established | None:
        if self._raw:
            return await self._answer_raw(transport, frame)
        try:
            key, version, correlation_id, _, position = decode_request_header(frame)
        except (MalformedMessage, UnknownApi) as error:
            raise _Ended("malformed", str(error)) from None

        def send(response: Response, version: int) -> None:
            transport.writelines(encode_response(response, version, correlation_id))

        if key not in _DECODED:
            raise _Ended(ILLEGAL, f"request {key} came before the client had authenticated")
        lowest, highest = ADVERTISED[ApiKey(key)]
        if not lowest <= version <= highest:
            if key != ApiKey.API_VERSIONS:
                raise _Ended("unsupported_version", f"request {key} of version {version}")
            send(refuse_api_versions(self._host.advertised), 0)
            return None
        try:
            message: Request[Any] = decode(request_type(key), frame, version, position)
        except MalformedMessage as error:
            raise _Ended("malformed", str(error)) from None
        if isinstance(message, ApiVersionsRequest):
            send(answer_api_versions(self._host.advertised, message, version), version)
            return None
        if isinstance(message, SaslHandshakeRequest):
            self._begin(message, version, send)
            return None
        assert isinstance(message, SaslAuthenticateRequest)
        return await self._step(bytes(message.auth_bytes), lambda answer: send(answer, version))

    def _begin(
        self,
        message: SaslHandshakeRequest,
        version: int,
        send: Callable[[Response, int], None],
    ) -> None:
        if self._attempt is not None:
            raise _Ended(ILLEGAL, "a second SaslHandshake came within an authentication")
        answer = self._terms.handshake(message.mechanism)
        send(answer, version)
        if answer.error_code != ErrorCode.NONE:
            raise _Ended(FAILED, f"mechanism {message.mechanism[:64]!r} is not enabled")
        self._attempt = LoginAttempt(self._terms, message.mechanism)
        self._raw = version < _SASL_HEADERS_FROM

    async def _step(self, token: bytes, send: Callable[[Response], None]) -> Established | None:
        if self._attempt is None:
            raise _Ended(ILLEGAL, "SaslAuthenticate came before SaslHandshake")
        outcome = await self._attempt.step(token)
        send(outcome.response)
        if outcome.failed:
            raise _Ended(FAILED, outcome.why)
        return outcome.established

    async def _answer_raw(
        self, transport: asyncio.Transport, frame: memoryview
    ) -> Established | None:
        """The mechanism's messages without Kafka's headers. A failure has no answer."""
        assert self._attempt is not None
        outcome = await self._attempt.step(bytes(frame))
        if outcome.failed:
            raise _Ended(FAILED, outcome.why)
        message = outcome.response.auth_bytes
        answer: list[Buffer] = [len(message).to_bytes(4, "big"), message]
        transport.writelines(answer)
        return outcome.established

    def _hand_over(self, transport: asyncio.Transport, established: Established) -> None:
        """Give the transport to the protocol that serves the client."""
        if self._transport is None:
            return
        rest = b"".join(len(each).to_bytes(4, "big") + each for each in self._waiting)
        rest += self._frames.incomplete
        self._release()
        self._host.passed(self)
        protocol = self._successor(established)
        transport.set_protocol(protocol)
        protocol.connection_made(transport)
        if not transport.is_closing():
            transport.resume_reading()
            _feed(protocol, memoryview(rest))

    def _end(self, reason: str, why: str, *, politely: bool = False) -> None:
        """Close the connection; `politely` sends written answers first."""
        transport = self._transport
        if transport is None:
            return
        self._release()
        self._host.failed(self, reason, why)
        if politely:
            transport.close()
        else:
            transport.abort()
        if self._work is not None and self._work is not asyncio.current_task():
            self._work.cancel()

    def _release(self) -> None:
        self._transport = None
        if self._deadline is not None:
            self._deadline.cancel()


def _feed(protocol: asyncio.BufferedProtocol, data: memoryview) -> None:
    """Let a protocol read these bytes as if they had just arrived."""
    while len(data):
        buffer = memoryview(protocol.get_buffer(len(data)))
        size = min(len(buffer), len(data))
        buffer[:size] = data[:size]
        protocol.buffer_updated(size)
        data = data[size:]
