"""The WAL's settings, by the names that an operator gives them."""

from __future__ import annotations

from dataclasses import dataclass

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class WalSettings:
    """How batches are grouped into objects, and how much may wait."""

    linger_ms: int = 5
    """`wal.linger.ms`: how long a slot is filled while others are being uploaded."""
    object_bytes_max: int = 8 * MIB
    """`wal.object.max.bytes`: a slot of this size is uploaded without waiting. One batch may be
    larger; then it has a slot to itself."""
    uploads_in_flight_max: int = 64
    """`wal.uploads.in.flight.max`."""
    puts_a_second_max: int = 0
    """`wal.puts.per.second.max`: of slots that are not full; 0 is no limit."""
    buffer_bytes_max: int = 64 * MIB
    """`wal.buffer.max.bytes`: what is not durable yet; above it there is no room."""
    upload_deadline_ms: int = 30_000
    """A slot that is not durable after this time ends the incarnation. Must stay below half of
    `log.delete.grace.ms` (rule A2)."""
    checkpoint_interval_bytes: int = 256 * MIB
    """`wal.checkpoint.interval.bytes`: about what a recovery has to replay at most."""
    checkpoint_interval_slots: int = 1_000
    """`wal.checkpoint.interval.slots`: about how many objects a recovery has to read at most."""
