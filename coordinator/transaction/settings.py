"""The transaction coordinator's settings."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TransactionCoordinatorSettings:
    """Defaults are Kafka's, for settings that Kafka has."""

    timeout_ms_max: int = 15 * 60_000
    """The longest timeout that a producer may request (`transaction.max.timeout.ms`)."""
    timeout_check_interval_ms: int = 10_000
    id_expiration_ms: int = 7 * 24 * 60 * 60_000
    """How long an idle transactional id is kept (`transactional.id.expiration.ms`)."""
    expiry_check_interval_ms: int = 60 * 60_000
    check_transactions_max: int = 1_000
    """Timed-out transactions or expired ids that one check handles."""
    check_pause_ms: int = 50
    """The pause before the next check handles the rest."""
    id_length_max: int = 1024
    """The length of a transactional id, in characters."""
    partitions_max: int = 20_000
    """Partitions of one transaction: its record holds them all."""
