"""What a broker's settings say to the transaction coordinator."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TransactionCoordinatorSettings:
    """Defaults are Kafka's, where Kafka has the setting."""

    timeout_ms_max: int = 15 * 60_000
    """The longest timeout that a producer may ask for (`transaction.max.timeout.ms`)."""
    timeout_check_interval_ms: int = 10_000
    id_expiration_ms: int = 7 * 24 * 60 * 60_000
    """How long an idle transactional id is remembered (`transactional.id.expiration.ms`)."""
    expiry_check_interval_ms: int = 60 * 60_000
    check_transactions_max: int = 1_000
    """How many timed-out transactions or expired ids are dealt with at a time."""
    check_pause_ms: int = 50
    """How long others have the broker to themselves before the rest is dealt with."""
    id_length_max: int = 1024
    """Of a transactional id, in characters."""
    partitions_max: int = 20_000
    """Of one transaction: its record holds them all."""
