"""Recovers the partitions that the metadata log gives to this incarnation (rules C5 to C7).

One step serves the start of the broker, each later takeover and each move alike. The metadata log
gives partitions in the record that retires their previous owner, or in a move (C3). The step reads
the bases and the WALs behind them, advances each log to its table's end, and lists the partitions.
Until then the broker refuses requests for them with NOT_LEADER_OR_FOLLOWER, and clients repeat
those.

The partitions of coordinators come first: groups and transactions wait for them. Of the others,
those come first that were written since the previous owners' newest checkpoints: their producers
wait. The WALs are read once for all groups.

The effects of failures:

- The process dies: nothing was written. The next owner gets a further tenure and does the same.
- The store fails: the step begins again.
- The incarnation is fenced meanwhile: the metadata log tells, and the broker ends. Its listed
  partitions accept no records, because the first append meets the seal.
- A partition is deleted or gets another tenure meanwhile: it is not listed.
- An object is missing or corrupt: its partitions are listed with their faults, and all others go
  on. The step reads the metadata log before that: a successor may have changed the objects.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from typing import NoReturn

from tidelog.broker.environment import BrokerEnvironment
from tidelog.broker.partitions.partitions import PartitionRegistry
from tidelog.broker.roll.recovered import RecoveredPartitions
from tidelog.clock import Clock
from tidelog.concurrency import read_all
from tidelog.coordinator.cluster.log.metadata_log import MetadataLog
from tidelog.coordinator.cluster.membership.departures import Departures
from tidelog.coordinator.cluster.records.records import (
    IncarnationRetired,
    PartitionMoved,
    Record,
)
from tidelog.coordinator.cluster.state.state import ClusterState
from tidelog.identifiers import Epoch, Incarnation, LeaderEpoch, TopicPartition
from tidelog.storage.object_store import StoreError
from tidelog.wal.log.image import PartitionImage
from tidelog.wal.recover.recovery import WALS_AT_ONCE_MAX, Recovered, recover
from tidelog.wal.recover.wal_reader import WalContent, WalReader

logger = logging.getLogger(__name__)

RETRY_SECONDS_FIRST = 0.1
RETRY_SECONDS_MAX = 5.0
TOGETHER_MAX = 256
"""So many partitions are recovered in one group, whether they were written lately or not."""
IDLE_TOGETHER_MAX = 512
"""So many more at a time. Meanwhile the broker answers requests for those that it has listed."""

Listed = Callable[[Mapping[TopicPartition, PartitionImage]], None]
"""Hears of partitions that were listed, with the images from which they were recovered."""


class PartitionRecovery:
    """Recovers and lists given partitions. `run` is the task for those given after the start."""

    def __init__(
        self,
        environment: BrokerEnvironment,
        metadata: MetadataLog,
        incarnation: Incarnation,
        partitions: PartitionRegistry,
        recovered: RecoveredPartitions,
        departures: Departures,
    ) -> None:
        self._environment = environment
        self._clock: Clock = environment.clock
        self._metadata = metadata
        self._incarnation = incarnation
        self._partitions = partitions
        self._recovered = recovered
        self._departures = departures
        self._given: dict[TopicPartition, LeaderEpoch] = {}
        """The partitions that are not listed yet, each with the epoch of its tenure."""
        self._news = asyncio.Event()
        self._listeners: list[Listed] = []
        state = metadata.state
        self._give(state.owned_by(incarnation.epoch))

    @property
    def waiting(self) -> int:
        """The number of given partitions that are not listed yet."""
        return len(self._given)

    @property
    def opening(self) -> Collection[TopicPartition]:
        """The given partitions that are not listed yet."""
        return self._given.keys()

    def subscribe(self, listener: Listed) -> None:
        """Call `listener` for each group of partitions that is listed from now on."""
        self._listeners.append(listener)

    def follow(self, records: Sequence[Record]) -> None:
        """Follow an entry of the metadata log that the partitions have followed."""
        for record in records:
            if isinstance(record, IncarnationRetired):
                given = given_to(self._incarnation.epoch, record)
                if given:
                    self._departures.opening_began()
                self._give(given)
            elif isinstance(record, PartitionMoved) and record.owner == self._incarnation.epoch:
                self._give([TopicPartition(record.topic_id, record.partition)])

    async def run(self) -> NoReturn:
        """Recover the partitions that this incarnation gets from now on, until cancelled.

        Raises the errors of a damaged metadata log, and UnsupportedFormat.
        """
        while True:
            await self._news.wait()
            self._news.clear()
            await self._retried()
            try:
                await self._recovered.load_ages()
            except StoreError as error:
                logger.warning("ages of records are unknown", extra={"why": str(error)})

    async def recover_given(self) -> None:
        """Recover all partitions given so far. Raises StoreError; then it may be called again."""
        state = self._metadata.state
        given = list(self._given)
        internal = [place for place in given if _is_internal(state, place)]
        others = [place for place in given if not _is_internal(state, place)]
        environment = self._environment
        reader = WalReader(environment.store, environment.offload, remembers=True)
        if internal:
            await self._recover(internal, reader)
        written: Container[TopicPartition] = ()
        if len(others) > TOGETHER_MAX:
            written = await self._written(state, others, reader)
        idle = [place for place in others if place not in written]
        if len(idle) < len(others):
            await self._recover([place for place in others if place in written], reader)
            self._departures.opened()
        for first in range(0, len(idle), IDLE_TOGETHER_MAX):
            await self._recover(idle[first : first + IDLE_TOGETHER_MAX], reader)
        self._departures.opened()

    async def _written(
        self, state: ClusterState, places: Iterable[TopicPartition], reader: WalReader
    ) -> frozenset[TopicPartition]:
        """The partitions with entries behind the newest checkpoint of a retired owner."""
        owners = {each.incarnation for place in places for each in state.tenures(place)[-2:-1]}
        ends = {wal.incarnation: wal.end_slot for wal in state.retired.values() if wal.end_slot}

        async def read(owner: Incarnation) -> WalContent:
            return await reader.read(owner, ends[owner])

        wals = sorted(owners & ends.keys())
        found = await read_all(read, wals, asyncio.Semaphore(WALS_AT_ONCE_MAX))
        return frozenset().union(*(content.written for content in found))

    async def _retried(self) -> None:
        pause = RETRY_SECONDS_FIRST
        while self._given:
            try:
                await self.recover_given()
            except StoreError as error:
                logger.warning(
                    "partitions could not be recovered yet",
                    extra={"partitions": len(self._given), "key": error.key, "why": str(error)},
                )
                await self._clock.sleep(pause)
                pause = min(2 * pause, RETRY_SECONDS_MAX)

    async def _recover(self, places: Sequence[TopicPartition], reader: WalReader) -> None:
        begun = {place: self._given[place] for place in places}
        found = await self._read(places, reader)
        for source, stamp in found.stamps.items():
            await self._metadata.verify(stamp, source)
        prepared = self._partitions.prepare(found.images, found.failures)
        await self._recovered.advance(prepared)
        if any(partition.fault is not None for partition in prepared):
            # A broker that was fenced meanwhile finds what its successors have made of the
            # partition. It has to learn of the fence before it judges.
            await self._metadata.refresh()
        adopted = self._partitions.adopt(prepared)
        for place, leader_epoch in begun.items():
            # A partition that was given again meanwhile stays.
            if self._given[place] == leader_epoch:
                del self._given[place]
        self._recovered.enter(adopted)
        images = {}
        for partition in adopted:
            place = partition.log.partition
            if place in found.images:
                images[place] = found.images[place]
            if partition.fault is not None:
                logger.error(
                    "a partition cannot be opened",
                    extra={
                        "partition": str(partition),
                        "key": partition.fault.key,
                        "why": partition.fault.why,
                    },
                )
        for listener in self._listeners:
            listener(images)

    async def _read(self, places: Iterable[TopicPartition], reader: WalReader) -> Recovered:
        state, environment = self._metadata.state, self._environment
        tenures = {place: state.tenures(place) for place in places}
        return await recover(
            environment.store,
            environment.clock,
            environment.offload,
            {place: known for place, known in tenures.items() if known},
            {wal.incarnation: wal.end_slot for wal in state.retired.values()},
            unopened=frozenset(state.never_written),
            reader=reader,
            opener=self._incarnation,
        )

    def _give(self, places: Iterable[TopicPartition]) -> None:
        state = self._metadata.state
        for place in places:
            tenure = state.leader(place)
            if tenure is not None:
                self._given[place] = tenure.leader_epoch
                self._news.set()


def given_to(epoch: Epoch, record: IncarnationRetired) -> list[TopicPartition]:
    """The partitions that the record gives to an incarnation."""
    return [
        TopicPartition(succession.topic_id, number)
        for succession in record.successors
        if succession.owner == epoch
        for number in succession.partitions
    ]


def _is_internal(state: ClusterState, place: TopicPartition) -> bool:
    topic = state.topics.get(place.topic_id)
    return topic is not None and topic.internal
