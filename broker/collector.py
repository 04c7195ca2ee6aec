"""Deletes what nobody can need any more (rules F1 to F3), after a grace.

Each broker goes through its own WAL, its merged objects and its checkpoints; the one with the
lowest id among the living also through all that has no living owner: WALs of retired incarnations,
state snapshots, hand-over images, tables. It does no harm if two take themselves for the lowest,
or if one goes by an old state: what may go, may go for ever (F2).

A pass lists objects, reads the metadata log, the newest checkpoints and the metadata log again,
judges (`bucket.reachability`) and marks. What was marked the grace ago, and at every pass since, is
deleted. Marks are in memory: a new process waits for the grace once more. If the process dies
anywhere, less is deleted. A deletion whose answer is lost is repeated.

Segments that no table lists, and tables of deleted topics, are looked for less often: that takes a
listing of all segments and a reading of all tables. A segment that may yet be committed is
kept until its table has gone on the grace after it was written; where the table does not go on by
itself, an empty commit is made (`TableLog.fence`).

Staged objects go when their batch is over (`staged_batches`), or by their age (H9): twice
`staged.retention.ms` after they were put, and when no slot that old is to be replayed any more,
nothing can come to refer to them.

Never deleted: what is not Tidelog's, leases (one a broker id), the lowest seal of a WAL. The
metadata log and the table logs are kept short by those who write them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import NoReturn, Protocol

from tidelog.broker.deletion import CollectorMetrics, Deleter, Marks
from tidelog.broker.staged_batches import Listing, StagedBatches
from tidelog.bucket.object_keys import (
    CHECKPOINT_FOLDER,
    HANDOVER_FOLDER,
    STAGED_FOLDER,
    WAL_FOLDER,
    BucketObject,
    CheckpointObject,
    MergedObject,
    StagedObject,
    StateObject,
    WalObject,
    parse_key,
)
from tidelog.bucket.reachability import (
    Anchor,
    Reachability,
    named_handovers,
    needed_incarnations,
    replayed_since_ms,
    same_tenures,
    unanchored,
)
from tidelog.clock import Clock
from tidelog.coordinator.cluster.prefix import LOG_PREFIX, LOG_SUFFIX, PROBE_FOLDER
from tidelog.coordinator.cluster.state import ClusterState
from tidelog.coordinator.snapshot_format import STATE_PREFIX
from tidelog.errors import CorruptObject, UnsupportedFormat
from tidelog.identifiers import Incarnation, Slot
from tidelog.offload import Offload
from tidelog.storage.object_store import ObjectMeta, ObjectNotFound, ObjectStore, StoreError
from tidelog.storage.sequence import NUMBER_DIGITS
from tidelog.wal.adoption import object_key
from tidelog.wal.checkpoint import checkpoint_key, checkpoint_prefix, decode_checkpoint
from tidelog.wal.image_codec import Images
from tidelog.wal.object_format import MERGED_FOLDER, merged_prefix, wal_prefix
from tidelog.wal.reading import read_all

logger = logging.getLogger(__name__)

LISTED_MAX = 100_000
"""Objects that one pass looks at; the lowest keys, so the oldest slots, come first."""
READS_AT_ONCE_MAX = 16
ATTEMPTS_MAX = 3
"""Against changes of ownership in the middle of a pass; the next one tries again."""


class Cluster(Protocol):
    """The metadata log."""

    @property
    def state(self) -> ClusterState:
        """As of the last look."""
        ...

    async def refresh(self) -> ClusterState:
        """Look again."""
        ...


class Collector:
    """One process's collections of what is not in tables. `run` is its task."""

    def __init__(
        self,
        store: ObjectStore,
        clock: Clock,
        offload: Offload,
        cluster: Cluster,
        incarnation: Incarnation,
        is_settled: Callable[[MergedObject, Slot], bool],
        interval_seconds: float,
        grace_seconds: float,
        staged_retention_ms: int,
        staged: StagedBatches,
        deleter: Deleter,
        metrics: CollectorMetrics,
    ) -> None:
        """`is_settled`: see `Reachability`; of other processes' objects it says no."""
        self._store = store
        self._clock = clock
        self._offload = offload
        self._cluster = cluster
        self._incarnation = incarnation
        self._is_settled = is_settled
        self._interval_seconds = interval_seconds
        self._grace_seconds = grace_seconds
        self._staged_retention_ms = staged_retention_ms
        self._staged = staged
        self._deleter = deleter
        self._metrics = metrics
        self._marks: Marks[str] = Marks(grace_seconds)
        # What was read in the pass before, by key and etag: most of it has not changed.
        self._checkpoints: dict[tuple[str, str], Anchor] = {}
        self._handovers: dict[tuple[str, str], Anchor] = {}

    async def run(self) -> NoReturn:
        """Collect at intervals, until cancelled."""
        while True:
            await self._clock.sleep(self._interval_seconds)
            try:
                await self.collect()
            except (StoreError, CorruptObject, UnsupportedFormat) as error:
                self._metrics.failures += 1
                logger.warning(
                    "a collection was given up; nothing more is deleted until the next",
                    extra={"key": getattr(error, "key", None), "why": str(error)},
                )

    async def collect(self) -> None:
        """One pass. Raises StoreError; CorruptObject and UnsupportedFormat, if what would tell what
        is needed cannot be read: then nothing is deleted."""
        await self._staged.look()
        listed = await self._list()
        self._staged.listed(_staged_listing(listed))
        reachability = await self._look(listed)
        if reachability is None:
            return
        superfluous = [
            key
            for key, (found, _) in listed.items()
            if self._is_ours(found, reachability.state) and reachability.may_go(key, found)
        ]
        due = self._marks.update(superfluous, self._clock.monotonic())
        self._metrics.marked["wal"] = len(self._marks)
        self._metrics.passes += 1
        await self._deleter.delete((key, listed[key][1].size) for key in due)

    async def _list(self) -> dict[str, tuple[BucketObject, ObjectMeta]]:
        me = self._incarnation
        prefixes = [wal_prefix(me), merged_prefix(me), checkpoint_prefix(me)]
        if is_lowest(self._cluster.state, me):
            prefixes = [
                WAL_FOLDER,
                MERGED_FOLDER,
                CHECKPOINT_FOLDER,
                HANDOVER_FOLDER,
                STAGED_FOLDER,
                STATE_PREFIX,
                PROBE_FOLDER,
            ]
        listed: dict[str, tuple[BucketObject, ObjectMeta]] = {}
        for prefix in prefixes:
            number = 0
            async for meta in self._store.list(prefix):
                found = parse_key(meta.key)
                if found is not None:
                    listed[meta.key] = found, meta
                number += 1
                if number >= LISTED_MAX:
                    break
        return listed

    def _is_ours(self, found: BucketObject, state: ClusterState) -> bool:
        """Whether it falls to this process: others that live go through their own."""
        match found:
            case WalObject(owner) | MergedObject(owner) | CheckpointObject(owner):
                return owner == self._incarnation or not state.is_live(owner.epoch)
        return True

    async def _look(
        self, listed: dict[str, tuple[BucketObject, ObjectMeta]]
    ) -> Reachability | None:
        """By what to judge what was listed before; None if that cannot be said now."""
        for _ in range(ATTEMPTS_MAX):
            state = await self._cluster.refresh()
            anchors = await self._read_anchors(needed_incarnations(state))
            handovers = await self._read_handovers(named_handovers(state))
            log_ms = await self._newest_entry_ms(state)
            if anchors is None or handovers is None:
                continue
            if not same_tenures(state, await self._cluster.refresh()):
                continue
            lost = next(unanchored(state, anchors), None)
            if lost is not None:
                raise CorruptObject(
                    checkpoint_prefix(state.tenures(lost)[0].incarnation),
                    f"no checkpoint has the tenure of partition {lost.partition} of topic"
                    f" {lost.topic_id} that the metadata log says was opened",
                )
            adoptable_ms = self._adoptable_ms(listed, state, anchors, log_ms)
            over = await self._over(listed, state, anchors, handovers)
            return Reachability(
                state=state,
                anchors=anchors,
                handover_objects=handovers,
                snapshots=newest_snapshots(found for found, _ in listed.values()),
                is_settled=self._is_settled,
                metadata_aged=partial(self._is_older, listed, log_ms),
                staged_over=partial(self._is_staged_over, listed, adoptable_ms, over),
            )
        logger.info("partitions change hands too fast for a collection; the next one looks again")
        return None

    async def _over(
        self,
        listed: dict[str, tuple[BucketObject, ObjectMeta]],
        state: ClusterState,
        anchors: Mapping[Incarnation, Anchor],
        handovers: frozenset[str],
    ) -> frozenset[str]:
        """The staged objects whose batch is over."""
        referenced = handovers.union(*(anchor.objects for anchor in anchors.values()))
        return await self._staged.judge(
            frozenset(key for key, (found, _) in listed.items() if isinstance(found, StagedObject)),
            frozenset(map(object_key, referenced)),
            needed_incarnations(state),
            anchors,
        )

    def _is_older(
        self, listed: dict[str, tuple[BucketObject, ObjectMeta]], time_ms: int, key: str
    ) -> bool:
        """Whether an object was put the grace before this time, both by the store's clock."""
        return time_ms - listed[key][1].modified_ms > self._grace_seconds * 1000

    def _adoptable_ms(
        self,
        listed: dict[str, tuple[BucketObject, ObjectMeta]],
        state: ClusterState,
        anchors: Mapping[Incarnation, Anchor],
        log_ms: int,
    ) -> int:
        """What was staged later may be referred to, or come to be; by the store's clock."""
        slots = [
            (found, meta.modified_ms)
            for found, meta in listed.values()
            if isinstance(found, WalObject)
        ]
        if len(slots) >= LISTED_MAX:
            # There may be more.
            return 0
        present_ms = max([log_ms, *(put_ms for _, put_ms in slots)])
        replayed_ms = replayed_since_ms(slots, needed_incarnations(state), anchors)
        until_ms = present_ms if replayed_ms is None else min(present_ms, replayed_ms)
        return until_ms - 2 * self._staged_retention_ms

    @staticmethod
    def _is_staged_over(
        listed: dict[str, tuple[BucketObject, ObjectMeta]],
        adoptable_ms: int,
        over: frozenset[str],
        key: str,
    ) -> bool:
        return key in over or listed[key][1].modified_ms < adoptable_ms

    async def _read_anchors(
        self, incarnations: Iterable[Incarnation]
    ) -> dict[Incarnation, Anchor] | None:
        """Their newest checkpoints; None if one was replaced while it was read."""
        newest: dict[Incarnation, tuple[Slot, str]] = {}
        async for meta in self._store.list(CHECKPOINT_FOLDER):
            found = parse_key(meta.key)
            if isinstance(found, CheckpointObject):
                newest[found.incarnation] = found.slot, meta.etag
        wanted = [
            (checkpoint_key(owner, newest[owner][0]), newest[owner][1])
            for owner in incarnations
            if owner in newest
        ]
        anchors = await self._read_all(wanted, self._checkpoints, self._decode_checkpoint)
        if anchors is None:
            return None
        self._checkpoints = dict(zip(wanted, anchors, strict=True))
        owners = [owner for owner in incarnations if owner in newest]
        return dict(zip(owners, anchors, strict=True))

    async def _read_handovers(self, keys: Iterable[str]) -> frozenset[str] | None:
        wanted = [(key, "") for key in sorted(keys)]
        images = await self._read_all(wanted, self._handovers, self._decode_images)
        if images is None:
            return None
        self._handovers = dict(zip(wanted, images, strict=True))
        return frozenset[str]().union(*(image.objects for image in images))

    async def _read_all(
        self,
        wanted: list[tuple[str, str]],
        known: Mapping[tuple[str, str], Anchor],
        decode: Callable[[str, bytes], Anchor],
    ) -> list[Anchor] | None:
        async def read(place: tuple[str, str]) -> Anchor | None:
            if place in known:
                return known[place]
            try:
                stored = await self._store.get(place[0])
            except ObjectNotFound:
                return None
            return await self._offload.run(decode, place[0], bytes(stored.data))

        found = await read_all(read, wanted, asyncio.Semaphore(READS_AT_ONCE_MAX))
        anchors = [anchor for anchor in found if anchor is not None]
        return anchors if len(anchors) == len(found) else None

    @staticmethod
    def _decode_checkpoint(key: str, data: bytes) -> Anchor:
        checkpoint = decode_checkpoint(key, data)
        return Anchor.of(checkpoint.slot, checkpoint.images)

    @staticmethod
    def _decode_images(key: str, data: bytes) -> Anchor:
        return Anchor.of(Slot(0), Images(key, data))

    async def _newest_entry_ms(self, state: ClusterState) -> int:
        """When the metadata log's newest entry was put; long ago if it was deleted already."""
        key = f"{LOG_PREFIX}{state.sequence:0{NUMBER_DIGITS}d}{LOG_SUFFIX}"
        try:
            return (await self._store.head(key)).modified_ms
        except ObjectNotFound:
            return 0


def is_lowest(state: ClusterState, incarnation: Incarnation) -> bool:
    """Whether this one has the lowest id of those that live."""
    living = state.live_brokers()
    return bool(living) and living[0].incarnation == incarnation


def _staged_listing(listed: Mapping[str, tuple[BucketObject, ObjectMeta]]) -> Listing:
    """What is to be known of a listing for the batches that are over; nothing of one that may have
    left out slots."""
    slots: dict[Incarnation, Slot] = {}
    staged, number = [], 0
    for key, (found, _) in listed.items():
        if isinstance(found, StagedObject):
            staged.append(key)
        elif isinstance(found, WalObject):
            number += 1
            slots[found.incarnation] = max(found.slot, slots.get(found.incarnation, Slot(0)))
    return Listing(frozenset(staged if number < LISTED_MAX else ()), slots)


def newest_snapshots(found: Iterable[BucketObject]) -> dict[tuple[str, int], int]:
    """The highest offset of a snapshot of each internal partition."""
    newest: dict[tuple[str, int], int] = {}
    for each in found:
        if isinstance(each, StateObject):
            place = each.topic, each.partition
            newest[place] = max(newest.get(place, 0), each.next_offset)
    return newest
