"""One connection to a broker on an event loop: awaits requests, exchanges frames."""

from __future__ import annotations

import asyncio
from typing import Final, TypeVar, cast

import tidelog
from tidelog.client.connection import ClientConnection
from tidelog.client.errors import RequestFailed, RequestOutcome, RequestRefused
from tidelog.client.security import ClientSecurity, SaslMessages
from tidelog.client.settings import ClientSettings
from tidelog.errors import TidelogError
from tidelog.network import Network
from tidelog.protocol.api import ApiKey
from tidelog.protocol.error_codes import ErrorCode
from tidelog.protocol.errors import MalformedMessage
from tidelog.protocol.frames import FrameReader
from tidelog.protocol.message import Request, Response
from tidelog.protocol.schemas.cluster.api_versions import ApiVersionsRequest, ApiVersionsResponse
from tidelog.protocol.schemas.security.sasl import SaslAuthenticateRequest, SaslHandshakeRequest

R = TypeVar("R", bound=Response)

RENEWED_AT: Final = 0.85
"""The part of an authentication's time after which the client renews it."""
Address = tuple[str, int]
"""Host and port."""


class BrokerConnection(asyncio.BufferedProtocol):
    """A connection that has agreed on versions with its broker. `open` creates it.

    Responses come in request order: a waiting fetch blocks later requests. A caller that waits
    needs a connection, and a client, of its own.
    """

    api_versions: ApiVersionsResponse
    """The broker's versions and features."""

    def __init__(self, address: Address, settings: ClientSettings, scratch: memoryview) -> None:
        self.address = address
        self._settings = settings
        self._machine: ClientConnection[asyncio.Future[Response | None]] = ClientConnection(
            settings.client_id, settings.outstanding_max, settings.queued_max
        )
        self._frames = FrameReader(settings.response_bytes_max, "response_bytes_max", scratch)
        self._transport: asyncio.Transport | None = None
        self._agreed = False
        self._renewing: asyncio.Task[None] | None = None
        self._is_retired = False
        self._broken: str | None = None
        self._lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @classmethod
    async def open(
        cls, network: Network, address: Address, settings: ClientSettings, scratch: memoryview
    ) -> BrokerConnection:
        """Connect and agree on versions; the connections of a loop may share `scratch`.

        Raises:
            RequestFailed: the broker does not answer.
            RequestRefused: the broker refuses to list its versions.
        """
        connection = cls(address, settings, scratch)
        try:
            async with asyncio.timeout(settings.connect_timeout_ms / 1000):
                security = settings.security
                tls = None
                if security is not None and security.tls is not None:
                    tls = security.tls()
                await network.connect(lambda: connection, *address, tls=tls)
                await connection._agree()
                if security is not None and security.protocol.uses_sasl:
                    await connection._authenticate(security)
                connection._agreed = True
        except TimeoutError:
            why = f"no connection within {settings.connect_timeout_ms} ms"
            raise connection._failure("connecting", RequestOutcome.NOT_APPLIED, why) from None
        except OSError as error:
            raise connection._failure(
                "connecting", RequestOutcome.NOT_APPLIED, str(error)
            ) from error
        except RequestFailed as error:
            # The caller's own request was not sent, whatever happened to ApiVersions.
            raise connection._failure(
                "connecting", RequestOutcome.NOT_APPLIED, error.why
            ) from error
        finally:
            if not connection._agreed:
                connection.abort("versions were not agreed upon")
        return connection

    @property
    def is_open(self) -> bool:
        """True if the connection may take more requests."""
        return self._broken is None and not self._is_retired

    def version_of(self, message: type[Request[Response]]) -> int:
        """The default version in which to send a message.

        Raises:
            NoCommonVersion: broker and client share no version.
        """
        return self._machine.highest_common_version(message)

    async def request(
        self, message: Request[R], version: int | None = None, timeout_ms: int | None = None
    ) -> R:
        """Send a request and wait for its response.

        Raises:
            RequestFailed: no answer; `outcome` tells whether the request was sent.
            NoCommonVersion, TooManyRequests, UnencodableMessage: the request was not sent.
        """
        response = await self._exchange(message, version, timeout_ms)
        if response is None:
            raise TypeError(f"{type(message).__name__} gets no answer: use send")
        return cast(R, response)

    async def send(
        self,
        message: Request[Response],
        version: int | None = None,
        timeout_ms: int | None = None,
    ) -> None:
        """Send a request without a response (Produce with acks 0).

        Raises:
            RequestFailed: the network did not take the request.
            NoCommonVersion, TooManyRequests, UnencodableMessage: the request was not sent.
        """
        await self._exchange(message, version, timeout_ms)

    async def close(self) -> None:
        """Close the connection. Unanswered requests fail."""
        self._break("the client closed the connection")
        if self._transport is None:
            return
        self._transport.close()
        # Bytes already written are still sent, within a time limit.
        await asyncio.wait({self._lost}, timeout=self._settings.connect_timeout_ms / 1000)
        self._transport.abort()

    async def lost(self) -> None:
        """Wait until the connection has ended, by either side."""
        await asyncio.shield(self._lost)

    def abort(self, why: str) -> None:
        """Close at once, without sending unwritten bytes."""
        self._break(why)
        if self._transport is not None:
            self._transport.abort()

    async def _agree(self) -> None:
        """Request the broker's versions; retry in one that the broker names."""
        request = ApiVersionsRequest(
            client_software_name="tidelog", client_software_version=tidelog.__version__
        )
        answer = await self.request(request, request.VERSIONS[-1])
        if answer.error_code == ErrorCode.UNSUPPORTED_VERSION:
            offered = {key.api_key: key.max_version for key in answer.api_keys}
            highest = min(offered.get(ApiKey.API_VERSIONS, 0), request.VERSIONS[-1])
            answer = await self.request(request, max(highest, 0))
        if answer.error_code != ErrorCode.NONE:
            raise RequestRefused(f"ApiVersions of {address_text(self.address)}", answer.error_code)
        self._machine.learn_versions(
            {key.api_key: range(key.min_version, key.max_version + 1) for key in answer.api_keys}
        )
        self.api_versions = answer

    async def _authenticate(self, security: ClientSecurity) -> None:
        """Authenticate, and again before the authentication ends (KIP-368)."""
        where = f"authentication with {address_text(self.address)}"
        begun = await self.request(SaslHandshakeRequest(mechanism=security.mechanism), 1)
        if begun.error_code != ErrorCode.NONE:
            offered = f"the broker offers {', '.join(begun.mechanisms) or 'no mechanism'}"
            raise RequestRefused(where, begun.error_code, offered)
        messages = SaslMessages(security)
        received = b""
        lifetime_ms = 0
        while (message := _next(messages, received, where)) is not None:
            answer = await self.request(SaslAuthenticateRequest(auth_bytes=message))
            if answer.error_code != ErrorCode.NONE:
                raise RequestRefused(where, answer.error_code, answer.error_message)
            received, lifetime_ms = bytes(answer.auth_bytes), answer.session_lifetime_ms
        if lifetime_ms > 0:
            asyncio.get_running_loop().call_later(
                lifetime_ms / 1000 * RENEWED_AT, self._renew, security, messages.username
            )

    def _renew(self, security: ClientSecurity, username: str) -> None:
        if self._broken is None:
            self._renewing = asyncio.create_task(self._renew_or_end(security, username))

    async def _renew_or_end(self, security: ClientSecurity, username: str) -> None:
        try:
            if security.login is not None and security.login().username != username:
                # A renewal must have the same principal: another connection gets the new login.
                self._is_retired = True
                self._end_if_retired()
            else:
                await self._authenticate(security)
        except TidelogError as error:
            self.abort(f"the authentication could not be renewed: {error}")

    def _end_if_retired(self) -> None:
        """Close a retired connection once all of its requests are answered."""
        if self._is_retired and self._machine.is_idle and self._transport is not None:
            self._break("the client's login has changed")
            self._transport.close()

    async def _exchange(
        self, message: Request[R], version: int | None, timeout_ms: int | None
    ) -> Response | None:
        if self._broken is not None:
            raise self._failure(type(message).__name__, RequestOutcome.NOT_APPLIED, self._broken)
        request = cast("Request[Response]", message)
        if version is None:
            version = self.version_of(type(request))
        if timeout_ms is None:
            timeout_ms = self._settings.request_timeout_ms
        future: asyncio.Future[Response | None] = asyncio.get_running_loop().create_future()
        self._machine.submit(request, version, future)
        self._flush()
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                return await future
        except TimeoutError:
            outcome = self._machine.withdraw(future)
            why = f"no answer within {timeout_ms} ms"
            if outcome is RequestOutcome.UNKNOWN:
                self.abort(why)
            raise self._failure(type(message).__name__, outcome, why) from None
        except asyncio.CancelledError:
            self._machine.withdraw(future)
            raise
        except _Ended as ended:
            raise self._failure(type(message).__name__, ended.outcome, ended.why) from None

    def _failure(self, request: str, outcome: RequestOutcome, why: str) -> RequestFailed:
        return RequestFailed(request, address_text(self.address), outcome, why)

    def _flush(self) -> None:
        """Write the requests that may go out."""
        if self._transport is None or self._broken is not None:
            return
        going = self._machine.outgoing()
        if going.buffers:
            self._transport.writelines(going.buffers)
        for future in going.unanswered:
            if not future.done():
                future.set_result(None)

    def _break(self, why: str) -> None:
        """Fail all unanswered requests."""
        if self._broken is not None:
            return
        self._broken = why
        for future, outcome in self._machine.end():
            if not future.done():
                future.set_exception(_Ended(outcome, why))

    # --- asyncio.BufferedProtocol ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._frames.get_buffer()

    def buffer_updated(self, nbytes: int) -> None:
        if self._broken is not None:
            return
        try:
            for frame in self._frames.buffer_updated(nbytes):
                answer = self._machine.receive(frame)
                if not answer.token.done():
                    answer.token.set_result(answer.response)
        except MalformedMessage as error:
            self.abort(f"the broker sent a malformed response: {error}")
            return
        self._flush()
        self._end_if_retired()

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        self._machine.pause()

    def resume_writing(self) -> None:
        self._machine.resume()
        self._flush()

    def connection_lost(self, exc: Exception | None) -> None:
        self._break(f"the connection was lost: {exc}" if exc else "the broker closed it")
        if not self._lost.done():
            self._lost.set_result(None)


def _next(messages: SaslMessages, received: bytes, where: str) -> bytes | None:
    try:
        return messages.next(received)
    except ValueError as error:
        raise RequestRefused(where, ErrorCode.SASL_AUTHENTICATION_FAILED, str(error)) from None


class _Ended(Exception):
    """Carries the end of a connection to the waiting requests."""

    def __init__(self, outcome: RequestOutcome, why: str) -> None:
        super().__init__(why)
        self.outcome = outcome
        self.why = why


def address_text(address: Address) -> str:
    return f"{address[0]}:{address[1]}"
