"""Counts of throttled clients."""

from __future__ import annotations

from dataclasses import dataclass

from tidelog.broker.telemetry.metrics import SECONDS_BOUNDS, Counts
from tidelog.counts import Durations, counter, gauge, histogram


@dataclass(slots=True)
class QuotaMetrics:
    """Counts of requests and connections that quotas delay."""

    throttled: Counts = counter(
        "tidelog_throttled_requests", "Requests over a quota, by the quota.", "quota", new=Counts
    )
    seconds: Durations = histogram(
        "tidelog_throttle_seconds",
        "Times for which connections start no requests because of a quota.",
        (*SECONDS_BOUNDS, 30.0, 60.0),
    )
    busy_seconds: float = counter(
        "tidelog_request_share_seconds",
        "The event loop's time for requests of clients with a quota of request share.",
        new=float,
    )
    accepts_delayed: int = counter(
        "tidelog_connections_delayed",
        "Connections accepted later because of max.connection.creation.rate.",
    )
    connections: int = gauge(
        "tidelog_connections_throttled", "Connections that wait because of a quota."
    )
