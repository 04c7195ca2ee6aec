"""Which images a checkpoint has to make anew: those of partitions that changed.

A checkpoint holds all partitions that were opened, most of which may be idle. A partition that
does not change from one checkpoint to the next settles: its image is encoded together with others'
as a block, which all later checkpoints copy. When one of a block changes, the block is given up and
the others settle again. So beyond copying bytes a checkpoint costs what changed since the last,
and for each partition that had settled at most a block's worth.
"""

from __future__ import annotations

from typing import NamedTuple

from tidelog.wal.format.image_codec import ImageBlock, encode_block
from tidelog.wal.log.image import PartitionImage
from tidelog.wal.log.partition_log import PartitionLog

BLOCK_PARTITIONS = 64


class SettledBlock:
    """Images of partitions that have not changed since; encoded when first asked for."""

    __slots__ = ("_encoded", "_images", "logs")

    def __init__(self, logs: list[PartitionLog]) -> None:
        self.logs = logs
        self._images: list[PartitionImage] = [log.image() for log in logs]
        self._encoded: ImageBlock | None = None

    def encoded(self) -> ImageBlock:
        """The block in binary form. For one caller at a time, in any thread."""
        if self._encoded is None:
            self._encoded = encode_block(self._images)
            self._images = []
        return self._encoded


class TakenImages(NamedTuple):
    """All images as of one moment."""

    settled: list[SettledBlock]
    others: list[tuple[PartitionLog, PartitionImage]]
    """To be completed by their logs when all that they count is durable."""


class CheckpointImages:
    """The partitions that checkpoints hold. A partition joins and leaves; `changed` is to be told
    whenever `PartitionLog.watch` says so."""

    def __init__(self) -> None:
        self._changed: dict[PartitionLog, None] = {}
        self._quiet: dict[PartitionLog, None] = {}
        self._blocks: dict[SettledBlock, None] = {}
        self._block_of: dict[PartitionLog, SettledBlock] = {}
        self.visited = 0
        """Partitions that were looked at, for all checkpoints together."""

    def __len__(self) -> int:
        """Partitions in the next checkpoint."""
        return len(self._changed) + len(self._quiet) + len(self._block_of)

    def __contains__(self, log: PartitionLog) -> bool:
        return log in self._changed or log in self._quiet or log in self._block_of

    @property
    def have_changed(self) -> bool:
        """Whether a partition differs from its last image."""
        return bool(self._changed)

    def add(self, log: PartitionLog) -> None:
        """Checkpoints hold this partition from now on."""
        if log not in self:
            self._changed[log] = None

    def discard(self, log: PartitionLog) -> None:
        """It is gone: deleted or given away."""
        self._unsettle(log)
        self._changed.pop(log, None)
        self._quiet.pop(log, None)

    def changed(self, log: PartitionLog) -> None:
        """It is not what its last image says."""
        if log in self._quiet or log in self._block_of:
            self._unsettle(log)
            self._quiet.pop(log, None)
            self._changed[log] = None

    def take(self) -> TakenImages:
        """The images of all partitions now."""
        settling: list[PartitionLog] = []
        for log in list(self._quiet):
            self.visited += 1
            # What is appended and not durable is missing from its extents yet.
            if log.high_watermark == log.next_offset:
                settling.append(log)
            if len(settling) == BLOCK_PARTITIONS:
                block = SettledBlock(settling)
                self._blocks[block] = None
                for settled in settling:
                    del self._quiet[settled]
                    self._block_of[settled] = block
                settling = []
        self.visited += len(self._changed)
        others = [(log, log.image()) for log in (*self._quiet, *self._changed)]
        self._quiet.update(self._changed)
        self._changed.clear()
        return TakenImages(list(self._blocks), others)

    def _unsettle(self, log: PartitionLog) -> None:
        block = self._block_of.get(log)
        if block is not None:
            del self._blocks[block]
            for member in block.logs:
                del self._block_of[member]
                self._quiet[member] = None
