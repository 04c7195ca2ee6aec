"""The HTTP side of a broker: /healthz and /metrics, from a thread and an event loop of its own.

A broker whose event loop hangs must still answer that it is not healthy, so nothing here needs that
loop: the two callables are called in this thread, or in one for metrics.

A connection costs a task and no thread. Where there are too many, the one gives way that has waited
longest without a whole request: a probe, which sends its request at once, is answered whatever
others hold open. What takes time, the metrics, is made for all who wait for it together, and with
pauses, so that asking for it does not take the processor from the broker.
"""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from io import BytesIO
from typing import Any, Final, NoReturn

from tidelog.broker.telemetry.metrics import CONTENT_TYPE
from tidelog.clock import Clock

logger = logging.getLogger(__name__)

HEADER_BYTES_MAX: Final = 16 * 1024
METRICS_PAUSES: Final = 10
"""Behind each making of the metrics there is a pause of so many times as long as that took."""
METRICS_PAUSE_SECONDS_MAX: Final = 1.0
_BACKLOG: Final = 1024
_ACCEPT_PAUSE_SECONDS: Final = 0.5
"""Behind a failure to accept a connection, as where no file descriptor is left."""
_HEADER_END: Final = b"\r\n\r\n"

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
        timeout_seconds: float,
        clock: Clock,
    ) -> None:
        """Listen and start. Port 0 picks a free one. `timeout_seconds` are for a client to send its
        request and to take the answer."""
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._socket = socket.create_server((host, port), family=family, backlog=_BACKLOG)
        self._socket.setblocking(False)
        self._serving = _Serving(
            health, _Metrics(exposition, clock), connections_max, timeout_seconds
        )
        self._clock = clock
        self._loop = asyncio.SelectorEventLoop()
        self._accepting = self._loop.create_task(self._accept())
        self._thread = threading.Thread(target=self._run, name="tidelog-http", daemon=True)
        self._thread.start()

    @property
    def address(self) -> tuple[str, int]:
        """The host and the port that it really listens on."""
        host, port = self._socket.getsockname()[:2]
        return str(host), int(port)

    def close(self) -> None:
        """Stop listening, and end what is being answered."""
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
        """One connection in a pass of the loop: what those before it have sent is read first."""
        async with asyncio.TaskGroup() as tasks:
            while True:
                try:
                    connection, _ = await self._loop.sock_accept(self._socket)
                except OSError as error:
                    logger.warning("no HTTP connection is accepted", extra={"why": str(error)})
                    await self._clock.sleep(_ACCEPT_PAUSE_SECONDS)
                    continue
                tasks.create_task(self._serving.serve(connection))
                await self._clock.sleep(0)


class _Serving:
    """The connections of the server."""

    def __init__(
        self, health: Health, metrics: _Metrics, connections_max: int, timeout_seconds: float
    ) -> None:
        self._health = health
        self._metrics = metrics
        self._connections_max = connections_max
        self._timeout_seconds = timeout_seconds
        self._asking: dict[asyncio.StreamWriter, None] = {}
        """Those whose request is not there as a whole, the oldest first."""
        self._answered: set[asyncio.StreamWriter] = set()

    async def serve(self, connection: socket.socket) -> None:
        """One connection, which carries one request. Raises nothing."""
        try:
            async with asyncio.timeout(self._timeout_seconds):
                await self._serve(connection)
        except (OSError, EOFError):
            # A client that vanishes, or is too slow, is not worth a line.
            connection.close()
        except Exception:  # whatever it is, one request must not end the others
            logger.exception("HTTP request failed")
            connection.close()

    async def _serve(self, connection: socket.socket) -> None:
        reader, writer = await asyncio.open_connection(sock=connection, limit=HEADER_BYTES_MAX)
        self._asking[writer] = None
        self._make_room()
        try:
            head = await self._head(reader)
            self._asking.pop(writer, None)
            self._answered.add(writer)
            writer.write(await self._answer(head))
            await writer.drain()
            writer.close()
            await writer.wait_closed()
        finally:
            self._asking.pop(writer, None)
            self._answered.discard(writer)
            writer.transport.abort()

    def _make_room(self) -> None:
        if len(self._asking) + len(self._answered) > self._connections_max:
            oldest = next(iter(self._asking))
            del self._asking[oldest]
            oldest.transport.abort()

    async def _head(self, reader: asyncio.StreamReader) -> bytes:
        try:
            return await reader.readuntil(_HEADER_END)
        except asyncio.LimitOverrunError:
            return b""

    async def _answer(self, head: bytes) -> bytes:
        request = _Request(head)
        if not request.understood:
            pass
        elif request.command not in ("GET", "HEAD"):
            request.send_error(HTTPStatus.NOT_IMPLEMENTED)
        elif request.asked == "/healthz":
            problems = list(self._health())
            status = HTTPStatus.SERVICE_UNAVAILABLE if problems else HTTPStatus.OK
            request.answer_json(status, {"healthy": not problems, "problems": problems})
        elif request.asked != "/metrics":
            request.answer_json(HTTPStatus.NOT_FOUND, {"error": "only /healthz and /metrics"})
        elif len(self._answered) > self._connections_max // 2:
            # The others are for who asks for the health.
            request.answer_json(HTTPStatus.SERVICE_UNAVAILABLE, {"error": "too many ask for this"})
        else:
            request.answer(HTTPStatus.OK, CONTENT_TYPE, await self._metrics.read())
        return request.wfile.getvalue()


class _Metrics:
    """The exposition, made for all who have asked before."""

    def __init__(self, exposition: Callable[[], bytes], clock: Clock) -> None:
        self._exposition = exposition
        self._clock = clock
        self._next: asyncio.Task[bytes] | None = None
        self._making = asyncio.Lock()
        self._not_before = 0.0

    async def read(self) -> bytes:
        """As it is now or later."""
        if self._next is None:
            self._next = asyncio.create_task(self._make())
        return await asyncio.shield(self._next)

    async def _make(self) -> bytes:
        clock = self._clock
        async with self._making:
            await clock.sleep(max(0.0, self._not_before - clock.monotonic()))
            # Who asks from now on wants to know what happens from now on.
            self._next = None
            began = clock.monotonic()
            try:
                return await asyncio.to_thread(self._exposition)
            finally:
                ended = clock.monotonic()
                pause = min(METRICS_PAUSES * (ended - began), METRICS_PAUSE_SECONDS_MAX)
                self._not_before = ended + pause


class _Request(BaseHTTPRequestHandler):
    """A request's header and the answer to it, in memory."""

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
        """The path."""
        return self.path.partition("?")[0]

    def answer_json(self, status: HTTPStatus, document: dict[str, Any]) -> None:
        """Answer with a document."""
        self.answer(status, "application/json", json.dumps(document).encode() + b"\n")

    def answer(self, status: HTTPStatus, content_type: str, body: bytes) -> None:
        """Answer with a body."""
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 (the base's name)
        """Requests are not worth a line each."""
