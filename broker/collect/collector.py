"""Finds objects that are unreachable for ever (rules F1 to F3), and deletes them after a grace.

Each broker collects its own WAL, merged objects and checkpoints. The live brokers divide the
objects without a live owner (`shares`): WALs of dead incarnations, state snapshots, hand-over
images, tables. Two brokers that collect the same share do no harm, nor does an old state: an object
that may go, may go for ever (F2).

The steps of a pass:

1. `wal_inventory` finds the existing slots, and the pass lists all other objects.
2. One broker reads the metadata log, the newest checkpoints, and the metadata log again. It writes
   the survey of what they refer to, and the others read that (`survey_file`).
3. `bucket.reachability` judges, and `marks` records the unreachable objects.
4. The deleter (`deletion`), a task of its own, gets objects marked for the grace by every pass.

Slots are judged and marked as runs, so a pass costs as much as kept and new objects, not as those
that wait for the grace.

Each pass stores the marks (`mark_file`) with their observed ages, and a new process continues from
them. If the process dies anywhere, less is deleted: its successor observes again whatever followed
the last stored marks. The first passes come soon after the start, each at twice the time of the one
before, up to the interval. So a process that lives for a time T stores marks whose ages grew by at
least T/2. A row of short lives deletes like one long life, at half the speed. A stored mark was
true when stored, and an object that may go, may go for ever (F2). So an old process that stores its
marks late does no harm.

The table collector looks less often for segments outside of tables, and for tables of deleted
topics: it lists all segments and reads all tables. It keeps a segment that may still be committed
until its table has a commit later than the grace after the segment was written. If the table gets
no commit, the collector makes an empty one (`TableLog.fence`).

Staged objects go when their batch is over (`staged_batches`), or by age (H9): twice
`staged.retention.ms` after they were put, and after every slot of that age is below a checkpoint.
Then no new reference to them can arise. Their keys are random: a pass that cannot list all goes on
behind the last one of the pass before, over the ring of all keys. Marks of the others stay.

The collector never deletes foreign objects, leases (one a broker id), or the lowest seal of a WAL.
The writers of the metadata log and of the table logs shorten these themselves.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple, NoReturn, Protocol

from tidelog.broker.collect.anchors import AnchorReader
from tidelog.broker.collect.deletion import CollectorMetrics, Deleter, DueObject
from tidelog.broker.collect.mark_file import MarkFile
from tidelog.broker.collect.marks import MARKED_MAX
from tidelog.broker.collect.shares import SharedWork, dead_wals, is_responsible, passes_to_wait
from tidelog.broker.collect.staged_batches import KeyRange, Listing, StagedBatches, list_staged
from tidelog.broker.collect.survey_file import SURVEY_KEY, SurveyFile
from tidelog.broker.collect.wal_inventory import LISTED_ONE_BY_ONE_MAX, WalInventory, WalRuns
from tidelog.bucket.object_keys import (
    CHECKPOINT_FOLDER,
    HANDOVER_FOLDER,
    STAGED_FOLDER,
    BucketObject,
    CheckpointObject,
    MergedObjectKey,
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
from tidelog.bucket.survey import WalReachability
from tidelog.clock import Clock
from tidelog.coordinator.cluster.log.prefix import LOG_PREFIX, LOG_SUFFIX, PROBE_FOLDER
from tidelog.coordinator.cluster.records.credentials import CREDENTIALS_PREFIX
from tidelog.coordinator.cluster.state.state import ClusterState
from tidelog.coordinator.snapshot_format import STATE_PREFIX
from tidelog.errors import CorruptObject, MissingObject, UnsupportedFormat
from tidelog.identifiers import Epoch, Incarnation, MetadataStamp, Slot
from tidelog.storage.object_store import ObjectMeta, ObjectNotFound, ObjectStore, StoreError
from tidelog.storage.sequence import NUMBER_DIGITS
from tidelog.wal.format.object_format import MERGED_FOLDER, merged_prefix, wal_key, wal_prefix
from tidelog.wal.log.adoption import object_key
from tidelog.wal.recover.slot_runs import SlotRun
from tidelog.wal.write.checkpoint import checkpoint_prefix
from tidelog.workers.offload import Offload

logger = logging.getLogger(__name__)

LISTED_MAX = 100_000
"""Objects of a folder that one pass lists, except slots.

