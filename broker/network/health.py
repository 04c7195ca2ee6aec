"""The HTTP side of a broker: /healthz, /readyz and /metrics, from a thread and loop of its own.

A broker with a hanging event loop must still answer that it is unhealthy. So nothing here needs
that loop: the callables for probes run in this thread, that for metrics in another.

A connection costs a task and no thread. Above the limit, the server ends the connection that has
waited longest without a complete request, its TLS handshake included. So a probe, which sends its
request at once, always gets an answer. Slow work, the exposition of the metrics, is done once for
all waiting requests, with pauses, so that scrapes do not take the broker's processor.
"""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from io import BytesIO
from typing import Any, Final, NoReturn

from tidelog.broker.network.http_access import HttpAccess
from tidelog.broker.telemetry.metrics import CONTENT_TYPE
from tidelog.clock import Clock

logger = logging.getLogger(__name__)

HEADER_BYTES_MAX: Final = 16 * 1024
METRICS_PAUSES: Final = 10
"""After each exposition the server pauses for this many times its duration."""
METRICS_PAUSE_SECONDS_MAX: Final = 1.0
_BACKLOG: Final = 1024
_ACCEPT_PAUSE_SECONDS: Final = 0.5
"""The pause after a failed accept, for example without a free file descriptor."""
_HEADER_END: Final = b"\r\n\r\n"

Problems = Callable[[], Sequence[str]]
"""The broker's present problems, in words; empty if there are none. Any thread may call it."""


class HealthServer:
    """Serves until closed. Raises OSError if the address is not available."""

    def __init__(
        self,
        host: str,
        port: int,
        *,
        access: HttpAccess,
        health: Problems,
        readiness: Problems,
        exposition: Callable[[], bytes],
        connections_max: int,
        timeout_seconds: float,
        clock: Clock,
    ) -> None:
        """Listen and start. Port 0 picks a free port.

        `health`: all problems. `readiness`: those that keep the broker from serving at all.

        A client has `timeout_seconds` to send its request and to take the answer.
        """
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._socket = socket.create_server((host, port), family=family, backlog=_BACKLOG)
        self._socket.setblocking(False)
        probes = {"/healthz": ("healthy", health), "/readyz": ("ready", readiness)}
        self._serving = _Serving(
            access, probes, _Metrics(exposition, clock), connections_max, timeout_seconds
        )
        self._clock = clock
        self._loop = asyncio.SelectorEventLoop()
        self._accepting = self._loop.create_task(self._accept())
        self._thread = threading.Thread(target=self._run, name="tidelog-http", daemon=True)
        self._thread.start()

    @property
    def address(self) -> tuple[str, int]:
        """The actual host and port."""
        host, port = self._socket.getsockname()[:2]
        return str(host), int(port)

    def close(self) -> None:
        """Stop listening, and end running answers."""
        self._loop.call_soon_threadsafe(self._accepting.cancel)
        self._thread.join()
        self._socket.close()

    def _run(self) -> None:
        runner = asyncio.Runner(loop_factory=lambda: self._loop)
        with runner, suppress(asyncio.CancelledError):
            runner.run(self._until_closed())

    async def _until_closed(self) -> None:
        await self._accepting

    async def _accept(self) -> NoReturn:
        """Accept one connection in a pass of the loop, so that earlier requests are read first."""
        async with asyncio.TaskGroup() as tasks:
            while True:
                try:
                    connection, _ = await self._loop.sock_accept(self._socket)
                except OSError as error:
                    logger.warning("an HTTP connection was not accepted", extra={"why": str(error)})
                    await self._clock.sleep(_ACCEPT_PAUSE_SECONDS)
                    continue
                tasks.create_task(self._serving.serve(connection))
                await self._clock.sleep(0)


