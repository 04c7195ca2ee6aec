"""Full TLS handshakes with a server, as many as some threads can make; a process of its own.

    python -m benchmarks.security.handshakes --bootstrap HOST:PORT --authority FILE --seconds N

Each connection asks for the versions of the requests, so that the server has accepted it. Prints
one JSON object: connections, seconds.
"""

from __future__ import annotations

import argparse
import json
import socket
import ssl
import struct
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks.harness.targets import LOAD_SECONDS_MAX, Target

THREADS = 4
_API_VERSIONS = struct.pack(">hhih", 18, 0, 1, -1)
_REQUEST = struct.pack(">i", len(_API_VERSIONS)) + _API_VERSIONS


@dataclass(frozen=True, slots=True)
class Handshakes:
    """New connections a second, and the server's CPU for one."""

    a_second: float
    cpu_ms: float


def measure_handshakes(target: Target, authority: Path, seconds: float) -> Handshakes:
    """Measure a listener with TLS."""
    command = [sys.executable, "-m", __name__, "--bootstrap", target.bootstrap]
    command += ["--authority", str(authority), "--seconds", str(seconds)]
    before = target.usage()
    done = subprocess.run(command, capture_output=True, check=True, timeout=LOAD_SECONDS_MAX)
    used = target.usage().since(before)
    found = json.loads(done.stdout)
    return Handshakes(
        found["connections"] / found["seconds"], 1000 * used.cpu_seconds / found["connections"]
    )


def connect(address: tuple[str, int], context: ssl.SSLContext) -> None:
    """One connection: its handshake, one request, its end."""
    with (
        socket.create_connection(address, timeout=30) as plain,
        context.wrap_socket(plain, server_hostname=address[0]) as connection,
    ):
        connection.sendall(_REQUEST)
        (size,) = struct.unpack(">i", connection.recv(4))
        while size > 0:
            size -= len(connection.recv(size))


def main() -> None:
    """Connect again and again, and print how often."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--authority", required=True)
    parser.add_argument("--seconds", type=float, required=True)
    arguments = parser.parse_args()
    host, port = arguments.bootstrap.split(":")
    context = ssl.create_default_context(cafile=arguments.authority)
    counts = [0] * THREADS
    started = time.perf_counter()

    def run(thread: int) -> None:
        while time.perf_counter() < started + arguments.seconds:
            connect((host, int(port)), context)
            counts[thread] += 1

    threads = [threading.Thread(target=run, args=(number,)) for number in range(THREADS)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    seconds = time.perf_counter() - started
    print(json.dumps({"connections": sum(counts), "seconds": seconds}))


if __name__ == "__main__":
    main()
