"""Which staged objects are over because their batch is (rule H9): earlier than by their age.

A staged object names its batch: transactional id, query, number. When the group of that name has
committed the query's batch of this number or a later one, nobody adopts the object any more: the
call that committed had a later epoch than every call before it, which fences those for good, and
whoever calls later looks at the group first and finds the batch done. What was adopted of it before
lies in WAL slots that were durable when the offset was committed: the transaction that moved the
offset ended behind its own adopts, and those of fenced calls were aborted, behind what they had
written, before it began.

So three things are looked at in this order, and the order matters:

1. the groups' offsets, as the bucket has them: stable and durable ones;
2. which slots there are in all WALs: whatever was adopted of those batches is in one of these, or
   was in one that is deleted, below a checkpoint;
3. at a later pass, when the checkpoints of all these WALs have passed those slots: what no
   checkpoint refers to then, nobody refers to, and nobody will.

At that pass the offsets must still say the same, and the object must have been there at step 2. The
condition stays true once it is (F2), unless somebody deletes the group or sets its offset back:
that takes the fence away. A driver of the query that is still alive then may adopt what it had
staged before, for a second time as far as consumers are concerned. From the next pass on nothing of
that query goes by this rule, and the collector's grace must have passed by then for it to go.

If the process dies, its successor begins with step 1. If an answer is lost, the pass is given up.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from tidelog.bucket.reachability import Anchor
from tidelog.bucket.views.bucket import Bucket
from tidelog.bucket.views.states import group_offsets
from tidelog.client.transactions.sink import PROGRESS, SinkProgress
from tidelog.clock import Clock
from tidelog.coordinator.cluster.records.settings import ClusterSettings
from tidelog.entropy import Entropy
from tidelog.errors import CorruptObject, UnsupportedFormat
from tidelog.identifiers import Incarnation, Slot
from tidelog.offload import Offload
from tidelog.storage.object_store import ObjectNotFound, ObjectStore
from tidelog.wal.format.staged_format import StagedFor
from tidelog.wal.read.reading import read_all
from tidelog.wal.write.staging import read_staged_index

logger = logging.getLogger(__name__)

PURPOSES_READ_MAX: Final = 10_000
"""Of objects that are looked into in one pass."""
READS_AT_ONCE_MAX: Final = 16


class Listing(NamedTuple):
    """What a pass has listed behind the offsets."""

    staged: frozenset[str]
    slots: Mapping[Incarnation, Slot]
    """The highest slot of each WAL, seals included."""


@dataclass(frozen=True, slots=True)
class SinkCommits:
    """How far each sink had come at some moment, and what was there behind it."""

    progress: Mapping[str, SinkProgress] = field(default_factory=dict)
    """By transactional id."""
    listing: Listing = field(default_factory=lambda: Listing(frozenset(), {}))

    def is_over(self, key: str, purpose: StagedFor) -> bool:
        """Whether an object was there, and its batch committed."""
        return key in self.listing.staged and is_committed(purpose, self.progress)

    def is_passed(
        self, needed: Iterable[Incarnation], anchors: Mapping[Incarnation, Anchor]
    ) -> bool:
        """Whether checkpoints hold all of the slots that there were."""
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
    """What one process knows of staged objects, from pass to pass."""

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
        """None: it cannot be read, and goes by its age."""
        self._listed: frozenset[str] = frozenset()
        self._waiting: SinkCommits | None = None
        """For the checkpoints to pass what was there."""
        self._passed = SinkCommits()
        self._progress: Mapping[str, SinkProgress] = {}

    @property
    def has_passed(self) -> bool:
        """Whether it can be told of any batch that it is over."""
        return bool(self._passed.progress)

    async def look(self) -> None:
        """Begin a pass, ahead of its listing. Raises StoreError."""
        names = {each.transactional_id for each in self._purposes.values() if each is not None}
        self._progress = await self._read_progress(names) if names else {}

    def listed(self, listing: Listing) -> None:
        """What this pass has listed."""
        self._purposes = {k: v for k, v in self._purposes.items() if k in listing.staged}
        if self._waiting is None and self._progress:
            self._waiting = SinkCommits(self._progress, listing)

    async def judge(
        self,
        listed: frozenset[str],
        referenced: frozenset[str],
        needed: Iterable[Incarnation],
        anchors: Mapping[Incarnation, Anchor],
    ) -> frozenset[str]:
        """The objects that are over, by checkpoints that were read behind the listing. `referenced`
        by these and by hand-over images. Raises StoreError."""
        if self._waiting is not None and self._waiting.is_passed(needed, anchors):
            self._passed, self._waiting = self._waiting, None
        # What has just been staged is about to be adopted: it is looked into at the next pass.
        unknown = (listed & self._listed) - self._purposes.keys() - referenced
        self._listed = listed
        await self._read_purposes(sorted(unknown)[:PURPOSES_READ_MAX])
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
                "staged objects go by their age alone: the groups' offsets cannot be read",
                extra={"why": str(error)},
            )
            return {}
        columns = ["group_id", "topic", "partition", "offset", "metadata"]
        return {
            row["group_id"]: SinkProgress(row["offset"], row["metadata"] or "")
            for row in table.select(columns).to_pylist()
            if row["group_id"] in names and (row["topic"], row["partition"]) == PROGRESS
        }
