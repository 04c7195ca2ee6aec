"""Ways through the network that can be cut: TCP proxies on loopback."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable
from typing import Final

CHUNK_BYTES: Final = 1 << 16
REQUESTS: Final = "requests"
ANSWERS: Final = "answers"
BOTH: Final = (REQUESTS, ANSWERS)


class Link:
    """Listens on a port of its own and carries every connection to the target.

    A cut holds the bytes of a direction, and the ends of connections too. So neither side learns of
    it. After the cut the held bytes arrive: a late request takes effect then.
    """

    def __init__(self, target: int) -> None:
        """`target`: a loopback port, which may be free at times."""
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._passes = {way: threading.Event() for way in BOTH}
        self._sockets: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept)]
        self.heal()
        self._threads[0].start()

    def cut(self, *ways: str) -> None:
        """Hold what goes to the target (REQUESTS) or comes from it (ANSWERS)."""
        for way in ways:
            self._passes[way].clear()

    def heal(self) -> None:
        """Let everything pass."""
        for passes in self._passes.values():
            passes.set()

    def close(self) -> None:
        """End all connections."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.heal()
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
        self._passes[REQUESTS].wait()
        try:
            server = socket.create_connection(("127.0.0.1", self._target))
        except OSError:
            _close(client)
            return
        self._sockets.append(server)
        self._run(_carry, server, client, self._passes[ANSWERS])
        _carry(client, server, self._passes[REQUESTS])

    def _run(self, work: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=work, args=arguments)
        self._threads.append(thread)
        thread.start()


def _carry(source: socket.socket, sink: socket.socket, passes: threading.Event) -> None:
    """Carry bytes until a side closes; then close both."""
    with contextlib.suppress(OSError):
        while data := source.recv(CHUNK_BYTES):
            passes.wait()
            sink.sendall(data)
    passes.wait()
    _close(source)
    _close(sink)


def _close(each: socket.socket) -> None:
    with contextlib.suppress(OSError):
        each.shutdown(socket.SHUT_RDWR)
    each.close()