The lowest keys come first, so the oldest of numbered objects. Later passes list the others. Of
staged objects each pass lists the next ones.
"""
STAGED_MARKED_MAX = MARKED_MAX // 2
"""The limit on marks of staged objects, which stay for a whole turn of the ring.

It leaves room for the marks of other objects.
"""
REPLAYED_LISTED_MAX = 1000
"""Slots of a WAL that are listed to find the oldest; more than a broker ever uploads at a time."""
_OfWal = MergedObjectKey | CheckpointObject
_FOLDERS_OF_WAL = (merged_prefix, checkpoint_prefix)
ATTEMPTS_MAX = 3
"""Attempts of one pass while partitions change owners; the next pass tries again."""
FIRST_SHARE = 1 / 64
"""The share of the interval after which the first pass begins."""


class Cluster(Protocol):
    """The metadata log, as the collector uses it."""

    @property
    def state(self) -> ClusterState:
        """The state as of the last refresh."""
        ...

    async def refresh(self) -> ClusterState:
        """The state after reading the log's new entries."""
        ...

    async def includes(self, stamp: MetadataStamp) -> bool:
        """Whether an object with this stamp is of this log's history."""
        ...


class Listed(NamedTuple):
    what: BucketObject
    meta: ObjectMeta


class _Judged(NamedTuple):
    """The objects that may go, as one pass judges."""

    slots: Mapping[Incarnation, Sequence[SlotRun]]
    keys: Sequence[str]


class _Share(NamedTuple):
    """The share of this process in one pass, beside its own WAL."""

    has_folders: bool
    dead: frozenset[Incarnation]
    """The dead incarnations whose WALs it collects."""
    has_others: bool
    """Whether other brokers live."""
    passes_to_wait: int

    @classmethod
    def of(cls, state: ClusterState, me: Incarnation) -> _Share:
        return cls(
            is_responsible(state, me, SharedWork.FOLDERS),
            frozenset(dead_wals(state, me)),
            len(state.live_epochs) > 1,
            passes_to_wait(state, me),
        )


class _Quiet(NamedTuple):
    """A pass finds nothing new as long as these values stay the same."""

    sequence: int
    floor: Slot | None


