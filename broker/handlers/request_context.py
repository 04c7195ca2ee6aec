"""The facts about a request that a handler gets beside its message, and its way not to answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from tidelog.coordinator.cluster.state.incarnations import PLAIN_LISTENER
from tidelog.errors import TidelogError
from tidelog.security.principal import ANONYMOUS, Principal

if TYPE_CHECKING:
    from tidelog.broker.authorization.access import Access


class CloseConnection(TidelogError):
    """The broker must close the connection without an answer.

    `reason` is short and for the metrics. Handlers may raise it, for instance if acks=0 leaves no
    other way to report an error.
    """

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class ConnectedClient(NamedTuple):
    """The facts that all requests of a connection share, in the order of RequestContext."""

    client_host: str
    connection_id: int
    listener: str = PLAIN_LISTENER
    principal: Principal = ANONYMOUS
    access: Access | None = None
    """The principal's permissions, for handlers that must ask. None: all are granted."""


class RequestContext(NamedTuple):
    """The facts about a request that a handler may use beside its message."""

    api_version: int
    correlation_id: int
    client_id: str | None
    client_host: str
    connection_id: int
    listener: str = PLAIN_LISTENER
    """The listener of the client's connection. Answers have the addresses of this listener."""
    principal: Principal = ANONYMOUS
    access: Access | None = None
    """The principal's permissions, for handlers that must ask. None: all are granted."""
