"""A client's settings."""

from __future__ import annotations

from dataclasses import dataclass

from tidelog.client.security import ClientSecurity


@dataclass(frozen=True, slots=True)
class ClientSettings:
    """Limits and times of a client and of each of its connections."""

    client_id: str = "tidelog"
    connect_timeout_ms: int = 10_000
    """The time to connect and agree on versions."""
    request_timeout_ms: int = 30_000
    """The time until the response, with the wait in the queue. After it the client closes the
    connection, since later responses would wait for the same one.
    """
    outstanding_max: int = 16
    """Sent requests of one connection without a response."""
    queued_max: int = 1_000
    """Queued requests of one connection."""
    response_bytes_max: int = 256 * 1024 * 1024
    metadata_age_ms_max: int = 300_000
    """The age after which a topic's metadata is requested again."""
    security: ClientSecurity | None = None
    """None: plain text without authentication."""
    topics_max: int = 10_000
    """Topics whose metadata is cached."""
