"""The limit on producers that a broker's partitions remember (producer.ids.max)."""

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
    """Refuses batches of new producers above the limit.

    Markers are exempt: the broker must write them. Producers that a predecessor remembered stay.
    """

    def __init__(self, producers: ProducerExpiry, limit: int, limits: LimitsMet) -> None:
        self._producers = producers
        self._limit = limit
        self._limits = limits
        limits.watch(PRODUCER_IDS_MAX, limit, lambda: producers.known)

    def check(self, log: PartitionLog, producer_id: int) -> None:
        """Raise AppendRefused at the limit, unless the partition knows the producer."""
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
