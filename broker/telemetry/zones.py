"""The zones of clients. Traffic between zones costs money, so the broker counts its bytes.

A consumer names its zone as `client.rack`. Producers have no such setting, so every client may name
it in its `client.id`, as `zone=`, `ws_az=` or `diskless_az=`: `app,zone=eu-west-1a`.
"""

from __future__ import annotations

import re
from enum import StrEnum
from functools import lru_cache
from typing import Final

CLIENT_IDS_MAX: Final = 4096
"""Client ids whose zones are remembered."""
CLIENT_ID_LENGTH_MAX: Final = 1024
"""The characters of a client id in which its zone is looked for, and that are remembered."""
_NAMED: Final = re.compile(r"(?:^|[^A-Za-z0-9])(?:zone|ws_az|diskless_az)=([^,;\s]+)")


class Crossing(StrEnum):
    """Whether a client's bytes leave the broker's zone."""

    SAME = "same"
    OTHER = "other"
    UNKNOWN = "unknown"
    """The client names no zone, or the broker has none (`broker.rack`)."""


@lru_cache(CLIENT_IDS_MAX)
def named_zone(client_id: str) -> str | None:
    """The zone that a client id names."""
    found = _NAMED.search(client_id)
    return None if found is None else found[1]


def zone_of(client_id: str | None, rack: str | None = None) -> str | None:
    """A client's zone. `rack`: `client.rack`, which comes first."""
    return rack or (named_zone(client_id[:CLIENT_ID_LENGTH_MAX]) if client_id else None)


def crossing(own: str | None, client_id: str | None, rack: str = "") -> Crossing:
    """Whether bytes of a client cross zones. `own`: the broker's zone; `rack`: `client.rack`."""
    zone = None if own is None else zone_of(client_id, rack)
    if zone is None:
        return Crossing.UNKNOWN
    return Crossing.SAME if zone == own else Crossing.OTHER
