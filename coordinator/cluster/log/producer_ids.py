"""Allocates producer ids from blocks that the metadata log assigns to one incarnation.

An operator may accept the loss of the log's end (`LogEndAccepted`). The lost entries may have given
out blocks, whose ids partitions and coordinators remember. An entry gives out one block at most. So
the next block begins behind all that the entries up to the lost end can have given out.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from tidelog.coordinator.cluster.log.metadata_log import MetadataLog
from tidelog.coordinator.cluster.records.records import ProducerIdsAllocated
from tidelog.coordinator.cluster.state.state import ClusterState
from tidelog.identifiers import Incarnation, ProducerId

BLOCK_IDS = 1000
"""The block size of Kafka's controller."""


@dataclass(frozen=True, slots=True)
class ProducerIdBlock:
    """The unused ids [first, end). Pure."""

    first: ProducerId
    end: ProducerId

    @property
    def is_empty(self) -> bool:
        """Whether a new block is needed."""
        return self.first >= self.end

    def take(self) -> tuple[ProducerId, ProducerIdBlock]:
        """The next id, and the block without it. Raises ValueError if there is none."""
        if self.is_empty:
            raise ValueError("all ids of the block are used")
        return self.first, ProducerIdBlock(ProducerId(self.first + 1), self.end)


EMPTY_BLOCK = ProducerIdBlock(ProducerId(0), ProducerId(0))


class ProducerIds:
    """Allocates ids that no other broker allocates.

    The rest of a block is never used after the incarnation ends.
    """

    def __init__(self, log: MetadataLog, incarnation: Incarnation) -> None:
        self._log = log
        self._epoch = incarnation.epoch
        self._block = EMPTY_BLOCK
        self._lock = asyncio.Lock()

    async def next(self) -> ProducerId:
        """A fresh producer id. Raises the errors of MetadataLog.append."""
        async with self._lock:
            if self._block.is_empty:
                self._block = await self._allocate()
            producer_id, self._block = self._block.take()
            return producer_id

    async def _allocate(self) -> ProducerIdBlock:
        allocated = EMPTY_BLOCK

        def build(state: ClusterState) -> tuple[ProducerIdsAllocated]:
            # The last call is the one whose record was appended.
            nonlocal allocated
            begin = max(state.next_producer_id, _end_of_lost(state))
            allocated = ProducerIdBlock(ProducerId(begin), ProducerId(begin + BLOCK_IDS))
            free = state.next_producer_id
            return (ProducerIdsAllocated(free, allocated.end - free),)

        await self._log.append(self._epoch, build)
        return allocated


def _end_of_lost(state: ClusterState) -> int:
    """The id behind all ids that lost entries can have given out; 0 if none is lost."""
    return max([(each.last + 1) * BLOCK_IDS for each in state.lost_entries], default=0)
