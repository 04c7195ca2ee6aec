"""Delivers the markers of decided transactions to the partitions' leaders; tells the coordinator.

The broker writes markers for its own partitions at once, right behind the decision in the same WAL,
and the completion follows: a commit is one slot (rule H3). It retries markers that it cannot write
yet: a group coordinator is loading its log, or another broker leads the partition.

If the process dies before the decision is durable, no client was told of it. The markers lie behind
the decision in the same WAL, so they are lost with it. If it dies later, the successor finds the
transaction decided and not complete, and sends all markers again. The ordinal identifies markers
that a partition has already (H1). An old owner that wakes up finds its WAL sealed.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from dataclasses import dataclass
from functools import partial
from typing import NoReturn, TypeAlias

from tidelog.broker.coordinate.marker_writer import MarkerWriter
from tidelog.broker.partitions.log_writer import EndedTransaction
from tidelog.broker.partitions.partitions import PartitionError, PartitionRegistry
from tidelog.clock import Clock
from tidelog.coordinator.runtime import CoordinatorRuntime, RuntimeState
from tidelog.coordinator.transaction.commands import Command, MarkersSettled, Reply
from tidelog.coordinator.transaction.decision import Markers
from tidelog.coordinator.transaction.log_records import TransactionRecord
from tidelog.coordinator.transaction.transaction import EnlistedPartition
from tidelog.crash_points import CrashPoint, CrashPoints
from tidelog.identifiers import Slot
from tidelog.protocol.error_codes import ErrorCode
from tidelog.wal.write.writer import WalWriter

logger = logging.getLogger(__name__)

TransactionRuntime: TypeAlias = CoordinatorRuntime[Command, TransactionRecord, Reply]

RETRY_SECONDS = 0.1
_NEVER_WRITTEN = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.TRANSACTION_COORDINATOR_FENCED,
    }
)
"""The partition is gone or has seen a newer epoch: it will never take this marker."""


@dataclass(frozen=True, slots=True)
class _Unwritten:
    """Markers of a decided transaction that some partitions still lack."""

    runtime: TransactionRuntime
    markers: Markers
    partitions: frozenset[EnlistedPartition]


class MarkerDelivery:
    """Writes transaction markers. `run` is its task: it retries failed markers."""

    def __init__(
        self,
        writer: MarkerWriter,
        partitions: PartitionRegistry,
        wal: WalWriter,
        clock: Clock,
        crash_points: CrashPoints,
    ) -> None:
        self._writer = writer
        self._partitions = partitions
        self._wal = wal
        self._clock = clock
        self._crash_points = crash_points
        self._unwritten: deque[_Unwritten] = deque()
        self._wake = asyncio.Event()

    @property
    def unwritten(self) -> int:
        """The number of decided transactions that lack markers."""
        return len(self._unwritten)

    def deliver(self, runtime: TransactionRuntime, markers: Markers) -> None:
        """Write the markers of the decision that the runtime has just appended."""
        self._write(_Unwritten(runtime, markers, markers.partitions))

    async def run(self) -> NoReturn:
        """Retry the remaining markers every RETRY_SECONDS."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            await self._clock.sleep(RETRY_SECONDS)
            for _ in range(len(self._unwritten)):
                each = self._unwritten.popleft()
                if each.runtime.state is RuntimeState.READY:
                    self._write(each)

    def _write(self, wanted: _Unwritten) -> None:
        markers = wanted.markers
        decided = self._wal.newest_slot
        slots: set[Slot] = set()
        left: set[EnlistedPartition] = set()
        for enlisted in sorted(wanted.partitions):
            try:
                partition = self._partitions.named(*enlisted)
                slots.add(self._writer.write(partition, ended_transaction(markers)))
            except PartitionError as error:
                if error.code not in _NEVER_WRITTEN:
                    left.add(enlisted)
                    logger.info(
                        "a transaction's marker could not be written yet",
                        extra={"partition": f"{enlisted}", "why": str(error)},
                    )
        if left:
            self._unwritten.append(_Unwritten(wanted.runtime, markers, frozenset(left)))
            self._wake.set()
        self._settle(wanted, wanted.partitions - left)
        self._mark_moments(decided, slots)

    def _settle(self, wanted: _Unwritten, partitions: frozenset[EnlistedPartition]) -> None:
        """Report the markers to the coordinator. Its completion follows them in the same WAL."""
        if not partitions:
            return
        markers = wanted.markers
        settled = MarkersSettled(
            transactional_id=markers.transactional_id,
            producer_id=markers.producer_id,
            ordinal=markers.ordinal,
            partitions=partitions,
        )
        # A stopped coordinator gives no answer: retrieve the error, so that the loop logs none.
        wanted.runtime.submit(settled).add_done_callback(lambda done: done.exception())

    def _mark_moments(self, decided: Slot, markers: set[Slot]) -> None:
        """Hit the crash points between the steps whose entries lie in different slots."""
        if not markers:
            return
        first, last = min(markers), max(markers)
        for point, slot, following in (
            (CrashPoint.PREPARE_DURABLE, decided, first),
            (CrashPoint.BETWEEN_MARKERS, first, last),
            (CrashPoint.MARKERS_DURABLE, last, self._wal.newest_slot),
        ):
            if slot < following:
                self._wal.durable(slot).add_done_callback(partial(self._hit, point))

    def _hit(self, point: CrashPoint, durable: asyncio.Future[None]) -> None:
        if not durable.cancelled() and durable.exception() is None:
            self._crash_points.hit(point)


def ended_transaction(markers: Markers) -> EndedTransaction:
    """The end of a decided transaction, in the form that its partitions get."""
    return EndedTransaction(
        markers.producer_id,
        markers.producer_epoch,
        markers.commit,
        markers.coordinator_epoch,
        markers.ordinal,
        markers.transaction_version,
    )
