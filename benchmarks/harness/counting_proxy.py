"""Counts the requests to a server as a proxy.

A request begins when a client's packet begins with a method's name.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections import Counter
from collections.abc import Iterator
from urllib.parse import urlsplit

METHODS = (b"GET ", b"HEAD ", b"PUT ", b"POST ", b"DELETE ")
_CHUNK_BYTES = 1 << 18


class CountingProxy:
    """Forwards bytes between clients and one server."""

    def __init__(self, server_url: str) -> None:
        parts = urlsplit(server_url)
        self._server = (parts.hostname or "127.0.0.1", parts.port or 80)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.requests: Counter[str] = Counter()
        self._lock = threading.Lock()

    def serve(self) -> None:
        """Accept connections until the listener is closed."""
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.create_connection(self._server)
            for source, sink, is_client in ((client, server, True), (server, client, False)):
                threading.Thread(
                    target=self._pass_on, args=(source, sink, is_client), daemon=True
                ).start()

    def _pass_on(self, source: socket.socket, sink: socket.socket, is_client: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(_CHUNK_BYTES):
                if is_client:
                    for method in METHODS:
                        if data.startswith(method):
                            with self._lock:
                                self.requests[method.decode().strip()] += 1
                sink.sendall(data)
        for each in (source, sink):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def close(self) -> None:
        """Accept no more connections."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


@contextlib.contextmanager
def counting_proxy(server_url: str) -> Iterator[CountingProxy]:
    """A proxy that serves in threads."""
    proxy = CountingProxy(server_url)
    threading.Thread(target=proxy.serve, daemon=True).start()
    yield proxy
    proxy.close()
