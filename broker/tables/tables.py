"""The tables of this broker's topics: opened on demand and shared by all users.

Rolls, retention, compaction and cold fetches share them. So a broker reads a topic's table log
once, and its commits follow one another. If a commit is refused (E1 to E3), `commit` returns the
refusal. The caller reads the state, which then has the other writers' changes, and continues from
there.

If the process dies while it opens a table, nothing has happened. If it dies during a commit, the
bucket has the entry or has it not, and the successor reads the bucket. If it dies during a
checkpoint or a clean-up, the table's contents are the same with and without it.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NoReturn

from tidelog.broker.tables.segment_ages import SegmentAges
from tidelog.clock import Clock
from tidelog.coordinator.cluster.records.records import Record, TopicDeleted
from tidelog.coordinator.cluster.state.state import ClusterState
from tidelog.crash_points import NO_CRASH_POINTS, CrashPoint, CrashPoints
from tidelog.entropy import Entropy
from tidelog.errors import CorruptObject, TidelogError, without_frames
from tidelog.identifiers import TopicId
from tidelog.storage.object_store import ObjectStore
from tidelog.storage.sightings import Sightings
from tidelog.storage.table.table_change import PartitionChange
from tidelog.storage.table.table_log import (
    CLEAN_UP_DELETES_MAX,
    CommitResult,
    TableCommitted,
    TableLog,
)
from tidelog.storage.table.table_state import TableState
from tidelog.workers.offload import Offload

logger = logging.getLogger(__name__)

SEGMENTS_HELD_MAX = 200_000
"""The limit of segments of all open tables, where each table counts as one more.

Above the limit the least recently used tables are closed.
"""
PATIENCE_SECONDS = 1.0
"""How long the opening of partitions waits for a commit of their table. It may take 30 s."""
CORRUPT_SECONDS = 10.0
"""The time until a corrupt table is read again."""


class NoTable(TidelogError):
    """The topic no longer exists, or it is internal and has no table."""


@dataclass(slots=True)
class _OpenTable:
    """One topic's table. Its lock is held while it opens."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    log: TableLog | None = None
    fault: CorruptObject | None = None
    fault_until: float = 0.0

    @property
    def weight(self) -> int:
        return 1 + (self.log.state.segment_count if self.log is not None else 0)


