"""Ways through the network that can be cut: TCP proxies on loopback."""

from __future__ import annotations

import socket
import threading
from functools import partial
from typing import Final

from tests.tcp_proxy import Carry, TcpProxy

CHUNK_BYTES: Final = 1 << 16
REQUESTS: Final = "requests"
ANSWERS: Final = "answers"
BOTH: Final = (REQUESTS, ANSWERS)


class Link(TcpProxy):
    """A way to a port that can be cut.

    A cut holds the bytes of a direction, and the ends of connections too, so neither side notices
    it. After the cut the held bytes arrive: a late request takes effect then.
    """

    def __init__(self, target: int) -> None:
        """`target`: a loopback port, which may be free at times."""
        super().__init__()
        self._target = target
        self._passes = {way: threading.Event() for way in BOTH}
        self.heal()
        self.start()

    def cut(self, *ways: str) -> None:
        """Hold the bytes to the target (REQUESTS) or from it (ANSWERS)."""
        for way in ways:
            self._passes[way].clear()

    def heal(self) -> None:
        """Let all bytes pass."""
        for passes in self._passes.values():
            passes.set()

    def close(self) -> None:
        """End all connections."""
        self.heal()
        super().close()

    def target(self) -> tuple[str, int]:
        self._passes[REQUESTS].wait()
        return "127.0.0.1", self._target

    def ways(self) -> tuple[Carry, Carry]:
        requests, answers = [partial(_carry, passes=self._passes[way]) for way in BOTH]
        return requests, answers


def _carry(source: socket.socket, sink: socket.socket, passes: threading.Event) -> None:
    try:
        while data := source.recv(CHUNK_BYTES):
            passes.wait()
            sink.sendall(data)
    finally:
        passes.wait()
