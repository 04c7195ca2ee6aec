"""Keeps the encoded images of unchanged partitions between checkpoints.

A checkpoint holds all open partitions, and most of them may be idle. A partition that does not
change between two checkpoints settles: its image is encoded in a block together with others, and
later checkpoints copy the block. When a partition of a block changes, the block is dropped and its
other partitions settle again. So the cost of a checkpoint depends on the partitions that changed,
beside copying bytes. A settled partition that changes costs at most one block.
"""

from __future__ import annotations

from typing import NamedTuple

from tidelog.wal.format.image_codec import ImageBlock, encode_block
from tidelog.wal.log.image import PartitionImage
from tidelog.wal.log.partition_log import PartitionLog

BLOCK_PARTITIONS = 64


class SettledBlock:
    """Images of unchanged partitions, encoded on first use."""

    __slots__ = ("_encoded", "_images", "logs")

    def __init__(self, logs: list[PartitionLog]) -> None:
        self.logs = logs
        self._images: list[PartitionImage] = [log.image() for log in logs]
        self._encoded: ImageBlock | None = None

    def encoded(self) -> ImageBlock:
        """The block in binary form. Any thread may call it, but only one at a time."""
        if self._encoded is None:
            self._encoded = encode_block(self._images)
            self._images = []
        return self._encoded


class TakenImages(NamedTuple):
    """The images of all partitions as of one moment."""

    settled: list[SettledBlock]
    others: list[tuple[PartitionLog, PartitionImage]]
    """Images that their logs complete once all slots that they cover are durable."""


class CheckpointImages:
    """The partitions that checkpoints hold.

    The owner adds and discards partitions, and passes `changed` to `PartitionLog.watch`.
    """

    def __init__(self) -> None:
        self._changed: dict[PartitionLog, None] = {}
        self._quiet: dict[PartitionLog, None] = {}
        self._blocks: dict[SettledBlock, None] = {}
        self._block_of: dict[PartitionLog, SettledBlock] = {}
        self._has_discarded = False
        self.visited = 0
        """Partitions that `take` visited, summed over all checkpoints."""

    def __len__(self) -> int:
        """The number of partitions in the next checkpoint."""
        return len(self._changed) + len(self._quiet) + len(self._block_of)

    def __contains__(self, log: PartitionLog) -> bool:
        return log in self._changed or log in self._quiet or log in self._block_of

    @property
    def have_changed(self) -> bool:
        """True if a partition differs from its last image, or is gone.

        The newest checkpoint keeps all that its images refer to, also those of partitions that are
        gone.
        """
        return bool(self._changed) or self._has_discarded

    def add(self, log: PartitionLog) -> None:
        """Include this partition in checkpoints."""
        if log not in self:
            self._changed[log] = None

    def discard(self, log: PartitionLog) -> None:
        """Remove a partition that was deleted or handed over."""
        self._has_discarded = self._has_discarded or log in self
        self._unsettle(log)
        self._changed.pop(log, None)
        self._quiet.pop(log, None)

    def changed(self, log: PartitionLog) -> None:
        """Note that the partition differs from its last image."""
        if log in self._quiet or log in self._block_of:
            self._unsettle(log)
            self._quiet.pop(log, None)
            self._changed[log] = None

    def take(self) -> TakenImages:
        """The current images of all partitions."""
        settling: list[PartitionLog] = []
        for log in list(self._quiet):
            self.visited += 1
            # Appended batches that are not durable are not in the extents yet.
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
        self._has_discarded = False
        return TakenImages(list(self._blocks), others)

    def _unsettle(self, log: PartitionLog) -> None:
        block = self._block_of.get(log)
        if block is not None:
            del self._blocks[block]
            for member in block.logs:
                del self._block_of[member]
                self._quiet[member] = None
