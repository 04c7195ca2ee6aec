"""Broker addresses, from the option with Kafka's name. Pure."""

from __future__ import annotations

from typing import Final

from tidelog.errors import InvalidConfiguration

BOOTSTRAP: Final = "kafka.bootstrap.servers"


def addresses(text: str) -> tuple[tuple[str, int], ...]:
    """The brokers' hosts and ports. InvalidConfiguration."""
    found = []
    for part in text.split(","):
        host, _, port = part.strip().rpartition(":")
        if not host or not port.isdecimal() or int(port) > 65535:
            raise InvalidConfiguration(
                f"{BOOTSTRAP} is HOST:PORT, several separated by commas, not {part.strip()!r}"
            )
        found.append((host.strip("[]"), int(port)))
    return tuple(found)
