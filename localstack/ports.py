"""Loopback ports for servers that are about to start."""

from __future__ import annotations

import contextlib
import socket


def free_ports(count: int) -> list[int]:
    """Distinct loopback ports that are free at the moment."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [int(one.getsockname()[1]) for one in sockets]


def accepts(port: int) -> bool:
    """True if a process listens on the port."""
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0
