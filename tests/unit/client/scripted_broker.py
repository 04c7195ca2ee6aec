"""A broker that answers by a script, through the production codec, on any Network."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeAlias, cast

from tidelog.network import Listener, Network
from tidelog.protocol.api import ADVERTISED, request_type
from tidelog.protocol.codec import decode
from tidelog.protocol.frames import FrameReader, new_scratch
from tidelog.protocol.headers import RequestHeader, decode_request_header, encode_response
from tidelog.protocol.message import Request, Response
from tidelog.protocol.schemas.cluster.api_versions import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
)
from tidelog.protocol.wire import Buffer

Answer: TypeAlias = Response | bytes | None
"""A response, raw bytes to be sent as they are, or no answer."""
Handler: TypeAlias = Callable[[Any], Answer]


class ScriptedBroker:
    """Answers each request type by a function; holds answers back while `holding`."""

    def __init__(self) -> None:
        self.versions: dict[int, tuple[int, int]] = {
            int(key): versions for key, versions in ADVERTISED.items()
        }
        self.requests: list[Request[Response]] = []
        self.headers: list[RequestHeader] = []
        self.holding = False
        self.connections: list[BrokerProtocol] = []
        self.address: tuple[str, int] = ("", 0)
        self._handlers: dict[type[Request[Response]], Handler] = {ApiVersionsRequest: self._agree}
        self._listener: Listener | None = None

    def on(self, request: type[Any], handler: Handler) -> None:
        """Answer requests of a type by `handler(request)`."""
        self._handlers[request] = handler

    async def listen(self, network: Network, host: str = "127.0.0.1", port: int = 0) -> None:
        """Begin to serve."""
        self._listener = await network.listen(self._connected, host, port)
        self.address = self._listener.address

    async def stop(self) -> None:
        """Close the listener and all connections."""
        if self._listener is not None:
            await self._listener.close()
        for connection in self.connections:
            connection.transport.abort()

    def release(self) -> None:
        """Send the answers that were held back."""
        self.holding = False
        for connection in self.connections:
            connection.flush()

    def seen(self, request: type[Any]) -> list[Any]:
        """The requests of a type, in order of arrival."""
        return [one for one in self.requests if isinstance(one, request)]

    def handle(self, frame: memoryview) -> list[Buffer]:
        """The answer to one frame."""
        header = decode_request_header(frame)
        if header.api_version > self.versions.get(header.api_key, (0, 99))[1]:
            assert header.api_key == ApiVersionsRequest.API_KEY, "version is not offered"
            refusal = cast(ApiVersionsResponse, self._agree(None))
            refusal.error_code = 35
            return encode_response(refusal, 0, header.correlation_id)
        kind = request_type(header.api_key)
        request = decode(kind, frame, header.api_version, header.body_position)
        self.requests.append(request)
        self.headers.append(header)
        answer = self._handlers[kind](request)
        if answer is None:
            return []
        if isinstance(answer, bytes):
            return [answer]
        return encode_response(answer, header.api_version, header.correlation_id)

    def _connected(self) -> BrokerProtocol:
        connection = BrokerProtocol(self)
        self.connections.append(connection)
        return connection

    def _agree(self, request: ApiVersionsRequest | None) -> Answer:
        keys = [
            ApiVersion(api_key=key, min_version=lowest, max_version=highest)
            for key, (lowest, highest) in self.versions.items()
        ]
        return ApiVersionsResponse(api_keys=keys)


class BrokerProtocol(asyncio.BufferedProtocol):
    """One connection of a ScriptedBroker."""

    transport: asyncio.Transport

    def __init__(self, broker: ScriptedBroker) -> None:
        self._broker = broker
        self._frames = FrameReader(100_000_000, "limit of the test", new_scratch())
        self._held: list[Buffer] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._frames.get_buffer()

    def buffer_updated(self, nbytes: int) -> None:
        for frame in self._frames.buffer_updated(nbytes):
            self._held += self._broker.handle(frame)
        if not self._broker.holding:
            self.flush()

    def flush(self) -> None:
        """Send the bytes that are held back."""
        self.transport.writelines(self._held)
        self._held = []

    def eof_received(self) -> bool:
        return False
