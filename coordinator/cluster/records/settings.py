"""The cluster's timings and limits, by their Kafka-style setting names."""

from __future__ import annotations

from dataclasses import dataclass

from tidelog.coordinator.cluster.records.records import SESSION_TIMEOUT_MS
from tidelog.errors import InvalidConfiguration

APPEND_TIMEOUT_MS = 30_000
DELETE_GRACE_MS_MIN = 5000
"""The minimum of `log.delete.grace.ms`.

After half of the grace a broker believes no answer and ends itself, so a shorter one would make its
own pauses fatal.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSettings:
    """Defaults for production. Raises InvalidConfiguration if settings contradict each other."""

    session_timeout_ms: int = SESSION_TIMEOUT_MS
    """broker.session.timeout.ms: a lease that does not change for this time is dead."""
    heartbeat_interval_ms: int = 2000
    """broker.heartbeat.interval.ms: how often a broker renews its lease."""
    lease_margin_ms: int = 2000
    """How much earlier than the session's end a broker stops trusting its own lease.

    The margin covers clocks with different rates, and a renewal that the network delivers after a
    later one.
    """
    delete_grace_ms: int = 600_000
    """log.delete.grace.ms: the least time from an object's obsolescence to its deletion (A2,
    F2)."""
    snapshot_interval_entries: int = 200
    """A snapshot of the metadata is due at each multiple of this entry number."""
    append_timeout_ms: int = APPEND_TIMEOUT_MS
    """How long an append may retry before its callers learn that it was not applied."""
    waiting_appends_max: int = 10_000
    """The metadata changes that may wait in one broker."""

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if getattr(self, name) <= 0:
                raise InvalidConfiguration(f"{name} is {getattr(self, name)}; it must be above 0")
        if self.heartbeat_interval_ms > self.session_timeout_ms - self.lease_margin_ms:
            raise InvalidConfiguration(
                f"broker.heartbeat.interval.ms ({self.heartbeat_interval_ms}) leaves no time to"
                f" renew a lease within broker.session.timeout.ms ({self.session_timeout_ms}) less"
                f" a margin of {self.lease_margin_ms} ms; set it to a third of the session timeout"
            )
        if self.append_timeout_ms >= self.delete_grace_ms // 2:
            raise InvalidConfiguration(
                f"log.delete.grace.ms ({self.delete_grace_ms}) must be more than twice the time"
                f" that an append may take ({self.append_timeout_ms} ms)"
            )


def append_timeout_ms_within(delete_grace_ms: int) -> int:
    """How long an append may retry with this grace: less than half of it (rule A2)."""
    return min(APPEND_TIMEOUT_MS, delete_grace_ms // 3)