class Tables:
    """One broker's open table logs. `run` writes their checkpoints and cleans them up."""

    def __init__(
        self,
        state: Callable[[], ClusterState],
        store: ObjectStore,
        clock: Clock,
        entropy: Entropy,
        offload: Offload,
        grace_seconds: float,
        crash_points: CrashPoints = NO_CRASH_POINTS,
        segments_held_max: int = SEGMENTS_HELD_MAX,
        ages: SegmentAges | None = None,
    ) -> None:
        """`grace_seconds`: `log.delete.grace.ms`.

        `ages`: the ages of segments to commit; None without a collector.
        """
        self._state = state
        self._store = store
        self._clock = clock
        self._entropy = entropy
        self._offload = offload
        self._grace_seconds = grace_seconds
        self._crash_points = crash_points
        self._segments_held_max = segments_held_max
        self._ages = ages
        self._entries: OrderedDict[TopicId, _OpenTable] = OrderedDict()
        """The least recently used first."""
        self._checkpoints_seen: dict[TopicId, Sightings[int]] = {}
        """Also of closed tables: else the log of one that is closed again and again would grow."""
        self._due: dict[TopicId, None] = {}
        """The topics whose checkpoint is due."""
        self._wake = asyncio.Event()

    def __len__(self) -> int:
        """The number of tables that are open, or being opened."""
        return len(self._entries)

    def get(self, topic_id: TopicId) -> TableState | None:
        """The topic's table as last read or committed, if it is open.

        The caller must not change it. Each commit of this broker changes it in place.
        """
        entry = self._entries.get(topic_id)
        if entry is None or entry.log is None:
            return None
        self._entries.move_to_end(topic_id)
        return entry.log.state

    def may_be_old(self, topic_id: TopicId) -> bool:
        """Whether the topic's table is open or being opened: it may lack other brokers' commits."""
        entry = self._entries.get(topic_id)
        return entry is not None and (entry.log is not None or entry.lock.locked())

    async def open(self, topic_id: TopicId) -> TableState:
        """The topic's table, read from the store if it is not open. The caller must not change it.

        Raises NoTable and StoreError; CorruptObject and UnsupportedFormat name the unreadable
        object.
        """
        return (await self._opened(topic_id)).state

    async def refresh(self, topic_id: TopicId) -> TableState:
        """The topic's table with the commits of other brokers. Raises what `open` raises."""
        log = await self._opened(topic_id)
        await log.refresh()
        return log.state

    async def refresh_or_reopen(self, topic_id: TopicId) -> TableState:
        """As `refresh`, but a table whose commit takes longer than PATIENCE_SECONDS is opened anew.

        That commit goes on. The table log decides it as it decides a commit of another broker (E1).
        """
        log = await self._opened(topic_id)
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                await log.refresh()
                return log.state
        except TimeoutError:
            entry = self._entries.get(topic_id)
            if log.is_busy and entry is not None and entry.log is log:
                del self._entries[topic_id]
        return await self.refresh(topic_id)

    async def stored_bytes(self, topic_id: TopicId) -> Mapping[int, int]:
        """Bytes of the topic's segments by partition; empty for internal topics.

        Raises what `open` raises.
        """
        topic = self._state().topics.get(topic_id)
        if topic is not None and topic.internal:
            return {}
        state = await self.open(topic_id)
        return {
            number: sum(s.segment.size_bytes for s in state.partition(number).segments)
            for number in state.partitions
        }

    async def commit(self, topic_id: TopicId, changes: tuple[PartitionChange, ...]) -> CommitResult:
        """Make the changes one version of the topic's table, or return the reason why they are
        invalid.

        After a refusal, `get` has the other writers' changes: the caller drops changes that are
        done, and continues from there (E2).

        Raises what `open` and `TableLog.commit` raise. StoreNotApplied includes SegmentsTooOld:
        write the segments again. After AppendUndecided only the next commit, or `refresh`, can tell
        the outcome.
        """
        log = await self._opened(topic_id)
        self._crash_points.hit(CrashPoint.TABLE_COMMIT)
        begun_at = None
        if self._ages is not None:
            begun_at = self._ages.begun_at(
                segment.key(topic_id)
                for change in changes
                for segment in (*change.appended, *change.rewritten)
            )
        result = await log.commit(changes, begun_at)
        if isinstance(result, TableCommitted):
            self._crash_points.hit(CrashPoint.TABLE_COMMITTED)
            if log.checkpoint_due:
                self._due[topic_id] = None
                self._wake.set()
        return result

    def follow(self, records: Sequence[Record]) -> None:
        """Forget the tables of topics that an entry of the metadata log deletes."""
        for record in records:
            if isinstance(record, TopicDeleted):
                self._entries.pop(record.topic_id, None)
                self._due.pop(record.topic_id, None)
                self._checkpoints_seen.pop(record.topic_id, None)

    async def run(self) -> NoReturn:
        """Write checkpoints and clean up until cancelled.

        It serves one table at a time: each takes the memory of a whole table once more.
        """
        while True:
            await self._wake.wait()
            self._wake.clear()
            await self.maintain_due()

    async def maintain_due(self) -> None:
        """Write the checkpoints that are due, and clean up."""
        while self._due:
            topic_id = next(iter(self._due))
            del self._due[topic_id]
            await self._maintain(topic_id)

    async def _maintain(self, topic_id: TopicId) -> None:
        """Write a table's checkpoint and clean up.

        A failure only makes the next opening slower, until the next checkpoint.
        """
        try:
            log = await self._opened(topic_id)
            version = await log.write_checkpoint()
            self._crash_points.hit(CrashPoint.TABLE_CHECKPOINTED)
            logger.info("a table was checkpointed", extra={"key": log.checkpoint_key(version)})
            # The checkpoint's put time tells which older ones may go.
            while await log.clean_up() == CLEAN_UP_DELETES_MAX:
                pass
        except NoTable:
            return
        except TidelogError as error:
            logger.warning(
                "a table log could not be shortened; the broker will try again",
                extra={"topic_id": str(topic_id), "why": str(error)},
            )

    async def _opened(self, topic_id: TopicId) -> TableLog:
        topic = self._state().topics.get(topic_id)
        if topic is None:
            raise NoTable(f"topic {topic_id} no longer exists")
        if topic.internal:
            raise NoTable(f"{topic.name} is an internal topic and has no table")
        entry = self._entries.setdefault(topic_id, _OpenTable())
        self._entries.move_to_end(topic_id)
        async with entry.lock:
            if entry.log is not None:
                return entry.log
            if entry.fault is not None and self._clock.monotonic() < entry.fault_until:
                raise without_frames(entry.fault)
            try:
                entry.log = await TableLog.open(
                    self._store,
                    self._clock,
                    self._entropy,
                    self._offload,
                    topic_id,
                    topic.name,
                    self._grace_seconds,
                    self._crash_points,
                    self._checkpoints_seen.setdefault(topic_id, Sightings()),
                )
            except CorruptObject as error:
                entry.fault = without_frames(error)
                entry.fault_until = self._clock.monotonic() + CORRUPT_SECONDS
                raise
            entry.fault = None
        self._close_least_used(topic_id)
        return entry.log

    def _close_least_used(self, kept: TopicId) -> None:
        """Close the least recently used tables above the limit."""
        held = sum(entry.weight for entry in self._entries.values())
        for topic_id, entry in list(self._entries.items()):
            if held <= self._segments_held_max:
                return
            # A closed table would forget that its checkpoint is due.
            if topic_id != kept and topic_id not in self._due and not entry.lock.locked():
                del self._entries[topic_id]
                held -= entry.weight
