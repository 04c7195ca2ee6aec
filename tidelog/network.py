"""Listening and connecting: asyncio's transports in production, simulated ones in tests."""

from __future__ import annotations

import asyncio
import socket
import ssl
from typing import Protocol

from tidelog.socket_listener import (
    AcceptDelay,
    HandshakeFactory,
    ProtocolFactory,
    SocketListener,
    no_delay,
)


class Listener(Protocol):
    """A listening socket."""

    @property
    def address(self) -> tuple[str, int]:
        """The host and the actual port."""
        ...

    async def accept(self, delay: AcceptDelay = no_delay) -> None:
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


class SocketNetwork:
    """TCP sockets of the running event loop."""

    async def listen(
        self, factory: ProtocolFactory, host: str, port: int, *, accepting: bool = True
    ) -> Listener:
        listener = await SocketListener.bind_plain(factory, host, port)
        if accepting:
            await listener.accept()
        return listener

    async def listen_tls(self, factory: HandshakeFactory, host: str, port: int) -> Listener:
        return await SocketListener.bind_tls(factory, host, port)

    async def connect(
        self, factory: ProtocolFactory, host: str, port: int, *, tls: ssl.SSLContext | None = None
    ) -> asyncio.Transport:
        loop = asyncio.get_running_loop()
        try:
            transport, _ = await loop.create_connection(factory, host, port, ssl=tls)
        except UnicodeError as error:
            # Python asks no resolver for such a name: a label is empty or too long, for example.
            raise socket.gaierror(socket.EAI_NONAME, f"{host!r} is no host name") from error
        return transport
