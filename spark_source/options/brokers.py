"""Broker addresses and how to reach them, from the options with Kafka's names. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tidelog.addresses import parse_address
from tidelog.errors import InvalidConfiguration

BOOTSTRAP: Final = "kafka.bootstrap.servers"
_PREFIX: Final = "kafka."
_SECURITY: Final = ("kafka.security.", "kafka.ssl.", "kafka.sasl.")


def addresses(text: str) -> tuple[tuple[str, int], ...]:
    """The brokers' hosts and ports. InvalidConfiguration."""
    found = []
    for part in text.split(","):
        try:
            found.append(parse_address(part.strip()))
        except ValueError:
            raise InvalidConfiguration(
                f"{BOOTSTRAP} is HOST:PORT, several separated by commas, not {part.strip()!r}"
            ) from None
    return tuple(found)


def is_security(option: str) -> bool:
    """Whether an option tells how connections to brokers are protected."""
    return option.startswith(_SECURITY)


def security_properties(given: Mapping[str, str]) -> dict[str, str]:
    """These options as properties of a client, unresolved: they travel to tasks as they are."""
    return {name.removeprefix(_PREFIX): value for name, value in given.items() if is_security(name)}
