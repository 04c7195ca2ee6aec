"""A listener whose connections begin with a TLS handshake.

The event loop's servers tell nothing of connections that shake hands. This listener accepts the
sockets itself, so that its owner can count, limit and end them.
"""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
from collections.abc import Callable
from functools import partial
from typing import Final, Protocol

BACKLOG: Final = 1024
GOODBYE_SECONDS: Final = 5.0
"""How long a connection waits for the other side's end of TLS."""
_ACCEPT_PAUSE_SECONDS: Final = 0.5
"""The pause after a failed accept, for example without a free file descriptor."""
_GONE: Final = frozenset({errno.ECONNABORTED, errno.ECONNRESET, errno.EPROTO})


class Handshake(Protocol):
    """One connection until it is established, as its owner sees it."""

    @property
    def context(self) -> ssl.SSLContext:
        """The keys and certificates."""
        ...

    @property
    def seconds_max(self) -> float:
        """How long it may take."""
        ...

    def begun(self, end: Callable[[], None]) -> None:
        """The handshake has begun; `end` ends it and the connection."""
        ...

    def protocol(self) -> asyncio.BaseProtocol:
        """The protocol of the connection. It is connected when the handshake is done."""
        ...

    def failed(self, error: Exception) -> None:
        """The connection has ended, and its protocol was never connected."""
        ...


HandshakeFactory = Callable[[str], Handshake | None]
"""The handshake with a client of this host; None refuses the connection."""


class TlsListener:
    """See tidelog.network.Listener."""

    def __init__(self, sockets: list[socket.socket], factory: HandshakeFactory) -> None:
        self._sockets = sockets
        self._factory = factory
        self._accepting: list[asyncio.Task[None]] = []
        self._shaking: set[asyncio.Task[None]] = set()

    @classmethod
    async def bind(cls, factory: HandshakeFactory, host: str, port: int) -> TlsListener:
        """Take the address. OSError if it is taken."""
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        sockets: list[socket.socket] = []
        try:
            for family, kind, number, _, address in dict.fromkeys(found):
                one = socket.socket(family, kind, number)
                sockets.append(one)
                one.setblocking(False)
                one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6:
                    one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                one.bind(address)
        except OSError:
            for one in sockets:
                one.close()
            raise
        return cls(sockets, factory)

    @property
    def address(self) -> tuple[str, int]:
        """The host and the actual port."""
        host, port = self._sockets[0].getsockname()[:2]
        return host, port

    async def accept(self) -> None:
        """Begin to accept connections. OSError if another process listens there by now."""
        for one in self._sockets:
            one.listen(BACKLOG)
        self._accepting = [asyncio.create_task(self._accept_all(one)) for one in self._sockets]

    async def close(self) -> None:
        """Stop accepting. Handshakes go on; their owner ends them. May be called again."""
        for task in self._accepting:
            task.cancel()
        await asyncio.gather(*self._accepting, return_exceptions=True)
        for one in self._sockets:
            one.close()

    async def _accept_all(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, peer = await loop.sock_accept(listening)
            except OSError as error:
                if error.errno not in _GONE:
                    await _pause(_ACCEPT_PAUSE_SECONDS)
                continue
            handshake = self._factory(str(peer[0]))
            if handshake is None:
                connection.close()
                continue
            task = asyncio.create_task(_shake(connection, handshake))
            self._shaking.add(task)
            task.add_done_callback(self._shaking.discard)
            handshake.begun(partial(_end, task))


def _end(shaking: asyncio.Task[None]) -> None:
    shaking.cancel()


async def _shake(connection: socket.socket, handshake: Handshake) -> None:
    try:
        await asyncio.get_running_loop().connect_accepted_socket(
            handshake.protocol,
            connection,
            ssl=handshake.context,
            ssl_handshake_timeout=handshake.seconds_max,
            ssl_shutdown_timeout=GOODBYE_SECONDS,
        )
    except OSError as error:
        handshake.failed(error)
    except asyncio.CancelledError:
        # Before the task's first step nothing else closes the socket.
        connection.close()
        raise


async def _pause(seconds: float) -> None:
    loop = asyncio.get_running_loop()
    over: asyncio.Future[None] = loop.create_future()
    loop.call_later(seconds, over.set_result, None)
    await over
