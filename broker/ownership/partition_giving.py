"""Gives partitions of this incarnation to other brokers (rule C3).

1. Refuse requests for the partitions, waiting ones too; stop their coordinators.
2. Wait until every append so far is durable.
3. Append one entry with a move for each partition. It names the slot of this WAL at which the
   partition's entries end, and the next offset.
4. Checkpoints go on holding the image until the receiver's opening image is durable. The receiver
   recovers the partition from them and from the WAL below the slot.

The effects of failures:

- The process dies before the entry: the partitions are still its own, and the takeover of this
  incarnation gives them to others, like all the rest.
- It dies after the entry: the receiver has them. It finds the last checkpoint and the slots behind.
- The receiver is fenced, or the topic is deleted: the metadata log refuses the move, and this
  broker serves the partition again.
- The store fails: the entry was not appended, and this broker serves the partitions again.
- The outcome of the entry is unknown: the metadata log reads until it is known, or ends this
  incarnation. Until then the partitions are not served.
- This incarnation is fenced: the entry is refused and the broker ends.
- The caller is cancelled: the partitions are given nevertheless, or served again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from tidelog.broker.append.write_path import WritePath
from tidelog.broker.partitions.partitions import Partition
from tidelog.coordinator.cluster.log.metadata_log import MetadataLog
from tidelog.coordinator.cluster.records.records import PartitionMoved
from tidelog.coordinator.cluster.state.state import ClusterState
from tidelog.errors import Refused
from tidelog.identifiers import Epoch, TopicPartition
from tidelog.storage.object_store import StoreError
from tidelog.wal.log.tenure import TenureEnd

logger = logging.getLogger(__name__)

Allows: TypeAlias = Callable[[ClusterState, TopicPartition, Epoch], bool]
"""Whether a partition may move to a receiver in a state."""


class PartitionGiving:
    """Gives partitions away. Calls may overlap; each partition is in one of them at most."""

    def __init__(
        self, metadata: MetadataLog, writes: WritePath, withheld: Callable[[], None]
    ) -> None:
        """`withheld`: called when partitions are no longer served, or are served again."""
        self._metadata = metadata
        self._writes = writes
        self._epoch = writes.wal.incarnation.epoch
        self._withheld = withheld
        self._under_way: dict[TopicPartition, Epoch] = {}
        self._begun: set[asyncio.Task[frozenset[TopicPartition]]] = set()

    async def give(
        self, receivers: Mapping[TopicPartition, Epoch], allows: Allows = lambda *_: True
    ) -> frozenset[TopicPartition]:
        """Give each partition to its receiver, and return those that were given.

        `allows`: whether a move may be appended to a state; asked once more at the append.

        The others are not served by this broker, are damaged, or have a receiver that is not live;
        they stay as they are. Raises WalLost or Fenced if the incarnation has ended, and StoreError
        after which all partitions are served again. A cancelled caller does not know the outcome.
        """
        giving = self._give(receivers, allows)
        begun = asyncio.create_task(giving, name="partitions are given away")
        self._begun.add(begun)
        begun.add_done_callback(self._ended)
        return await asyncio.shield(begun)

    def _ended(self, begun: asyncio.Task[frozenset[TopicPartition]]) -> None:
        self._begun.discard(begun)
        if not begun.cancelled():
            # A cancelled caller does not hear of the error; without this the loop would log it.
            begun.exception()

    @property
    def under_way(self) -> Mapping[TopicPartition, Epoch]:
        """The partitions that are being given, with their receivers."""
        return self._under_way

    @property
    def unmovable(self) -> frozenset[TopicPartition]:
        """The partitions that cannot be given: damaged ones, and those that are being opened."""
        registry = self._writes.partitions
        unopened = self._metadata.state.unopened(self._epoch)
        opening = (place for place, _ in unopened if registry.get(place) is None)
        return frozenset([*opening, *(each.log.partition for each in registry.faulty)])

    async def close(self) -> None:
        """Stop. The outcome of gifts that have begun stays unknown."""
        begun = tuple(self._begun)
        for task in begun:
            task.cancel()
        await asyncio.gather(*begun, return_exceptions=True)

    async def _give(
        self, receivers: Mapping[TopicPartition, Epoch], allows: Allows
    ) -> frozenset[TopicPartition]:
        registry = self._writes.partitions
        found = [registry.get(place) for place in receivers]
        giving = [each for each in found if each is not None and each.fault is None]
        for partition in giving:
            registry.suspend(partition)
        places = [partition.log.partition for partition in giving]
        self._under_way |= {place: receivers[place] for place in places}
        self._withheld()
        try:
            return await self._move_when_durable(giving, receivers, allows)
        finally:
            for place in places:
                del self._under_way[place]

    async def _move_when_durable(
        self,
        giving: Sequence[Partition],
        receivers: Mapping[TopicPartition, Epoch],
        allows: Allows,
    ) -> frozenset[TopicPartition]:
        await self._writes.durable()
        try:
            return await self._move(giving, receivers, allows)
        except (Refused, StoreError):
            # Nothing was appended. After another error the incarnation has ended: the partitions
            # stay withheld.
            self._resume(giving)
            raise

    async def _move(
        self,
        giving: Sequence[Partition],
        receivers: Mapping[TopicPartition, Epoch],
        allows: Allows,
    ) -> frozenset[TopicPartition]:
        slot = self._writes.wal.durable_end
        moves = [
            PartitionMoved(
                each.log.partition.topic_id,
                each.log.partition.partition,
                receivers[each.log.partition],
                None,
                each.log.leader_epoch,
                TenureEnd(slot, each.log.next_offset),
            )
            for each in giving
        ]

        def build(state: ClusterState) -> list[PartitionMoved]:
            return [
                move
                for move in moves
                if self._may_move(state, move)
                and allows(state, TopicPartition(move.topic_id, move.partition), move.owner)
            ]

        await self._metadata.append(self._epoch, build)
        state = self._metadata.state
        self._resume(giving)
        given = frozenset(
            each.log.partition for each in giving if not self._is_mine(state, each.log.partition)
        )
        logger.info("partitions were given away", extra={"partitions": len(given)})
        return given

    def _resume(self, giving: Sequence[Partition]) -> None:
        """Serve the partitions again that were not given; none is withheld after that."""
        for partition in giving:
            self._writes.partitions.resume(partition)
        self._withheld()

    def _may_move(self, state: ClusterState, move: PartitionMoved) -> bool:
        place = TopicPartition(move.topic_id, move.partition)
        return (
            self._is_mine(state, place)
            and move.owner != self._epoch
            and state.is_live(move.owner)
            and self._may_take(state, move.owner)
        )

    def _may_take(self, state: ClusterState, receiver: Epoch) -> bool:
        """A draining broker takes nothing, unless all others are draining or this one ends."""
        others = [info.epoch for info in state.takers() if info.epoch != self._epoch]
        return not others or receiver in others

    def _is_mine(self, state: ClusterState, place: TopicPartition) -> bool:
        tenure = state.leader(place)
        return tenure is not None and tenure.incarnation.epoch == self._epoch
