"""Deletes segments that no table lists, and tables of deleted topics.

The broker with the lowest broker id does this; two at a time do no harm. A pass lists all of
`topics/`, topic by topic. It reads each topic's table after its segments were listed. So a segment
outside of the table was removed, or was never committed, or its commit is on the way.
`bucket.reachability.loose_segments` tells which.

If the process dies anywhere, less is deleted. If it stalls between judging and deleting, the
objects are still unreachable.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import NoReturn

from tidelog.broker.collect.collector import Cluster
from tidelog.broker.collect.deletion import CollectorMetrics, Deleter, DueObject
from tidelog.broker.collect.mark_file import MarkFile
from tidelog.broker.collect.shares import SharedWork, is_responsible
from tidelog.bucket.object_keys import SegmentObject, TableObject, parse_key
from tidelog.bucket.reachability import StoredSegment, loose_segments
from tidelog.clock import Clock
from tidelog.coordinator.cluster.records.topics import Topic, TopicFate
from tidelog.crash_points import NO_CRASH_POINTS, CrashPoint, CrashPoints
from tidelog.entropy import Entropy
from tidelog.errors import CorruptObject, UnsupportedFormat
from tidelog.identifiers import Incarnation, TopicId
from tidelog.storage.object_store import ObjectNotFound, ObjectStore, StoreError
from tidelog.storage.segment.segment import TOPICS_PREFIX
from tidelog.storage.table.table_log import TableLog
from tidelog.storage.table.table_state import NO_VERSION
from tidelog.workers.offload import Offload

logger = logging.getLogger(__name__)

FIRST_SHARE = 1 / 32
"""The share of the interval after which the first pass begins."""
TOPIC_OBJECTS_MAX = 200_000
"""Objects of a topic that are judged together. A pass deletes no more of a deleted topic."""


@dataclass(slots=True)
class _TableFolder:
    """Objects in one topic's folder."""

    topic_id: TopicId
    is_rest: bool = False
    """Whether a part of the folder comes before."""
    segments: dict[str, StoredSegment] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)