class Collector:
    """Collects this process's share of the objects outside of tables. `run` is its task."""

    def __init__(
        self,
        store: ObjectStore,
        clock: Clock,
        offload: Offload,
        cluster: Cluster,
        incarnation: Incarnation,
        is_settled: Callable[[MergedObjectKey, Slot], bool],
        floor: Callable[[], Slot | None],
        inventory: WalInventory,
        interval_seconds: float,
        idle_seconds: float,
        grace_seconds: float,
        staged_retention_ms: int,
        staged: StagedBatches,
        surveys: SurveyFile,
        marks: MarkFile,
        deleter: Deleter,
        metrics: CollectorMetrics,
    ) -> None:
        """See `WalReachability` for `is_settled`; it is false for other processes' objects.

        `floor`: the slot of this incarnation's newest checkpoint. `idle_seconds`: the interval
        between passes while nothing changes.
        """
        self._store = store
        self._clock = clock
        self._offload = offload
        self._cluster = cluster
        self._incarnation = incarnation
        self._is_settled = is_settled
        self._floor = floor
        self._inventory = inventory
        self._interval_seconds = interval_seconds
        self._idle_seconds = idle_seconds
        self._grace_seconds = grace_seconds
        self._staged_retention_ms = staged_retention_ms
        self._staged = staged
        self._surveys = surveys
        self._marks = marks
        self._deleter = deleter
        self._metrics = metrics
        self._anchors = AnchorReader(store, offload)
        self._handed: set[str] = set()
        """Keys that the deleter has got and that the last listing still showed."""
        self._staged_range = KeyRange()
        """The staged objects that the newest pass has listed."""
        self._emptied: set[Epoch] = set()
        """Retired incarnations without merged objects and checkpoints. They get no more; the next
        process finds those of a late request."""
        self._quiet: _Quiet | None = None
        self._listed_at = -idle_seconds

    async def run(self) -> NoReturn:
        """Collect at intervals, until cancelled."""
        share = FIRST_SHARE
        while True:
            await self._clock.sleep(share * self._interval_seconds)
            share = min(1.0, 2 * share)
            if self._is_idle():
                self._succeeded()
                continue
            try:
                await self.collect()
                await self._marks.store(self._deleter.waiting_slots)
                self._succeeded()
            except (StoreError, CorruptObject, UnsupportedFormat) as error:
                self._metrics.failures += 1
                logger.warning(
                    "a collection failed; nothing more is marked until the next one",
                    extra={"key": getattr(error, "key", None), "why": str(error)},
                )

    def _succeeded(self) -> None:
        self._metrics.succeeded_at = self._clock.time_ms() / 1000

    def _is_idle(self) -> bool:
        """Whether a pass would find nothing, like the last one."""
        return (
            self._quiet == _Quiet(self._cluster.state.sequence, self._floor())
            and self._clock.monotonic() - self._listed_at < self._idle_seconds
        )

    async def collect(self) -> None:
        """One pass.

        Raises StoreError; CorruptObject and UnsupportedFormat if an object that names the needed
        objects cannot be read. Then nothing is marked.
        """
        self._quiet, quiet = None, _Quiet(self._cluster.state.sequence, self._floor())
        started_at = self._clock.monotonic()
        await self._staged.look()
        share = _Share.of(self._cluster.state, self._incarnation)
        listed = await self._list(share)
        staged = _staged(listed)
        # An incarnation that registers later has no slots yet.
        newest = await self._inventory.newest_slots(await self._cluster.refresh()) if staged else {}
        self._staged.listed(Listing(staged, newest, self._staged_range))
        await self._inventory.look(self._cluster.state, share.dead)
        judge = await self._judge(listed, share)
        if judge is None:
            return
        slots = dict(self._inventory)
        judged = await self._offload.run(_judged, judge, listed, slots)
        self._mark(judged, listed, slots)
        if not staged and not self._metrics.waiting and not any(self._metrics.marked.values()):
            self._quiet, self._listed_at = quiet, started_at

    async def _judge(
        self, listed: Mapping[str, Listed], share: _Share
    ) -> Reachability | WalReachability | None:
        """The judge of the objects listed before; None if this pass cannot judge."""
        if not share.has_folders:
            await self._surveys.look()
            survey = self._surveys.survey
            if self._surveys.unchanged <= share.passes_to_wait:
                if survey is None:
                    return None
                if not await self._cluster.includes(survey.stamp):
                    logger.warning(
                        "the survey of all bases is of another history of this bucket; the brokers"
                        " make another one",
                        extra={"key": SURVEY_KEY, "entry": survey.stamp.sequence},
                    )
                    return None
                return WalReachability(survey, self._cluster.state, self._is_settled)
        reachability = await self._reachability(listed)
        if reachability is not None and share.has_others:
            await self._surveys.write(reachability.wals.survey)
        return reachability

    def _mark(
        self,
        judged: _Judged,
        listed: Mapping[str, Listed],
        slots: Mapping[Incarnation, WalRuns],
    ) -> None:
        """Mark the objects that may go; hand over those marked for the grace."""
        now = self._clock.monotonic()
        for owner, runs in self._marks.slots.update(judged.slots, now).items():
            self._inventory.hand_over(owner, runs)
            self._deleter.add_slots(owner, WalRuns(runs, slots[owner].slot_bytes))
        due = self._marks.objects.update(
            list(self._to_mark(judged.keys)),
            now,
            lambda key: self._is_unlisted(key) or (key in listed and self._is_undecided(key)),
        )
        self._handed = {key for key in self._handed if key in listed or self._is_unlisted(key)}
        fresh = [key for key in due if key not in self._handed]
        self._handed.update(fresh)
        self._deleter.add(DueObject(key, listed[key].meta.size) for key in fresh)
        marked = len(self._marks.objects) - len(self._handed)
        self._metrics.marked["wal"] = len(self._marks.slots) + marked
        self._metrics.passes += 1

    def _to_mark(self, keys: Iterable[str]) -> Iterator[str]:
        """These keys, without the staged ones beyond STAGED_MARKED_MAX."""
        marks = self._marks.objects
        room = STAGED_MARKED_MAX - sum(key.startswith(STAGED_FOLDER) for key in marks)
        for key in keys:
            if key.startswith(STAGED_FOLDER) and key not in marks:
                if room <= 0:
                    continue
                room -= 1
            yield key

    def _is_undecided(self, key: str) -> bool:
        """Whether only later passes of this process can judge the object."""
        return key.startswith(STAGED_FOLDER) and not self._staged.has_passed

    def _is_unlisted(self, key: str) -> bool:
        """Whether this pass has not looked for the object."""
        return key.startswith(STAGED_FOLDER) and key not in self._staged_range

    async def _list(self, share: _Share) -> dict[str, Listed]:
        """The objects of this process's share except slots, folder by folder."""
        me = self._incarnation
        prefixes = [merged_prefix(me), checkpoint_prefix(me)]
        dead = [owner for owner in share.dead if owner.epoch not in self._emptied]
        if len(dead) <= LISTED_ONE_BY_ONE_MAX:
            prefixes += [prefix(owner) for owner in dead for prefix in _FOLDERS_OF_WAL]
        else:
            prefixes += [MERGED_FOLDER, CHECKPOINT_FOLDER]
        if share.has_folders:
            prefixes += [HANDOVER_FOLDER, STATE_PREFIX, PROBE_FOLDER]
            prefixes.append(CREDENTIALS_PREFIX)
        listed: dict[str, Listed] = {}
        ours = {me, *dead}
        is_whole = True
        for prefix in prefixes:
            number = 0
            async for meta in self._store.list(prefix):
                found = parse_key(meta.key)
                if isinstance(found, _OfWal):
                    found = found if found.incarnation in ours else None
                if found is not None:
                    listed[meta.key] = Listed(found, meta)
                    number += 1
                if number >= LISTED_MAX:
                    is_whole = False
                    break
        if share.has_folders:
            before = self._staged_range
            staged, self._staged_range = await list_staged(self._store, before, LISTED_MAX)
            listed |= {meta.key: Listed(found, meta) for found, meta in staged}
        else:
            self._staged_range = KeyRange()
        owners = {each.incarnation for each, _ in listed.values() if isinstance(each, _OfWal)}
        self._emptied.update(
            owner.epoch
            for owner in dead
            if is_whole and owner not in owners and self._cluster.state.is_retired(owner)
        )
        return listed

    async def _reachability(self, listed: Mapping[str, Listed]) -> Reachability | None:
        """The reachability by which to judge the objects listed before.

        None if ownership changes too fast to tell.
        """
        for _ in range(ATTEMPTS_MAX):
            state = await self._cluster.refresh()
            anchors = await self._anchors.checkpoints(needed_incarnations(state))
            try:
                handovers = await self._anchors.handovers(named_handovers(state))
            except MissingObject as missing:
                if missing.key in named_handovers(await self._cluster.refresh()):
                    raise
                continue
            log_ms = await self._newest_entry_ms(state)
            if anchors is None:
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
            staged = _staged(listed)
            adoptable_ms = await self._adoptable_ms(listed, state, anchors, log_ms) if staged else 0
            over = await self._ended_staged(staged, state, anchors, handovers)
            return await self._offload.run(
                partial(
                    Reachability,
                    state=state,
                    anchors=anchors,
                    handover_objects=handovers,
                    snapshots=newest_snapshots(found for found, _ in listed.values()),
                    is_settled=self._is_settled,
                    metadata_aged=partial(self._is_older, listed, log_ms),
                    staged_over=partial(_is_staged_over, listed, adoptable_ms, over),
                )
            )
        logger.info("partitions change owners too fast for a collection; the next one tries again")
        return None

    async def _ended_staged(
        self,
        staged: frozenset[str],
        state: ClusterState,
        anchors: Mapping[Incarnation, Anchor],
        handovers: frozenset[str],
    ) -> frozenset[str]:
        """The staged objects whose batch is over."""
        if not staged:
            return frozenset()
        return await self._staged.judge(
            staged,
            await self._offload.run(_staged_references, handovers, tuple(anchors.values())),
            needed_incarnations(state),
            anchors,
        )

    def _is_older(self, listed: Mapping[str, Listed], time_ms: int, key: str) -> bool:
        """Whether an object was put the grace before this time, both by the store's clock."""
        return time_ms - listed[key].meta.modified_ms > self._grace_seconds * 1000

    async def _adoptable_ms(
        self,
        listed: Mapping[str, Listed],
        state: ClusterState,
        anchors: Mapping[Incarnation, Anchor],
        log_ms: int,
    ) -> int:
        """References to objects staged after this time may exist or arise; by the store's clock."""
        needed = needed_incarnations(state)
        slots: list[tuple[WalObject, int]] = []
        for owner in needed:
            floor = anchors[owner].slot if owner in anchors else Slot(0)
            after = wal_key(owner, Slot(floor - 1)) if floor else ""
            number = 0
            async for meta in self._store.list(wal_prefix(owner), after):
                found = parse_key(meta.key)
                if isinstance(found, WalObject):
                    slots.append((found, meta.modified_ms))
                number += 1
                if number >= REPLAYED_LISTED_MAX:
                    break
        times = (*(put_ms for _, put_ms in slots), *(m.modified_ms for _, m in listed.values()))
        present_ms = max(log_ms, *times)
        replayed_ms = replayed_since_ms(slots, needed, anchors)
        until_ms = present_ms if replayed_ms is None else min(present_ms, replayed_ms)
        return until_ms - 2 * self._staged_retention_ms

    async def _newest_entry_ms(self, state: ClusterState) -> int:
        """The put time of the metadata log's newest entry; 0 if the entry is deleted already."""
        key = f"{LOG_PREFIX}{state.sequence:0{NUMBER_DIGITS}d}{LOG_SUFFIX}"
        try:
            return (await self._store.head(key)).modified_ms
        except ObjectNotFound:
            return 0


