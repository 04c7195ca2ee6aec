"""moto's S3 in its own process: `python -m tidelog.localstack.moto_process PORT`.

moto checks a condition and then stores without a lock, so two racing creates can both win. So this
server reads each write's body first, and serves one write at a time; reads run in parallel. It ends
with its standard input, that is, with the process that started it.
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
    """A WSGI application that passes one write at a time to another one."""

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
    # Headers and body are written apart: otherwise each response waits for a delayed ACK.
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
