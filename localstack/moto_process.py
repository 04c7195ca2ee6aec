"""moto's S3 as a process of its own: `python -m tidelog.localstack.moto_process PORT`.

moto checks a condition and then stores, without a lock in between, so that two racing creates can
both win. Here one write is served at a time, its body read beforehand; reads run beside it. It ends
when its standard input does, that is with the process that started it.
"""

from __future__ import annotations

import io
import logging
import os
import sys
import threading
from collections.abc import Callable, Iterable
from typing import Any

from moto.moto_server.werkzeug_app import (
    DomainDispatcherApplication,
    MotoRequestHandler,
    create_backend_app,
)
from werkzeug.serving import make_server

Environ = dict[str, Any]
Application = Callable[[Environ, Any], Iterable[bytes]]


class OneWriteAtATime:
    """A WSGI application around another one that it enters with one write at a time."""

    def __init__(self, application: Application) -> None:
        self._application = application
        self._writing = threading.Lock()

    def __call__(self, environ: Environ, start_response: Any) -> Iterable[bytes]:
        if environ["REQUEST_METHOD"] in {"GET", "HEAD"}:
            return self._application(environ, start_response)
        if length := int(environ.get("CONTENT_LENGTH") or 0):
            environ["wsgi.input"] = io.BytesIO(environ["wsgi.input"].read(length))
        with self._writing:
            return list(self._application(environ, start_response))


class _KeepAliveHandler(MotoRequestHandler):
    protocol_version = "HTTP/1.1"
    # Headers and body are written apart: without this each answer waits for a delayed ACK.
    disable_nagle_algorithm = True


def main() -> None:
    """Serve until standard input ends."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    application = OneWriteAtATime(DomainDispatcherApplication(create_backend_app))
    server = make_server(
        "127.0.0.1",
        int(sys.argv[1]),
        application,
        threaded=True,
        request_handler=_KeepAliveHandler,
    )
    threading.Thread(target=server.serve_forever, daemon=True).start()
    sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    main()
