"""Finds the staged objects whose batch is over (rule H9), which then need not reach their age.

A staged object names its batch: transactional id, query, number. Once that group has committed the
query's batch of this number or a later one, no call adopts the object any more. The committing call
had a later epoch than every call before it, which fences those for good. Every later call reads the
group first and finds the batch done. Earlier adopts of it lie in WAL slots that were durable when
the offset was committed. The transaction that moved the offset ended behind its own adopts. Those
of fenced calls were aborted, behind their writes, before it began.

The collector reads three things, and this order matters:

1. the groups' offsets in the bucket: stable and durable ones;
2. the slots of all WALs: each adopt of those batches lies in one of them, or in a deleted slot
   below a checkpoint;
3. at a later pass, when the checkpoints of all these WALs have passed those slots: an object
   without a reference in a checkpoint has none, and will get none.

At that pass the offsets must be the same, and the object must have been known at step 2. The
condition stays true (F2), unless an operator deletes the group or resets its offset: that removes
the fence. A driver of the query that is still alive may then adopt its earlier staged objects. For
consumers these records come a second time. From the next pass on this rule covers nothing of that
query. The collector's grace must have passed before an object goes.

If the process dies, its successor begins with step 1. If an answer is lost, the pass ends without a
result.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from tidelog.bucket.object_keys import STAGED_FOLDER, StagedObject, parse_key
from tidelog.bucket.reachability import Anchor
from tidelog.bucket.views.bucket import Bucket
from tidelog.bucket.views.states import group_offsets
from tidelog.client.transactions.sink import PROGRESS, SinkProgress
from tidelog.clock import Clock
from tidelog.concurrency import read_all
from tidelog.coordinator.cluster.records.settings import ClusterSettings
from tidelog.entropy import Entropy
from tidelog.errors import CorruptObject, UnsupportedFormat
from tidelog.identifiers import Incarnation, Slot
from tidelog.storage.object_store import ObjectMeta, ObjectNotFound, ObjectStore
from tidelog.wal.format.staged_format import StagedFor
from tidelog.wal.write.staging import read_staged_index
from tidelog.workers.offload import Offload

logger = logging.getLogger(__name__)

PURPOSES_READ_MAX: Final = 10_000
"""Objects whose purpose one pass reads."""
PURPOSES_MAX: Final = 200_000
"""Objects whose purpose is in memory. Others go by age."""
READS_AT_ONCE_MAX: Final = 16


class KeyRange(NamedTuple):
    """A part of the ring of a folder's keys, which begins anew behind its end."""

    after: str = ""
    last: str = ""
    """The same as `after`: all keys."""

    def __contains__(self, key: object) -> bool:
        key = str(key)
        if self.after < self.last:
            return self.after < key <= self.last
        return key > self.after or key <= self.last

    @property
    def is_whole(self) -> bool:
        """Whether it has all keys."""
        return self.after == self.last


async def list_staged(
    store: ObjectStore, before: KeyRange, objects_max: int
) -> tuple[list[tuple[StagedObject, ObjectMeta]], KeyRange]:
    """The staged objects behind the range of the pass before, and the range that they are of."""
    found: list[tuple[StagedObject, ObjectMeta]] = []
    for start in {before.last: None, "": None}:
        async for meta in store.list(STAGED_FOLDER, start):
            if start < before.last < meta.key:
                break
            parsed = parse_key(meta.key)
            if isinstance(parsed, StagedObject):
                found.append((parsed, meta))
            if len(found) >= objects_max:
                return found, KeyRange(before.last, meta.key)
    return found, KeyRange()


class Listing(NamedTuple):
    """The objects that a pass has listed after it read the offsets."""

    staged: frozenset[str]
    slots: Mapping[Incarnation, Slot]
    """The highest slot of each WAL, seals included."""
    range: KeyRange = KeyRange()
    """The pass has listed all objects of this range, and no others."""


@dataclass(frozen=True, slots=True)
class SinkCommits:
    """Each sink's committed progress, and the listing made after it was read."""

    progress: Mapping[str, SinkProgress] = field(default_factory=dict)
    """By transactional id."""
    listing: Listing = field(default_factory=lambda: Listing(frozenset(), {}))

    def is_over(self, key: str, purpose: StagedFor) -> bool:
        """Whether the object is older than the listing and its batch is committed."""
        return key in self.listing.staged and is_committed(purpose, self.progress)

    def is_passed(
        self, needed: Iterable[Incarnation], anchors: Mapping[Incarnation, Anchor]
    ) -> bool:
        """Whether checkpoints cover every listed slot."""
        slots = self.listing.slots
        return all(
            owner in anchors and anchors[owner].slot > slots[owner]
            for owner in needed
            if owner in slots
        )


