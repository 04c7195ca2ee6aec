"""A listener that accepts its connections one by one.

The event loop's servers accept whatever waits, and tell nothing of connections that shake hands.
This listener accepts the sockets itself. So its owner can delay accepting, and count, limit and end
TLS handshakes.
"""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from itertools import count
from typing import Final, Protocol

BACKLOG: Final = 1024
GOODBYE_SECONDS: Final = 5.0
"""How long a connection waits for the other side's end of TLS."""
_ACCEPT_PAUSE_SECONDS: Final = 0.5
"""The pause after a failed accept, for example without a free file descriptor."""
ACCEPTED_AT_ONCE: Final = 16
"""Connections that are accepted before other callbacks of the loop run."""
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
ProtocolFactory = Callable[[], asyncio.BaseProtocol]
AcceptDelay = Callable[[], float]
"""Counts an accepted connection; returns the seconds until it begins. The next one waits so long
in the system's queue."""


def no_delay() -> float:
    """Accept at once."""
    return 0.0


class SocketListener:
    """See tidelog.network.Listener."""

    def __init__(self, sockets: list[socket.socket], begin: _Begin) -> None:
        self._sockets = sockets
        self._begin = begin
        self._accepting: list[asyncio.Task[None]] = []
        self._beginning: set[asyncio.Task[None]] = set()

    @classmethod
    async def bind_plain(cls, factory: ProtocolFactory, host: str, port: int) -> SocketListener:
        """Take the address, for connections without TLS. OSError if it is taken."""
        return await cls._bind(partial(_begin_plain, factory), host, port)

    @classmethod
    async def bind_tls(cls, factory: HandshakeFactory, host: str, port: int) -> SocketListener:
        """Take the address, for connections that begin with a handshake. OSError if it is taken."""
        return await cls._bind(partial(_begin_tls, factory), host, port)

    @classmethod
    async def _bind(cls, begin: _Begin, host: str, port: int) -> SocketListener:
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
        return cls(sockets, begin)

    @property
    def address(self) -> tuple[str, int]:
        """The host and the actual port."""
        host, port = self._sockets[0].getsockname()[:2]
        return host, port

    async def accept(self, delay: AcceptDelay = no_delay) -> None:
        """Begin to accept connections. OSError if another process listens there by now."""
        for one in self._sockets:
            one.listen(BACKLOG)
        self._accepting = [
            asyncio.create_task(self._accept_all(one, delay)) for one in self._sockets
        ]

    async def close(self) -> None:
        """Stop accepting. Handshakes go on; their owner ends them. May be called again."""
        for task in self._accepting:
            task.cancel()
        await asyncio.gather(*self._accepting, return_exceptions=True)
        for one in self._sockets:
            one.close()

    async def _accept_all(self, listening: socket.socket, delay: AcceptDelay) -> None:
        for number in count(1):
            if number % ACCEPTED_AT_ONCE == 0:
                await _pause(0)
            try:
                connection, peer = listening.accept()
            except BlockingIOError:
                await _readable(listening)
                continue
            except OSError as error:
                if error.errno not in _GONE:
                    await _pause(_ACCEPT_PAUSE_SECONDS)
                continue
            connection.setblocking(False)
            try:
                if seconds := delay():
                    await _pause(seconds)
            except asyncio.CancelledError:
                connection.close()
                raise
            task = self._begin(connection, str(peer[0]))
            if task is None:
                connection.close()
                continue
            self._beginning.add(task)
            task.add_done_callback(partial(self._begun, connection))

    def _begun(self, connection: socket.socket, task: asyncio.Task[None]) -> None:
        self._beginning.discard(task)
        if task.cancelled():
            # Before the task's first step nothing else closes the socket.
            connection.close()


_Begin = Callable[[socket.socket, str], asyncio.Task[None] | None]
"""Begins the protocol of an accepted connection; None refuses it."""


def _begin_plain(
    factory: ProtocolFactory, connection: socket.socket, _: str
) -> asyncio.Task[None] | None:
    return asyncio.create_task(_connect(connection, factory))


async def _connect(connection: socket.socket, factory: ProtocolFactory) -> None:
    # A client that has left already is no error.
    with suppress(OSError):
        await asyncio.get_running_loop().connect_accepted_socket(factory, connection)


def _begin_tls(
    factory: HandshakeFactory, connection: socket.socket, host: str
) -> asyncio.Task[None] | None:
    handshake = factory(host)
    if handshake is None:
        return None
    task = asyncio.create_task(_shake_hands(connection, handshake))
    handshake.begun(partial(_end, task))
    return task


def _end(shaking: asyncio.Task[None]) -> None:
    shaking.cancel()


async def _shake_hands(connection: socket.socket, handshake: Handshake) -> None:
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


async def _readable(listening: socket.socket) -> None:
    """Wait until a connection waits.

    The loop's own `sock_accept` loses the connection that it has accepted if its task is cancelled
    in that moment.
    """
    loop = asyncio.get_running_loop()
    over: asyncio.Future[None] = loop.create_future()
    loop.add_reader(listening, _wake, over)
    try:
        await over
    finally:
        loop.remove_reader(listening)


def _wake(over: asyncio.Future[None]) -> None:
    if not over.done():
        over.set_result(None)


async def _pause(seconds: float) -> None:
    loop = asyncio.get_running_loop()
    over: asyncio.Future[None] = loop.create_future()
    loop.call_later(seconds, _wake, over)
    await over
