"""Opens the partitions that this incarnation took over, soon after it recovered them (rule C2).

A partition that is not opened is rebuilt from the tenure before. Its WALs must be read at each
start until the partition is opened again. Most partitions are idle, and no producer opens them. So
this task does it. It writes opening images into the WAL, then a checkpoint, and tells the metadata
log, which forgets the earlier tenures (`TenureReports`). From then on a start reads only this WAL.

Thousands of images make a large object. So they are written in groups, and each group waits until
the previous one is durable. The partitions with the oldest bases come first: if each process opens
k of n partitions before it dies, no partition has more than n / k + 1 WALs to replay.

The effects of failures:

- The process dies before a group is durable: those partitions keep their base in an earlier tenure.
- It dies after that, before the checkpoint: the successor finds the images in this WAL.
- It dies before the metadata log learns of it: the log names tenures that no start reads any more.
- The checkpoint cannot be stored: the task retries. Only the next start depends on it.
- The incarnation was fenced: the put of the slot meets the seal, and the WAL ends.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Mapping
from typing import NoReturn

from tidelog.broker.append.write_path import WritePath
from tidelog.broker.partitions.partitions import Partition
from tidelog.clock import Clock
from tidelog.coordinator.cluster.state.state import ClusterState
from tidelog.errors import Refused
from tidelog.identifiers import TopicPartition
from tidelog.storage.object_store import StoreError
from tidelog.wal.log.image import PartitionImage

logger = logging.getLogger(__name__)

PARTITIONS_AT_ONCE_MAX = 256
EXTENTS_AT_ONCE_MAX = 20_000
"""The extents in the images of one group; about 2 MiB."""
PAUSE_SECONDS = 0.1
"""The pause between two groups: a group occupies the event loop for some milliseconds."""
RETRY_SECONDS = 1.0


class InheritedPartitions:
    """Opens one incarnation's inherited partitions; `run` is its task."""

    def __init__(self, clock: Clock, writes: WritePath, state: Callable[[], ClusterState]) -> None:
        self._clock = clock
        self._writes = writes
        self._state = state
        self._waiting: deque[TopicPartition] = deque()
        self._news = asyncio.Event()

    @property
    def is_done(self) -> bool:
        """Whether no partition waits for its opening image or for the report of it."""
        return not self._waiting and not self._writes.tenure_reports.waiting

    def add(self, images: Mapping[TopicPartition, PartitionImage]) -> None:
        """Open these recovered partitions.

        The images' epochs are those of the tenures with the bases.
        """
        unopened = self._state().unopened(self._writes.wal.incarnation.epoch)
        places = [(images[p].leader_epoch - epoch, p) for p, epoch in unopened if p in images]
        self._waiting.extend(place for _, place in sorted(places))
        self._news.set()

    async def run(self) -> NoReturn:
        """Open the added partitions, until cancelled. Raises WalLost."""
        while True:
            await self._news.wait()
            self._news.clear()
            await self._open_all()

    async def _open_all(self) -> None:
        """Open all, write a checkpoint, tell the metadata log."""
        while self._waiting:
            self.open_some()
            await self._writes.durable()
            if self._waiting:
                await self._clock.sleep(PAUSE_SECONDS)
        while self._writes.tenure_reports.waiting:
            try:
                await self._writes.checkpointer.checkpoint()
                await self._writes.tenure_reports.flush()
                return
            except (Refused, StoreError) as error:
                logger.warning(
                    "the checkpoint of opened partitions failed; the broker retries",
                    extra={"partitions": self._writes.tenure_reports.waiting, "why": str(error)},
                )
                await self._clock.sleep(RETRY_SECONDS)

    def open_some(self) -> None:
        """Write the next group of opening images."""
        opened = extents = 0
        withheld: list[TopicPartition] = []
        while self._waiting and opened < PARTITIONS_AT_ONCE_MAX and extents < EXTENTS_AT_ONCE_MAX:
            place = self._waiting.popleft()
            if self._is_given_away(place):
                withheld.append(place)
                continue
            hosted = self._partition(place)
            if hosted is not None:
                self._writes.log_writer.open(hosted)
                opened += 1
                extents += len(hosted.log.extents)
        self._waiting.extend(withheld)

    def _is_given_away(self, place: TopicPartition) -> bool:
        """Whether the partition is about to leave. It stays if the move is refused."""
        partitions = self._writes.partitions
        return partitions.get(place) is None and partitions.held(place) is not None

    def _partition(self, place: TopicPartition) -> Partition | None:
        """The partition; None if it is open already, cannot be served, or is gone."""
        hosted = self._writes.partitions.get(place)
        if hosted is None or hosted.fault is not None or hosted.opened:
            return None
        return hosted
