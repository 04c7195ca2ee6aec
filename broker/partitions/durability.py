"""What happens in this broker when a WAL slot is durable, in order.

1. The tail cache gets the slot's bytes, so that readers find what they are about to be shown.
2. Each partition's log advances, its parked fetches wake up, and the roller hears of it.
3. Later listeners (the checkpointer) hear of the slot.

The WAL writer answers producers after that. If the process dies before any step, the successor
recovers the slot from the bucket: nothing here is durable.
"""

from __future__ import annotations

from collections.abc import Callable

from tidelog.broker.partitions.partitions import Partition, PartitionRegistry
from tidelog.wal.read.tail_cache import TailCache
from tidelog.wal.write.writer import DurableSlot


class DurableSlots:
    """Tells the broker's parts of each durable slot."""

    def __init__(
        self, tail: TailCache, partitions: PartitionRegistry, advanced: Callable[[Partition], None]
    ) -> None:
        """`advanced`: hears of each partition that has new durable records."""
        self._tail = tail
        self._partitions = partitions
        self._advanced = advanced
        self._listeners: list[Callable[[DurableSlot], None]] = []

    def listen(self, listener: Callable[[DurableSlot], None]) -> None:
        """Call `listener` with each slot, after the partitions have advanced."""
        self._listeners.append(listener)

    def tell(self, slot: DurableSlot) -> None:
        """A slot is durable."""
        self._tail.put(slot.key, slot.data)
        for advance in slot.advances:
            hosted = self._partitions.held(advance.partition)
            if hosted is None or hosted.log.leader_epoch != advance.leader_epoch:
                continue
            hosted.log.advance(advance)
            hosted.readers.wake_all()
            self._advanced(hosted)
        for listener in self._listeners:
            listener(slot)
