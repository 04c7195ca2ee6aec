"""The HTTP side of a broker: /healthz and /metrics, from a thread of its own.

A broker whose event loop hangs must still answer that it is not healthy, so nothing here needs the
loop: the two callables are called in the server's threads.
"""

from __future__ import annotations

import json
import logging
import sys
import threading
from collections.abc import Callable, Sequence
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socket import AF_INET, AF_INET6, SO_REUSEADDR, SOL_SOCKET
from typing import Any, Final

from tidelog.broker.metrics import CONTENT_TYPE

logger = logging.getLogger(__name__)

REQUEST_TIMEOUT_SECONDS: Final = 10.0
"""For a client to send its request and to take the answer."""

Health = Callable[[], Sequence[str]]
"""What is wrong with the broker, in words; empty if nothing is. Called from any thread."""


class HealthServer:
    """Serves until it is closed. OSError where the address cannot be had."""

    def __init__(
        self,
        host: str,
        port: int,
        *,
        health: Health,
        exposition: Callable[[], bytes],
        connections_max: int,
    ) -> None:
        """Listen and start. Port 0 picks a free one."""
        self._server = _Server(host, port, health, exposition, connections_max)
        self._thread = threading.Thread(
            target=self._server.serve_forever,
            kwargs={"poll_interval": 0.1},
            name="tidelog-http",
            daemon=True,
        )
        self._thread.start()

    @property
    def address(self) -> tuple[str, int]:
        """The host and the port that it really listens on."""
        host, port = self._server.server_address[:2]
        return str(host), int(port)

    def close(self) -> None:
        """Stop listening; waits for the listening thread, not for clients."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(
        self,
        host: str,
        port: int,
        health: Health,
        exposition: Callable[[], bytes],
        connections_max: int,
    ) -> None:
        self.health = health
        self.exposition = exposition
        self._slots = threading.BoundedSemaphore(connections_max)
        self.address_family = AF_INET6 if ":" in host else AF_INET
        super().__init__((host, port), _Handler)

    def server_bind(self) -> None:
        # HTTPServer.server_bind looks the host's name up, which may take seconds without DNS.
        self.socket.setsockopt(SOL_SOCKET, SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = str(self.server_address[0]), self.server_address[1]

    def verify_request(self, request: Any, client_address: Any) -> bool:
        """Beyond the limit a connection is closed unanswered."""
        return self._slots.acquire(blocking=False)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Start the connection's thread."""
        try:
            super().process_request(request, client_address)
        except RuntimeError:
            self._slots.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """In a thread of its own; gives its place back when it ends."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._slots.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that vanishes is nobody's concern; anything else is a fault of ours."""
        error = sys.exception()
        if not isinstance(error, OSError):
            logger.error("HTTP request failed", exc_info=error)


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = REQUEST_TIMEOUT_SECONDS
    server_version = "tidelog"
    sys_version = ""

    def do_GET(self) -> None:
        """Answer the two paths."""
        path = self.path.partition("?")[0]
        if path == "/healthz":
            self._healthz()
        elif path == "/metrics":
            self._answer(HTTPStatus.OK, CONTENT_TYPE, self.server.exposition())
        else:
            self._answer_json(HTTPStatus.NOT_FOUND, {"error": "only /healthz and /metrics"})

    do_HEAD = do_GET

    def _healthz(self) -> None:
        problems = list(self.server.health())
        status = HTTPStatus.SERVICE_UNAVAILABLE if problems else HTTPStatus.OK
        self._answer_json(status, {"healthy": not problems, "problems": problems})

    def _answer_json(self, status: HTTPStatus, document: dict[str, Any]) -> None:
        self._answer(status, "application/json", json.dumps(document).encode() + b"\n")

    def _answer(self, status: HTTPStatus, content_type: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 (the base's name)
        """Requests are not worth a line each."""
