"""Opens the partitions that this incarnation took over, soon after its start (rule C2).

A partition that is not opened is rebuilt from the tenure before. Its WALs must be read at each
start until the partition is opened again. Most partitions are idle, and no producer opens them. So
this task does it: it writes opening images into the WAL, then a checkpoint, and tells the metadata
log, which forgets the earlier tenures (`Openings`). From then on a start reads this WAL alone.

Thousands of images make a large object. So they are written some at a time, and each group waits
until the one before is durable. The partitions whose base lies furthest back come first: if each
process opens k of n partitions before it dies, none has more than n / k + 1 WALs to go through.

What happens when something fails:

- The process dies before a group is durable: those partitions keep their base in an earlier tenure.
- It dies behind that, before the checkpoint: the successor finds the images in this WAL.
- It dies before the metadata log hears of it: the log names tenures that nobody reads any more.
- The checkpoint cannot be stored: it is tried again. Nothing depends on it but the next start.
- The incarnation was fenced: the slot meets the seal, and the WAL ends.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Mapping

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
"""In the images of one group; about 2 MiB."""
PAUSE_SECONDS = 0.1
"""Between two groups: a group takes the event loop some milliseconds."""
RETRY_SECONDS = 1.0


class InheritedPartitions:
    """One incarnation's. `run` is its task; it ends when all are opened."""

    def __init__(
        self,
        clock: Clock,
        writes: WritePath,
        state: ClusterState,
        images: Mapping[TopicPartition, PartitionImage],
    ) -> None:
        """`state`: of the cluster as of the start: which partitions were taken over. `images`: as
        they were recovered, of the tenures that had their bases."""
        self._clock = clock
        self._writes = writes
        unopened = state.unopened(writes.wal.incarnation.epoch)
        places = [(images[p].leader_epoch - epoch, p) for p, epoch in unopened if p in images]
        self._waiting = deque(place for _, place in sorted(places))

    async def run(self) -> None:
        """Open all, checkpoint them, tell the metadata log. Raises WalLost."""
        while self._waiting:
            self.open_some()
            await self._writes.durable()
            if self._waiting:
                await self._clock.sleep(PAUSE_SECONDS)
        while self._writes.openings.waiting:
            try:
                await self._writes.checkpointer.checkpoint()
                await self._writes.openings.flush()
                return
            except (Refused, StoreError) as error:
                logger.warning(
                    "opened partitions could not be checkpointed; it will be tried again",
                    extra={"partitions": self._writes.openings.waiting, "why": str(error)},
                )
                await self._clock.sleep(RETRY_SECONDS)

    def open_some(self) -> None:
        """Write the next group of opening images."""
        opened = extents = 0
        while self._waiting and opened < PARTITIONS_AT_ONCE_MAX and extents < EXTENTS_AT_ONCE_MAX:
            hosted = self._partition(self._waiting.popleft())
            if hosted is not None:
                self._writes.log_writer.open(hosted)
                opened += 1
                extents += len(hosted.log.extents)

    def _partition(self, place: TopicPartition) -> Partition | None:
        """None if it is opened already, cannot be served, or is gone."""
        hosted = self._writes.partitions.get(place)
        if hosted is None or hosted.fault is not None or hosted.opened:
            return None
        return hosted
