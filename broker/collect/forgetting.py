"""Removes ids from the metadata log once the bucket holds nothing of them.

The log remembers deleted topics and retired incarnations while the bucket may hold their objects.
So a collector can tell which objects it may delete. The log forgets a topic's id when its folder is
empty. It forgets an incarnation's id when only its seal is left and no tenure names
it. Otherwise the log would grow with every restart and every deleted topic.

Correctness does not depend on the moment. A process fenced long ago may still put an object of a
forgotten id. The id tells that the log knew it (`ClusterState.fate_of`, `is_retired`). So fsck
reports the object, and no collector touches it. The folder must have been empty for the grace, so
only a request that is late by more than the grace can do this.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from itertools import islice
from typing import Final, NoReturn, TypeVar

from tidelog.broker.collect.marks import Marks
from tidelog.broker.collect.shares import SharedWork, is_responsible
from tidelog.broker.collect.table_collector import FIRST_SHARE
from tidelog.bucket.reachability import needed_incarnations
from tidelog.clock import Clock
from tidelog.concurrency import read_all
from tidelog.coordinator.cluster.log.metadata_log import MetadataLog
from tidelog.coordinator.cluster.records.records import (
    IncarnationsForgotten,
    Record,
    TopicsForgotten,
)
from tidelog.coordinator.cluster.state.incarnations import RetiredWal
from tidelog.coordinator.cluster.state.state import ClusterState
from tidelog.errors import Refused
from tidelog.identifiers import Epoch, Incarnation, TopicId
from tidelog.storage.object_store import ObjectStore, StoreError
from tidelog.storage.segment.segment import table_prefix
from tidelog.wal.format.object_format import merged_prefix, wal_key, wal_prefix
from tidelog.wal.write.checkpoint import checkpoint_prefix

T = TypeVar("T")

LOOKED_AT_MAX: Final = 10_000
"""Topics, and incarnations, that one pass checks, with one to three requests each.

Passes keep up with as many deletions and restarts an interval.
"""
LOOKS_AT_ONCE_MAX: Final = 16

logger = logging.getLogger(__name__)


class Forgetting:
    """One broker's passes. `run` is its task."""

    def __init__(
        self,
        store: ObjectStore,
        clock: Clock,
        log: MetadataLog,
        incarnation: Incarnation,
        interval_seconds: float,
        marks: Marks[str],
    ) -> None:
        """`marks`: marked ids, in the form of `_marks_of`; they wait for the grace."""
        self._store = store
        self._clock = clock
        self._log = log
        self._incarnation = incarnation
        self._interval_seconds = interval_seconds
        self._marks = marks

    async def run(self) -> NoReturn:
        """Check at intervals, until cancelled.

        The first passes come sooner after the start, for processes that live less than an interval.
        """
        share = FIRST_SHARE
        while True:
            await self._clock.sleep(share * self._interval_seconds)
            share = min(1.0, 2 * share)
            try:
                await self.look()
            except (Refused, StoreError) as error:
                logger.warning("no id was forgotten this time", extra={"why": str(error)})

    async def look(self) -> None:
        """One pass. Raises StoreError, and whatever `MetadataLog.append` raises."""
        state = self._log.state
        if not is_responsible(state, self._incarnation, SharedWork.FORGETTING):
            return
        topics = await _first_of(state.deleted, self._is_gone)
        needed = needed_incarnations(state) if state.retired else frozenset()
        passed = (wal for wal in state.retired.values() if wal.incarnation not in needed)
        wals = await _first_of(passed, self._only_seal_is_left)
        epochs = [wal.incarnation.epoch for wal in wals]
        due = frozenset(self._marks.update(_marks_of(topics, epochs), self._clock.monotonic()))
        due_topics = [each for each in topics if _topic_mark(each) in due]
        due_epochs = [each for each in epochs if _epoch_mark(each) in due]
        if due_topics or due_epochs:
            build = _Forget(due_topics, due_epochs)
            await self._log.append(self._incarnation.epoch, build)
            logger.info(
                "the metadata log forgot ids without objects",
                extra={"topics": len(due_topics), "incarnations": len(due_epochs)},
            )

    async def _is_gone(self, topic_id: TopicId) -> bool:
        return await self._holds_only(table_prefix(topic_id))

    async def _only_seal_is_left(self, wal: RetiredWal) -> bool:
        owner = wal.incarnation
        return (
            await self._holds_only(wal_prefix(owner), wal_key(owner, wal.end_slot))
            and await self._holds_only(merged_prefix(owner))
            and await self._holds_only(checkpoint_prefix(owner))
        )

    async def _holds_only(self, prefix: str, key: str | None = None) -> bool:
        async for meta in self._store.list(prefix):
            if meta.key != key:
                return False
        return True


def _topic_mark(topic_id: TopicId) -> str:
    return f"topic {topic_id}"


def _epoch_mark(epoch: Epoch) -> str:
    return f"epoch {epoch}"


def _marks_of(topics: Iterable[TopicId], epochs: Iterable[Epoch]) -> list[str]:
    return [*map(_topic_mark, topics), *map(_epoch_mark, epochs)]


async def _first_of(items: Iterable[T], is_so: Callable[[T], Awaitable[bool]]) -> list[T]:
    """The first LOOKED_AT_MAX items for which `is_so` holds."""
    chosen = list(islice(items, LOOKED_AT_MAX))
    answers = await read_all(is_so, chosen, asyncio.Semaphore(LOOKS_AT_ONCE_MAX))
    return [each for each, answer in zip(chosen, answers, strict=True) if answer]


class _Forget:
    """The log entry: the ids that the state before it still holds and does not need."""

    def __init__(self, topics: Sequence[TopicId], epochs: Sequence[Epoch]) -> None:
        self._topics = topics
        self._epochs = epochs

    def __call__(self, state: ClusterState) -> Sequence[Record]:
        topics = tuple([each for each in self._topics if each in state.deleted])
        needed = {each.epoch for each in needed_incarnations(state)}
        epochs = tuple([e for e in self._epochs if e in state.retired and e not in needed])
        records: list[Record] = []
        if topics:
            records.append(TopicsForgotten(topics))
        if epochs:
            records.append(IncarnationsForgotten(epochs))
        return records
