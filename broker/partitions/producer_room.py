"""Whether the partitions of a broker may remember one producer more."""

from __future__ import annotations

from typing import Final

from tidelog.broker.telemetry.limits_met import LimitsMet
from tidelog.protocol.error_codes import ErrorCode
from tidelog.records.batch import NO_PRODUCER_ID
from tidelog.wal.log.partition_log import PartitionLog
from tidelog.wal.log.producer_expiry import ProducerExpiry
from tidelog.wal.log.producer_state import AppendRefused

PRODUCER_IDS_MAX: Final = "producer.ids.max"


class ProducerRoom:
    """The limit on remembered producers. It holds for batches: a transaction's marker must be
    written, and what a predecessor remembered stays."""

    def __init__(self, producers: ProducerExpiry, limit: int, limits: LimitsMet) -> None:
        self._producers = producers
        self._limit = limit
        self._limits = limits
        limits.watch(PRODUCER_IDS_MAX, limit, lambda: producers.known)

    def check(self, log: PartitionLog, producer_id: int) -> None:
        """AppendRefused if the partition does not know the producer and there are too many."""
        if producer_id == NO_PRODUCER_ID or self._producers.known < self._limit:
            return
        if log.knows(producer_id):
            return
        why = (
            f"the partitions of this broker remember {self._producers.known} producers; at most"
            f" {self._limit} are accepted"
        )
        self._limits.met(PRODUCER_IDS_MAX, why)
        raise AppendRefused(
            ErrorCode.POLICY_VIOLATION, f"{why} ({PRODUCER_IDS_MAX}); nothing was appended"
        )
