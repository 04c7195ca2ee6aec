"""What a handler gets to know of a request beside its message, and how it refuses to answer."""

from __future__ import annotations

from typing import NamedTuple

from tidelog.errors import TidelogError
from tidelog.principal import ANONYMOUS, Principal


class CloseConnection(TidelogError):
    """The connection has to be closed, unanswered. `reason` is short and for the metrics. Handlers
    may raise it, for instance where acks=0 leaves no other way to report an error."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class RequestContext(NamedTuple):
    """What a handler may want to know of a request beside its message."""

    api_version: int
    correlation_id: int
    client_id: str | None
    client_host: str
    connection_id: int
    principal: Principal = ANONYMOUS
