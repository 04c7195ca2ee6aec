"""The identity of a client, as authentication establishes it and authorization judges it."""

from __future__ import annotations

from typing import Final, NamedTuple


class Principal(NamedTuple):
    """A named identity, with the groups that its credentials state."""

    name: str
    groups: tuple[str, ...] = ()
    kind: str = "User"

    def __str__(self) -> str:
        """Kafka's form: kind, colon, name."""
        return f"{self.kind}:{self.name}"


ANONYMOUS: Final = Principal("ANONYMOUS")
"""The principal of a connection that did not authenticate, as in Kafka."""