def is_committed(purpose: StagedFor, progress: Mapping[str, SinkProgress]) -> bool:
    """Whether the query has committed this batch or a later one. Pure."""
    found = progress.get(purpose.transactional_id)
    return (
        found is not None
        and found.query_id == purpose.query_id
        and found.batch_id >= purpose.batch_id
    )


class StagedBatches:
    """The staged objects that one process knows, from pass to pass."""

    def __init__(
        self,
        store: ObjectStore,
        clock: Clock,
        entropy: Entropy,
        offload: Offload,
        settings: ClusterSettings,
    ) -> None:
        self._store = store
        self._bucket = Bucket.unread(store, clock, entropy, offload, settings)
        self._purposes: dict[str, StagedFor | None] = {}
        """None: the index is unreadable, so the object goes by its age."""
        self._listed: frozenset[str] = frozenset()
        self._range = KeyRange()
        self._waiting: SinkCommits | None = None
        """Commits whose listed slots no checkpoints cover yet."""
        self._passed = SinkCommits()
        self._progress: Mapping[str, SinkProgress] = {}

    @property
    def has_passed(self) -> bool:
        """Whether this process can already judge that batches are over."""
        return bool(self._passed.progress)

    async def look(self) -> None:
        """Read the groups' offsets, ahead of the pass's listing. Raises StoreError."""
        names = {each.transactional_id for each in self._purposes.values() if each is not None}
        self._progress = await self._read_progress(names) if names else {}

    def listed(self, listing: Listing) -> None:
        """Take the listing of this pass."""
        self._range = listing.range
        self._purposes = {
            key: purpose
            for key, purpose in self._purposes.items()
            if key in listing.staged or key not in listing.range
        }
        if self._waiting is None and self._progress:
            older = listing.staged.union(self._purposes)
            self._waiting = SinkCommits(self._progress, listing._replace(staged=older))

    async def judge(
        self,
        listed: frozenset[str],
        referenced: frozenset[str],
        needed: Iterable[Incarnation],
        anchors: Mapping[Incarnation, Anchor],
    ) -> frozenset[str]:
        """The objects whose batch is over, by checkpoints read after the listing.

        `referenced`: the objects that these checkpoints and hand-over images refer to. Raises
        StoreError.
        """
        if self._waiting is not None and self._waiting.is_passed(needed, anchors):
            self._passed, self._waiting = self._waiting, None
        # A fresh object is about to be adopted: the next pass reads its purpose. If a pass lists
        # only a part, the one before has listed another.
        seen = listed & self._listed if self._range.is_whole else listed
        unknown = seen - self._purposes.keys() - referenced
        self._listed = listed
        room = max(0, min(PURPOSES_READ_MAX, PURPOSES_MAX - len(self._purposes)))
        await self._read_purposes(sorted(unknown)[:room])
        return frozenset(
            key
            for key, purpose in self._purposes.items()
            if purpose is not None
            and self._passed.is_over(key, purpose)
            and is_committed(purpose, self._progress)
        )

    async def _read_purposes(self, keys: Iterable[str]) -> None:
        async def read(key: str) -> tuple[str, StagedFor | None]:
            try:
                return key, (await read_staged_index(self._store, key)).purpose
            except (ObjectNotFound, CorruptObject, UnsupportedFormat):
                return key, None

        found = await read_all(read, keys, asyncio.Semaphore(READS_AT_ONCE_MAX))
        self._purposes.update(found)

    async def _read_progress(self, names: set[str]) -> dict[str, SinkProgress]:
        try:
            table = await group_offsets(self._bucket, names)
        except (CorruptObject, UnsupportedFormat) as error:
            logger.warning(
                "staged objects go by age alone: the groups' offsets cannot be read",
                extra={"why": str(error)},
            )
            return {}
        columns = ["group_id", "topic", "partition", "offset", "metadata"]
        return {
            row["group_id"]: SinkProgress(row["offset"], row["metadata"] or "")
            for row in table.select(columns).to_pylist()
            if row["group_id"] in names and (row["topic"], row["partition"]) == PROGRESS
        }
