"""Decides that this broker renews its lease but cannot serve, and must end itself (rule B2). Pure.

Its watchers see a living broker, while no producer gets an answer: the store takes the lease and
refuses the WAL. But an upload may just be slow, or the store may be ill for all brokers. Then an
end would not help, and the deadline of the upload decides (`wal.write.writer`). So the broker ends
only if all of these hold for its session timeout:

- uploads are in flight, and none has succeeded, also not within four times the last one's duration;
- its own lease was renewed, and this process had no pause, both with gaps up to two heartbeats;
- the WAL of a watched broker had grown before: the store takes the uploads of others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tidelog.coordinator.cluster.membership.lease_watch import (
    GAP_HEARTBEATS_MAX,
    Look,
    Renewal,
)
from tidelog.errors import TidelogError
from tidelog.identifiers import Epoch, Slot

SLOWDOWN_MAX = 4
"""An upload that takes this many times as long as the last one is not merely slow."""


class CannotServe(TidelogError):
    """The broker ends itself, so that others take its partitions over."""


@dataclass(frozen=True, slots=True)
class Uploads:
    """The uploads of the own WAL up to now."""

    in_flight: int
    succeeded: int
    last_seconds: float
    """The duration of the last one that succeeded."""


NO_UPLOADS = Uploads(0, 0, 0.0)


@dataclass(frozen=True, slots=True)
class _Stall:
    """A time in which no upload succeeds."""

    succeeded: int
    asked_at: float
    """The last look."""
    ends: Mapping[Epoch, Slot]
    """The WALs' ends of the watched brokers when each was first seen in this time."""
    others_served_at: float | None = None
    """The first look at which one of them had grown."""


class ServiceWatch:
    """One broker's watch over its own service."""

    def __init__(self, session_seconds: float, heartbeat_seconds: float) -> None:
        self._session_seconds = session_seconds
        self._gap_seconds_max = GAP_HEARTBEATS_MAX * heartbeat_seconds
        self._stall: _Stall | None = None

    def cannot_serve(self, look: Look, uploads: Uploads, renewal: Renewal | None) -> bool:
        """Whether the broker must end itself, after a look at the watched brokers' leases.

        `renewal`: the last successful PUT of the own lease.
        """
        now, stall = look.asked_at, self._stall
        ends = {lease.epoch: lease.wal.durable_end for lease in look.leases.values() if lease}
        if (
            uploads.in_flight == 0
            or renewal is None
            or now - renewal.answered_at > self._gap_seconds_max
        ):
            self._stall = None
            return False
        if (
            stall is None
            or stall.succeeded != uploads.succeeded
            or now - stall.asked_at > self._gap_seconds_max
        ):
            self._stall = _Stall(uploads.succeeded, now, ends)
            return False
        grown = any(end > stall.ends.get(epoch, end) for epoch, end in ends.items())
        served_at = stall.others_served_at
        if served_at is None and grown:
            # Count from here: when an outage ends, the other brokers may recover a little earlier.
            served_at = now
        self._stall = _Stall(stall.succeeded, now, {**ends, **stall.ends}, served_at)
        patience = max(self._session_seconds, SLOWDOWN_MAX * uploads.last_seconds)
        return served_at is not None and now - served_at >= patience
