"""What a handler gets to know of a request beside its message, and how it refuses to answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from tidelog.coordinator.cluster.state.incarnations import PLAIN_LISTENER
from tidelog.errors import TidelogError
from tidelog.security.principal import ANONYMOUS, Principal

if TYPE_CHECKING:
    from tidelog.broker.authorization.access import Access


class CloseConnection(TidelogError):
    """The connection has to be closed, unanswered. `reason` is short and for the metrics. Handlers
    may raise it, for instance where acks=0 leaves no other way to report an error."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class ConnectedClient(NamedTuple):
    """What all requests of a connection have in common, in the order of RequestContext."""

    client_host: str
    connection_id: int
    listener: str = PLAIN_LISTENER
    principal: Principal = ANONYMOUS
    access: Access | None = None
    """What the principal may do, for handlers that must ask. None: everything."""


class RequestContext(NamedTuple):
    """What a handler may want to know of a request beside its message."""

    api_version: int
    correlation_id: int
    client_id: str | None
    client_host: str
    connection_id: int
    listener: str = PLAIN_LISTENER
    """The listener that the client came by, whose addresses it is told."""
    principal: Principal = ANONYMOUS
    access: Access | None = None
    """What the principal may do, for handlers that must ask. None: everything."""
