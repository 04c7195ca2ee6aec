"""A way to a broker on which an answer can be lost: a proxy that cuts a connection when the answer
to a Produce request comes. The records are durable, and their producer does not know."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Callable
from types import TracebackType

PRODUCE = 0
_SIZE = struct.Struct(">i")
_REQUEST_START = struct.Struct(">hhi")


class LossyProxy:
    """Listens on loopback; passes everything on to `target` until told to lose an answer."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.target = ""
        """The broker's host:port."""
        self.lost = threading.Event()
        """Set when the answer was lost."""
        self._loses = threading.Event()
        self._threads = [threading.Thread(target=self._accept)]
        self._sockets: list[socket.socket] = []

    def lose_next_answer(self) -> None:
        """Lose the next answer to a Produce request, once."""
        self.lost.clear()
        self._loses.set()

    def __enter__(self) -> LossyProxy:
        self._threads[0].start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
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
            host, _, port = self.target.rpartition(":")
            try:
                broker = socket.create_connection((host, int(port)))
            except OSError:
                client.close()
                continue
            self._sockets += [client, broker]
            produces: set[int] = set()
            ways = ((client, broker, self._request), (broker, client, self._answer))
            for source, sink, passes in ways:
                thread = threading.Thread(target=_carry, args=(source, sink, passes, produces))
                self._threads.append(thread)
                thread.start()

    def _request(self, frame: bytes, produces: set[int]) -> bool:
        api_key, _, correlation_id = _REQUEST_START.unpack_from(frame)
        if api_key == PRODUCE:
            produces.add(correlation_id)
        return True

    def _answer(self, frame: bytes, produces: set[int]) -> bool:
        if _SIZE.unpack_from(frame)[0] in produces and self._loses.is_set():
            self._loses.clear()
            self.lost.set()
            return False
        return True


def _carry(
    source: socket.socket,
    sink: socket.socket,
    passes: Callable[[bytes, set[int]], bool],
    produces: set[int],
) -> None:
    """Frame by frame, until one does not pass or a side closes; then both are closed."""
    with contextlib.suppress(OSError), source.makefile("rb") as stream:
        while size := stream.read(_SIZE.size):
            frame = stream.read(_SIZE.unpack(size)[0])
            if not passes(frame, produces):
                break
            sink.sendall(size + frame)
    _close(source)
    _close(sink)


def _close(each: socket.socket) -> None:
    with contextlib.suppress(OSError):
        each.shutdown(socket.SHUT_RDWR)
    each.close()
