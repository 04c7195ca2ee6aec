"""Listening and connecting: asyncio's transports in production, simulated ones in tests."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from typing import Protocol

from tidelog.tls_listener import HandshakeFactory, TlsListener

ProtocolFactory = Callable[[], asyncio.BaseProtocol]


class Listener(Protocol):
    """A listening socket."""

    @property
    def address(self) -> tuple[str, int]:
        """The host and the actual port."""
        ...

    async def accept(self) -> None:
        """Begin to accept connections; until then the listener refuses them."""
        ...

    async def close(self) -> None:
        """Stop accepting; established connections stay."""
        ...


class Network(Protocol):
    """The network functions of the shells, for asyncio protocols (BufferedProtocol)."""

    async def listen(
        self, factory: ProtocolFactory, host: str, port: int, *, accepting: bool = True
    ) -> Listener:
        """Bind the address; port 0 selects a free one. OSError if it is taken.

        Unless `accepting`, the listener refuses connections until its `accept`.
        """
        ...

    async def listen_tls(self, factory: HandshakeFactory, host: str, port: int) -> Listener:
        """Bind the address, for connections that begin with a TLS handshake.

        The listener refuses connections until its `accept`. OSError if the address is taken.
        """
        ...

    async def connect(
        self, factory: ProtocolFactory, host: str, port: int, *, tls: ssl.SSLContext | None = None
    ) -> asyncio.Transport:
        """Connect, and return after the protocol's connection_made. OSError if refused.

        `tls`: shake hands first; OSError if that fails.
        """
        ...


class _SocketListener:
    def __init__(self, server: asyncio.Server) -> None:
        self._server = server

    @property
    def address(self) -> tuple[str, int]:
        host, port = self._server.sockets[0].getsockname()[:2]
        return host, port

    async def accept(self) -> None:
        await self._server.start_serving()

    async def close(self) -> None:
        self._server.close()


class SocketNetwork:
    """TCP sockets of the running event loop."""

    async def listen(
        self, factory: ProtocolFactory, host: str, port: int, *, accepting: bool = True
    ) -> Listener:
        server = await asyncio.get_running_loop().create_server(
            factory, host, port, backlog=1024, start_serving=accepting
        )
        return _SocketListener(server)

    async def listen_tls(self, factory: HandshakeFactory, host: str, port: int) -> Listener:
        return await TlsListener.bind(factory, host, port)

    async def connect(
        self, factory: ProtocolFactory, host: str, port: int, *, tls: ssl.SSLContext | None = None
    ) -> asyncio.Transport:
        loop = asyncio.get_running_loop()
        transport, _ = await loop.create_connection(factory, host, port, ssl=tls)
        return transport
