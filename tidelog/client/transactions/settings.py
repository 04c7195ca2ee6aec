"""What can be set about a transactional producer."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from tidelog.client.patience import ClientRetrySettings


class TransactionVersion(enum.IntEnum):
    """How a producer and its brokers speak of transactions."""

    V1 = 1
    """Partitions are enlisted by AddPartitionsToTxn."""
    V2 = 2
    """Partitions are enlisted by Produce; each transaction has an epoch of its own (KIP-890)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionalProducerSettings:
    """Kafka's producer settings of the same names, with its defaults."""

    transaction_timeout_ms: int = 60_000
    """After which the coordinator aborts a transaction that was not ended."""
    delivery_timeout_ms: int = 120_000
    """How long a batch is repeated."""
    api_timeout_ms: int = 60_000
    """How long every other request is repeated (Kafka's max.block.ms)."""
    retries: ClientRetrySettings = field(
        default_factory=lambda: ClientRetrySettings(backoff_ms_min=20)
    )
    version: TransactionVersion | None = None
    """None: what the cluster says."""
