"""Opened tenures, told to the metadata log lazily and in groups (rule C2)."""

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
    """What the log should hear of these openings by incarnation `epoch`: those that are still its
    current tenures and still name something that is no longer needed; None if there are none."""
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


class Openings:
    """Collects the partitions that were opened, and tells the log of them together, when they are
    in a checkpoint; not as soon as their images are durable.

    Late is never wrong: until the log knows, it keeps the earlier tenures and their objects. As it
    is, whoever collects garbage finds what a partition refers to in checkpoints and hand-over
    objects alone, and need not read WALs (F1).
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
        """Partitions that were opened and of which the log has not heard."""
        return len(self._opened)

    def add(self, partition: TopicPartition, leader_epoch: LeaderEpoch, slot: Slot) -> None:
        """The image that opens this tenure lies in this slot of the incarnation's WAL."""
        self._opened[partition] = leader_epoch, slot

    async def flush(self) -> None:
        """Tell the log of those that are in a checkpoint. If it fails they are kept for the next
        time."""
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
        """Flush at intervals, for ever. Faults of the store, and a log that takes no more changes
        now, are logged; the rest is raised."""
        while True:
            await self._clock.sleep(self._interval_seconds)
            try:
                await self.flush()
            except (Refused, StoreError) as error:
                logger.warning(
                    "opened tenures could not be told to the metadata log",
                    extra={"partitions": len(self._opened), "why": str(error)},
                )
