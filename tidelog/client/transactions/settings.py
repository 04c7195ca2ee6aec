"""Settings of a transactional producer."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from tidelog.client.patience import ClientRetrySettings


class TransactionVersion(enum.IntEnum):
    """The version of the transaction protocol."""

    V1 = 1
    """AddPartitionsToTxn enlists partitions."""
    V2 = 2
    """Produce enlists partitions, and each transaction has an epoch of its own (KIP-890)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionalProducerSettings:
    """Kafka's producer settings of the same names, with its defaults."""

    transaction_timeout_ms: int = 60_000
    """The time after which the coordinator aborts an open transaction."""
    delivery_timeout_ms: int = 120_000
    """The time limit for retries of a batch."""
    api_timeout_ms: int = 60_000
    """The time limit for retries of other requests (Kafka's max.block.ms)."""
    retries: ClientRetrySettings = field(
        default_factory=lambda: ClientRetrySettings(backoff_ms_min=20)
    )
    version: TransactionVersion | None = None
    """None: the cluster's version."""
