"""A TCP proxy on loopback. A subclass decides how bytes are carried."""

from __future__ import annotations

import contextlib
import socket
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TypeAlias

Carry: TypeAlias = Callable[[socket.socket, socket.socket], None]
"""Carries bytes from the first socket to the second one, until a side closes."""


class TcpProxy(ABC):
    """Listens on a free port and carries every connection to the target.

    When one direction of a connection ends, both sockets are closed.
    """

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._sockets: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept)]

    @abstractmethod
    def target(self) -> tuple[str, int]:
        """The target's host and port for a new connection. May wait until the way is free."""

    @abstractmethod
    def ways(self) -> tuple[Carry, Carry]:
        """How a new connection's requests and its answers are carried."""

    def start(self) -> None:
        """Accept connections."""
        self._threads[0].start()

    def close(self) -> None:
        """End all connections."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._threads[0].join()
        for each in self._sockets:
            _close(each)
        for thread in self._threads[1:]:
            thread.join()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self._sockets.append(client)
            self._run(self._serve, client)

    def _serve(self, client: socket.socket) -> None:
        try:
            server = socket.create_connection(self.target())
        except OSError:
            _close(client)
            return
        self._sockets.append(server)
        requests, answers = self.ways()
        self._run(_pipe, server, client, answers)
        _pipe(client, server, requests)

    def _run(self, work: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=work, args=arguments)
        self._threads.append(thread)
        thread.start()


def _pipe(source: socket.socket, sink: socket.socket, carry: Carry) -> None:
    with contextlib.suppress(OSError):
        carry(source, sink)
    _close(source)
    _close(sink)


def _close(each: socket.socket) -> None:
    with contextlib.suppress(OSError):
        each.shutdown(socket.SHUT_RDWR)
    each.close()