class TableCollector:
    """Collects this process's share of segments and tables. `run` is its task."""

    def __init__(
        self,
        store: ObjectStore,
        clock: Clock,
        entropy: Entropy,
        offload: Offload,
        cluster: Cluster,
        incarnation: Incarnation,
        interval_seconds: float,
        grace_seconds: float,
        marks: MarkFile,
        deleter: Deleter,
        metrics: CollectorMetrics,
        crash_points: CrashPoints = NO_CRASH_POINTS,
    ) -> None:
        self._store = store
        self._clock = clock
        self._entropy = entropy
        self._offload = offload
        self._cluster = cluster
        self._incarnation = incarnation
        self._interval_seconds = interval_seconds
        self._grace_seconds = grace_seconds
        self._deleter = deleter
        self._metrics = metrics
        self._crash_points = crash_points
        self._marks = marks
        self._handed: set[str] = set()
        """Keys that the deleter has got and that the last listing still showed."""

    async def run(self) -> NoReturn:
        """Collect at intervals, until cancelled.

        The first passes come sooner after the start, for processes that live less than an interval.
        """
        share = FIRST_SHARE
        while True:
            await self._clock.sleep(share * self._interval_seconds)
            share = min(1.0, 2 * share)
            if not is_responsible(self._cluster.state, self._incarnation, SharedWork.TABLES):
                # Another broker counts them now. The marks stay true (F2), if the work comes back.
                self._metrics.marked["topics"] = 0
                continue
            try:
                await self.collect()
            except StoreError as error:
                self._metrics.failures += 1
                logger.warning(
                    "tables could not be collected; nothing more is deleted until the next time",
                    extra={"key": error.key, "why": error.why},
                )

    async def collect(self) -> None:
        """One pass. Raises StoreError."""
        superfluous: dict[str, int] = {}
        uncommitted: dict[str, TopicId] = {}
        async for listed in self._list():
            gone, waiting = await self._judge(listed)
            superfluous |= {key: listed.sizes[key] for key in gone}
            uncommitted |= dict.fromkeys(waiting, listed.topic_id)
        now = self._clock.monotonic()
        marks = self._marks
        due = [key for key in marks.segments.update(superfluous, now) if key not in self._handed]
        stuck = {uncommitted[key] for key in marks.uncommitted.update(uncommitted, now)}
        self._handed = {*(self._handed & superfluous.keys()), *due}
        marked = len(marks.segments) - len(self._handed)
        self._metrics.marked["topics"] = marked + len(marks.uncommitted)
        self._metrics.passes += 1
        self._deleter.add(DueObject(key, superfluous[key]) for key in due)
        for topic_id in sorted(stuck):
            await self._fence(topic_id)

    async def _list(self) -> AsyncIterator[_TableFolder]:
        """The folders, topic after topic, the large ones in parts."""
        current: _TableFolder | None = None
        async for meta in self._store.list(TOPICS_PREFIX):
            found = parse_key(meta.key)
            if not isinstance(found, SegmentObject | TableObject):
                continue
            if current is None or found.topic_id != current.topic_id:
                if current is not None:
                    yield current
                current = _TableFolder(found.topic_id)
            if len(current.sizes) >= TOPIC_OBJECTS_MAX:
                yield current
                current = _TableFolder(found.topic_id, is_rest=True)
            current.sizes[meta.key] = meta.size
            if isinstance(found, SegmentObject):
                current.segments[meta.key] = StoredSegment(found.name, meta.modified_ms)
        if current is not None:
            yield current

    async def _judge(self, listed: _TableFolder) -> tuple[list[str], list[str]]:
        """The keys that may go, and the keys of segments that may still be committed."""
        topic_id = listed.topic_id
        if topic_id not in self._cluster.state.topics:
            # The topic may be newer than this process's state.
            await self._cluster.refresh()
        if self._cluster.state.fate_of(topic_id) is TopicFate.DELETED:
            return [] if listed.is_rest else list(listed.sizes), []
        topic = self._cluster.state.topics.get(topic_id)
        if topic is None:
            logger.error(
                "objects of a topic that the metadata log does not know are kept",
                extra={"topic_id": str(topic_id), "objects": len(listed.sizes)},
            )
            return [], []
        if not listed.segments:
            return [], []
        try:
            log = await self._open(topic)
            newest_ms = await self._newest_commit_ms(log)
        except (CorruptObject, UnsupportedFormat) as error:
            self._metrics.failures += 1
            logger.error(
                "a table cannot be read, so none of its segments is collected",
                extra={"topic_id": str(topic_id), "why": str(error)},
            )
            return [], []
        loose = loose_segments(
            log.state, newest_ms, listed.segments.values(), int(self._grace_seconds * 1000)
        )
        gone, may_come = set(loose.gone), set(loose.may_come)
        return (
            [key for key, each in listed.segments.items() if each.name in gone],
            [key for key, each in listed.segments.items() if each.name in may_come],
        )

    async def _open(self, topic: Topic) -> TableLog:
        return await TableLog.open(
            self._store,
            self._clock,
            self._entropy,
            self._offload,
            topic.topic_id,
            topic.name,
            self._grace_seconds,
        )

    async def _newest_commit_ms(self, log: TableLog) -> int:
        """The put time of the table's newest version, by the store's clock.

        0 if the table has no version, or if later commits have cleaned up that version meanwhile.
        """
        if log.state.version == NO_VERSION:
            return 0
        try:
            return (await self._store.head(log.key(log.state.version))).modified_ms
        except ObjectNotFound:
            return 0

    async def _fence(self, topic_id: TopicId) -> None:
        """Commit an empty version, so that the pending commit of these segments fails."""
        topic = self._cluster.state.topics.get(topic_id)
        if topic is None:
            return
        try:
            version = await (await self._open(topic)).fence()
            self._crash_points.hit(CrashPoint.TABLE_FENCED)
        except (CorruptObject, UnsupportedFormat) as error:
            logger.error("a table cannot be read", extra={"why": str(error)})
            return
        logger.info(
            "an empty commit fences segments that were never committed",
            extra={"topic": topic.name, "version": version},
        )
