"""What can be set about a client."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ClientSettings:
    """Limits and times of a client and of each of its connections."""

    client_id: str = "tidelog"
    connect_timeout_ms: int = 10_000
    """Until a connection is made and versions are agreed upon."""
    request_timeout_ms: int = 30_000
    """Until an answer comes, the time in the queue included. The connection is then given up, since
    what follows on it would wait for the same answer."""
    outstanding_max: int = 16
    """Requests of one connection that wait for an answer."""
    queued_max: int = 1_000
    """Requests of one connection that wait to be sent."""
    response_bytes_max: int = 256 * 1024 * 1024
    metadata_age_ms_max: int = 300_000
    """After which what is known of a topic is asked for again."""
    topics_max: int = 10_000
    """Topics whose metadata is kept."""