class _Serving:
    """The server's connections."""

    def __init__(
        self,
        access: HttpAccess,
        probes: Mapping[str, tuple[str, Problems]],
        metrics: _Metrics,
        connections_max: int,
        timeout_seconds: float,
    ) -> None:
        """`probes`: the verdict that a path tells, and the problems that it depends on."""
        self._access = access
        self._probes = probes
        self._metrics = metrics
        self._connections_max = connections_max
        self._timeout_seconds = timeout_seconds
        self._asking: dict[socket.socket, None] = {}
        """Connections without a complete request, the oldest first."""
        self._answered: set[socket.socket] = set()

    async def serve(self, connection: socket.socket) -> None:
        """Serve one connection, which carries one request. Raises nothing."""
        try:
            async with asyncio.timeout(self._timeout_seconds):
                await self._counted(connection)
        except (OSError, EOFError):
            # No log line for a client that vanishes or is too slow.
            connection.close()
        except Exception:  # one request's error must not end the others
            logger.exception("HTTP request failed")
            connection.close()

    async def _counted(self, connection: socket.socket) -> None:
        self._asking[connection] = None
        self._make_room()
        try:
            reader, writer = await self._streams(connection)
            try:
                head = await self._head(reader)
                self._asking.pop(connection, None)
                self._answered.add(connection)
                writer.write(await self._answer(head))
                await writer.drain()
                writer.close()
                await writer.wait_closed()
            finally:
                writer.transport.abort()
        finally:
            self._asking.pop(connection, None)
            self._answered.discard(connection)

    async def _streams(
        self, connection: socket.socket
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Shake hands if the server has a certificate. OSError if that fails."""
        tls = self._access.tls
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(HEADER_BYTES_MAX)
        protocol = asyncio.StreamReaderProtocol(reader)
        transport, _ = await loop.connect_accepted_socket(
            lambda: protocol, connection, ssl=None if tls is None else tls.context
        )
        return reader, asyncio.StreamWriter(transport, protocol, reader, loop)

    def _make_room(self) -> None:
        if len(self._asking) + len(self._answered) > self._connections_max:
            oldest = next(iter(self._asking))
            del self._asking[oldest]
            # The task of the connection meets its end.
            with suppress(OSError):
                oldest.shutdown(socket.SHUT_RDWR)

    async def _head(self, reader: asyncio.StreamReader) -> bytes:
        try:
            return await reader.readuntil(_HEADER_END)
        except asyncio.LimitOverrunError:
            return b""

    async def _answer(self, head: bytes) -> bytes:
        request = _Request(head)
        is_authorized = request.understood and self._access.is_authorized(request.authorization)
        if not request.understood:
            pass
        elif request.command not in ("GET", "HEAD"):
            request.send_error(HTTPStatus.NOT_IMPLEMENTED)
        elif request.asked in self._probes:
            # Probes have no token: they learn the verdict, and no names.
            verdict, problems_now = self._probes[request.asked]
            problems = list(problems_now())
            status = HTTPStatus.SERVICE_UNAVAILABLE if problems else HTTPStatus.OK
            document: dict[str, Any] = {verdict: not problems}
            if is_authorized:
                document["problems"] = problems
            request.answer_json(status, document)
        elif not is_authorized:
            request.answer_json(HTTPStatus.UNAUTHORIZED, {"error": "a bearer token is needed"})
        elif request.asked != "/metrics":
            served = ", ".join([*self._probes, "/metrics"])
            request.answer_json(HTTPStatus.NOT_FOUND, {"error": f"only {served}"})
        elif len(self._answered) > self._connections_max // 2:
            # The other half is reserved for probes.
            request.answer_json(HTTPStatus.SERVICE_UNAVAILABLE, {"error": "too many requests"})
        else:
            request.answer(HTTPStatus.OK, CONTENT_TYPE, await self._metrics.read())
        return request.wfile.getvalue()


class _Metrics:
    """The exposition, made once for all waiting requests."""

    def __init__(self, exposition: Callable[[], bytes], clock: Clock) -> None:
        self._exposition = exposition
        self._clock = clock
        self._next: asyncio.Task[bytes] | None = None
        self._making = asyncio.Lock()
        self._not_before = 0.0

    async def read(self) -> bytes:
        """An exposition begun at this call or later."""
        if self._next is None:
            self._next = asyncio.create_task(self._make())
        return await asyncio.shield(self._next)

    async def _make(self) -> bytes:
        clock = self._clock
        async with self._making:
            await clock.sleep(max(0.0, self._not_before - clock.monotonic()))
            # A later request must see later values: it starts the next exposition.
            self._next = None
            began = clock.monotonic()
            try:
                return await asyncio.to_thread(self._exposition)
            finally:
                ended = clock.monotonic()
                pause = min(METRICS_PAUSES * (ended - began), METRICS_PAUSE_SECONDS_MAX)
                self._not_before = ended + pause


class _Request(BaseHTTPRequestHandler):
    """A request's header and its answer, in memory."""

    server_version = "tidelog"
    sys_version = ""
    wfile: BytesIO

    def __init__(self, head: bytes) -> None:
        self.rfile = BytesIO(head)
        self.wfile = BytesIO()
        self.client_address = ("", 0)
        self.raw_requestline = self.rfile.readline()
        self.understood = self.parse_request()

    @property
    def asked(self) -> str:
        """The path, without the query."""
        return self.path.partition("?")[0]

    @property
    def authorization(self) -> str | None:
        """The header that may hold a token."""
        return self.headers.get("Authorization")

    def answer_json(self, status: HTTPStatus, document: dict[str, Any]) -> None:
        self.answer(status, "application/json", json.dumps(document).encode() + b"\n")

    def answer(self, status: HTTPStatus, content_type: str, body: bytes) -> None:
        self.send_response(status)
        if status is HTTPStatus.UNAUTHORIZED:
            self.send_header("WWW-Authenticate", "Bearer")
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 (the base's name)
        """Log nothing: requests come too often."""
