"""A proxy before a broker that can lose an answer: it cuts a connection when the answer to a
Produce request arrives. The records are durable, and their producer does not know that."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable
from functools import partial
from types import TracebackType

from tests.tcp_proxy import Carry, TcpProxy

PRODUCE = 0
_SIZE = struct.Struct(">i")
_REQUEST_START = struct.Struct(">hhi")


class LossyProxy(TcpProxy):
    """Passes everything on to `broker` until told to lose an answer."""

    def __init__(self) -> None:
        super().__init__()
        self.address = f"127.0.0.1:{self.port}"
        self.broker = ""
        """The proxy's host:port."""
        self.lost = threading.Event()
        """Set when the answer was lost."""
        self._loses = threading.Event()

    def lose_next_answer(self) -> None:
        """Lose the next answer to a Produce request, once."""
        self.lost.clear()
        self._loses.set()

    def __enter__(self) -> LossyProxy:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def target(self) -> tuple[str, int]:
        host, _, port = self.broker.rpartition(":")
        return host, int(port)

    def ways(self) -> tuple[Carry, Carry]:
        produces: set[int] = set()

        def requested(frame: bytes) -> bool:
            api_key, _, correlation_id = _REQUEST_START.unpack_from(frame)
            if api_key == PRODUCE:
                produces.add(correlation_id)
            return True

        def answered(frame: bytes) -> bool:
            if _SIZE.unpack_from(frame)[0] in produces and self._loses.is_set():
                self._loses.clear()
                self.lost.set()
                return False
            return True

        return partial(_carry, passes=requested), partial(_carry, passes=answered)


def _carry(source: socket.socket, sink: socket.socket, passes: Callable[[bytes], bool]) -> None:
    """Carry frame by frame, until one must not pass or a side closes."""
    with source.makefile("rb") as stream:
        while size := stream.read(_SIZE.size):
            frame = stream.read(_SIZE.unpack(size)[0])
            if not passes(frame):
                break
            sink.sendall(size + frame)
