"""Reports opened tenures to the metadata log, lazily and in groups (rule C2)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import NoReturn

from tidelog.clock import Clock
from tidelog.coordinator.cluster.log.metadata_log import MetadataLog
from tidelog.coordinator.cluster.records.records import OpenedTenures, TenuresOpened
from tidelog.coordinator.cluster.state.state import ClusterState
from tidelog.errors import Refused
from tidelog.identifiers import Epoch, Incarnation, LeaderEpoch, Slot, TopicId, TopicPartition
from tidelog.storage.object_store import StoreError

logger = logging.getLogger(__name__)


def opened_record(
    state: ClusterState, epoch: Epoch, opened: Mapping[TopicPartition, LeaderEpoch]
) -> TenuresOpened | None:
    """The record of these tenures, opened by incarnation `epoch`; None if none is worth a record.

    Worth recording are current tenures of the incarnation that still name an earlier tenure or a
    hand-over image.
    """
    groups: dict[tuple[TopicId, LeaderEpoch], list[int]] = {}
    for partition, leader_epoch in opened.items():
        tenures = state.tenures(partition)
        if not tenures:
            continue
        current = tenures[-1]
        is_ours = (current.incarnation.epoch, current.leader_epoch) == (epoch, leader_epoch)
        if is_ours and (len(tenures) > 1 or current.handover is not None):
            groups.setdefault((partition.topic_id, leader_epoch), []).append(partition.partition)
    if not groups:
        return None
    return TenuresOpened(
        tuple(
            [
                OpenedTenures(topic_id, leader_epoch, tuple(sorted(partitions)))
                for (topic_id, leader_epoch), partitions in groups.items()
            ]
        )
    )


class TenureReports:
    """Collects opened partitions and reports them together, once a checkpoint has them.

    A late report is never wrong: until then the log keeps the earlier tenures and their objects.
    Reports wait for a checkpoint, not only for durable images. So the collector finds a partition's
    references in checkpoints and hand-over objects alone, and need not read WALs (F1).
    """

    def __init__(
        self,
        log: MetadataLog,
        clock: Clock,
        incarnation: Incarnation,
        floor: Callable[[], Slot | None],
        interval_ms: int = 1000,
    ) -> None:
        """`floor`: the slot of the incarnation's newest checkpoint."""
        self._log = log
        self._clock = clock
        self._epoch = incarnation.epoch
        self._floor = floor
        self._interval_seconds = interval_ms / 1000
        self._opened: dict[TopicPartition, tuple[LeaderEpoch, Slot]] = {}

    @property
    def waiting(self) -> int:
        """The number of opened partitions that the log does not know of."""
        return len(self._opened)

    def add(self, partition: TopicPartition, leader_epoch: LeaderEpoch, slot: Slot) -> None:
        """The image that opens this tenure lies in this slot of the incarnation's WAL."""
        self._opened[partition] = leader_epoch, slot

    async def flush(self) -> None:
        """Report the tenures that a checkpoint has. After a failure they wait for the next call."""
        floor = self._floor() or Slot(0)
        told = {p: epoch for p, (epoch, slot) in self._opened.items() if slot < floor}
        if not told:
            return

        def build(state: ClusterState) -> tuple[TenuresOpened, ...]:
            record = opened_record(state, self._epoch, told)
            return () if record is None else (record,)

        if build(self._log.state):
            await self._log.append(self._epoch, build)
        for partition, leader_epoch in told.items():
            if partition in self._opened and self._opened[partition][0] == leader_epoch:
                del self._opened[partition]

    async def run(self) -> NoReturn:
        """Flush at intervals, for ever.

        Errors of the store and a refusing log are logged; other errors are raised.
        """
        while True:
            await self._clock.sleep(self._interval_seconds)
            try:
                await self.flush()
            except (Refused, StoreError) as error:
                logger.warning(
                    "opened tenures could not be reported to the metadata log",
                    extra={"partitions": len(self._opened), "why": str(error)},
                )
