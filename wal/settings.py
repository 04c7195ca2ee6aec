"""The WAL's settings."""

from __future__ import annotations

from dataclasses import dataclass

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class WalSettings:
    """Group commit, upload and checkpoint settings."""

    linger_ms: int = 5
    """`wal.linger.ms`: how long a slot stays open while other slots are uploaded."""
    object_bytes_max: int = 8 * MIB
    """`wal.object.max.bytes`: a slot of this size is uploaded at once. A larger batch gets a slot
    of its own."""
    uploads_in_flight_max: int = 64
    """`wal.uploads.in.flight.max`."""
    puts_a_second_max: int = 0
    """`wal.puts.per.second.max`: limits the PUTs of slots that are not full; 0 means no limit."""
    buffer_bytes_max: int = 64 * MIB
    """`wal.buffer.max.bytes`: limits the bytes that are not durable yet."""
    upload_deadline_ms: int = 30_000
    """A slot that is not durable after this time ends the incarnation. It must stay below half of
    `log.delete.grace.ms` (rule A2)."""
    checkpoint_interval_bytes: int = 256 * MIB
    """`wal.checkpoint.interval.bytes`: about the most bytes that a recovery replays."""
    checkpoint_interval_slots: int = 1_000
    """`wal.checkpoint.interval.slots`: about the most objects that a recovery reads."""
