"""What a broker's settings mean for the layers below it, which have settings of their own."""

from __future__ import annotations

from tidelog.broker.settings import BrokerSettings
from tidelog.coordinator.cluster.settings import ClusterSettings, append_timeout_ms_within
from tidelog.wal.settings import WalSettings


def cluster_settings(settings: BrokerSettings) -> ClusterSettings:
    """The cluster's timings as a broker is configured."""
    delete_grace_ms = settings.integer("log.delete.grace.ms")
    return ClusterSettings(
        session_timeout_ms=settings.integer("broker.session.timeout.ms"),
        heartbeat_interval_ms=settings.integer("broker.heartbeat.interval.ms"),
        delete_grace_ms=delete_grace_ms,
        append_timeout_ms=append_timeout_ms_within(delete_grace_ms),
    )


def wal_settings(settings: BrokerSettings) -> WalSettings:
    """The WAL's settings as a broker is configured."""
    return WalSettings(
        linger_ms=settings.integer("wal.linger.ms"),
        object_bytes_max=settings.integer("wal.object.max.bytes"),
        uploads_in_flight_max=settings.integer("wal.uploads.in.flight.max"),
        buffer_bytes_max=settings.integer("wal.buffer.max.bytes"),
        checkpoint_interval_bytes=settings.integer("wal.checkpoint.interval.bytes"),
        checkpoint_interval_slots=settings.integer("wal.checkpoint.interval.slots"),
    )