def _judged(
    judge: Reachability | WalReachability,
    listed: Mapping[str, Listed],
    slots: Mapping[Incarnation, WalRuns],
) -> _Judged:
    """The objects that may go. Pure; runs in a worker thread."""
    wals = judge.wals if isinstance(judge, Reachability) else judge
    return _Judged(
        {owner: wals.slots_may_go(owner, there.runs) for owner, there in slots.items()},
        [key for key, (what, _) in listed.items() if judge.may_go(key, what)],
    )


def _staged(listed: Mapping[str, Listed]) -> frozenset[str]:
    return frozenset(k for k, found in listed.items() if isinstance(found.what, StagedObject))


def _staged_references(handovers: frozenset[str], anchors: Sequence[Anchor]) -> frozenset[str]:
    """The staged objects that bases refer to. Pure; runs in a worker thread."""
    referenced = map(object_key, handovers.union(*(anchor.objects for anchor in anchors)))
    return frozenset(key for key in referenced if key.startswith(STAGED_FOLDER))


def _is_staged_over(
    listed: Mapping[str, Listed], adoptable_ms: int, over: frozenset[str], key: str
) -> bool:
    return key in over or listed[key].meta.modified_ms < adoptable_ms


def newest_snapshots(found: Iterable[BucketObject]) -> dict[tuple[str, int], int]:
    """The highest snapshot offset of each internal partition."""
    newest: dict[tuple[str, int], int] = {}
    for each in found:
        if isinstance(each, StateObject):
            place = each.topic, each.partition
            newest[place] = max(newest.get(place, 0), each.next_offset)
    return newest
