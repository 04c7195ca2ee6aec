"""An HTTP server that follows a script, request by request: S3's faults on a real socket."""

from __future__ import annotations

import socket
import struct
import threading
from contextlib import suppress
from dataclasses import dataclass, field
from types import TracebackType
from xml.sax.saxutils import escape


@dataclass(frozen=True, slots=True)
class Answer:
    """Send these bytes once the request has been read, and keep the connection."""

    data: bytes


@dataclass(frozen=True, slots=True)
class Break:
    """Read the request, or only its head, and break the connection by FIN or by RST. Before that,
    send the first bytes of an answer if there are any."""

    read_body: bool = True
    reset: bool = False
    data: bytes = b""


@dataclass(frozen=True, slots=True)
class Hang:
    """Read the request, and send no answer."""


Act = Answer | Break | Hang


def answer(status: int, body: bytes = b"", **headers: str) -> Answer:
    """A whole HTTP answer."""
    lines = [f"HTTP/1.1 {status} Scripted", f"content-length: {len(body)}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return Answer("\r\n".join(lines).encode() + b"\r\n\r\n" + body)


def error(status: int, code: str, message: str = "as scripted") -> Answer:
    """An error as S3 words it."""
    body = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>{escape(message)}</Message>"
    return answer(status, f"{body}</Error>".encode(), content_type="application/xml")


def stored(etag: str = '"e1"') -> Answer:
    """The answer to a put that was applied."""
    return answer(200, etag=etag)


@dataclass
class ScriptedServer:
    """Serves on loopback until closed. `requests` has the head of each request, as it arrived."""

    script: list[Act]
    requests: list[str] = field(default_factory=list)

    def __enter__(self) -> ScriptedServer:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self._connections: list[socket.socket] = []
        self._thread = threading.Thread(target=self._accept)
        self._threads: list[threading.Thread] = []
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        exception: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._socket.close()
        for connection in self._connections:
            # The script or the client may have broken the connection already.
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._socket.getsockname()[1]}"

    @property
    def url(self) -> str:
        return (
            f"s3://bucket/prefix?endpoint={self.endpoint}&region=eu-west-1&access_key_id=KEYID"
            "&secret_access_key=SECRETKEY&request_timeout_ms=400"
        )

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            self._connections.append(connection)
            thread = threading.Thread(target=self._serve, args=(connection,))
            self._threads.append(thread)
            thread.start()

    def _serve(self, connection: socket.socket) -> None:
        with connection:
            try:
                while self._serve_one(connection):
                    pass
            except OSError:
                # The client has closed the connection.
                return

    def _serve_one(self, connection: socket.socket) -> bool:
        received = b""
        while b"\r\n\r\n" not in received:
            more = connection.recv(65536)
            if not more:
                return False
            received += more
        head, _, body = received.partition(b"\r\n\r\n")
        self.requests.append(head.decode())
        act = self.script.pop(0) if self.script else error(500, "EndOfScript")
        if not isinstance(act, Break) or act.read_body:
            missing = _content_length(head) - len(body)
            while missing > 0:
                missing -= len(connection.recv(65536))
        match act:
            case Answer(data):
                connection.sendall(data)
                return True
            case Hang():
                connection.recv(1)
                return False
            case Break(reset=reset, data=data):
                connection.sendall(data)
                if reset:
                    linger = struct.pack("ii", 1, 0)
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                return False


def _content_length(head: bytes) -> int:
    for line in head.decode().lower().split("\r\n"):
        if line.startswith("content-length:"):
            return int(line.partition(":")[2])
    return 0
