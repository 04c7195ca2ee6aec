"""Counts of requests to other brokers."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from tidelog.counts import counter


@dataclass(slots=True)
class PeerMetrics:
    """Counts by purpose: each connection carries requests of one purpose."""

    requests: Counter[str] = counter(
        "tidelog_peer_requests", "Requests to other brokers.", "purpose", new=Counter
    )
    failures: Counter[str] = counter(
        "tidelog_peer_request_failures",
        "Requests to other brokers without a usable answer.",
        "purpose",
        new=Counter,
    )
