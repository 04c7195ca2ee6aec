"""Runs the group coordinators' slow work off the event loop, and submits results as commands.

The work is matching regular expressions and assigning the partitions of large groups. If the broker
dies, or a result is lost, the coordinator asks again.

The worker gets one slice of one expression at a time, the cheapest expression first. So an
expression that takes seconds does not hold up one that takes a millisecond.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from itertools import count
from typing import Final, NoReturn, TypeAlias

from tidelog.coordinator.group.assign.target_assignment import make_target
from tidelog.coordinator.group.assign.topic_patterns import TopicPatterns
from tidelog.coordinator.group.commands import (
    Command,
    GroupWork,
    PatternLookup,
    PatternsFound,
    Reply,
    TargetMade,
)
from tidelog.coordinator.group.consumer_commands import ClusterTopics, KnownTopic, Matches
from tidelog.coordinator.group.records.log_records import GroupRecord
from tidelog.coordinator.patterns import check_cost, matching, slice_end
from tidelog.coordinator.runtime import CoordinatorRefused, CoordinatorRuntime
from tidelog.errors import TidelogError
from tidelog.identifiers import TopicId
from tidelog.protocol.error_codes import ErrorCode
from tidelog.workers.offload import Offload

EXPRESSIONS_WAITING_MAX: Final = 1_000
NAMES_REMEMBERED_MAX: Final = 1_000_000
"""Topic names that all remembered expressions match together."""


class _Trial:
    """An expression and the texts to match it against."""

    __slots__ = ("found", "pattern", "position", "result", "steps", "texts")

    def __init__(self, pattern: str, texts: Sequence[str]) -> None:
        self.pattern = pattern
        self.texts = texts
        self.result: asyncio.Future[list[str]] = asyncio.get_running_loop().create_future()
        self.steps = 0
        """The compiled expression's steps; 0 before the first step, which compiles it."""
        self.position = 0
        self.found: list[str] = []

    @property
    def cost(self) -> int:
        """The approximate work that remains."""
        return self.steps * (len(self.texts) - self.position)


class PatternMatching:
    """The queue of one broker's expressions. `run` is its task."""

    def __init__(self, offload: Offload) -> None:
        """`offload` runs work that occupies a worker for some tens of milliseconds at a time."""
        self._offload = offload
        self._queue: asyncio.PriorityQueue[tuple[int, int, _Trial]] = asyncio.PriorityQueue()
        self._order = count()
        self._topic_patterns = TopicPatterns(NAMES_REMEMBERED_MAX)
        self._names: frozenset[str] = frozenset()
        self._names_of: Mapping[TopicId, KnownTopic] | None = None
        self._lookups: dict[tuple[str, int], asyncio.Future[frozenset[str]]] = {}
        """The lookups under way, by expression and the topics' identity."""
        self._remembering = asyncio.Lock()
        """Only one worker at a time may change the remembered names."""

    async def matching(self, pattern: str, texts: Sequence[str]) -> list[str]:
        """The texts that the expression matches.

        Raises InvalidPattern, or CoordinatorRefused if EXPRESSIONS_WAITING_MAX others wait.
        """
        if self._queue.qsize() >= EXPRESSIONS_WAITING_MAX:
            why = f"{EXPRESSIONS_WAITING_MAX} regular expressions wait for their turn"
            raise CoordinatorRefused(ErrorCode.COORDINATOR_NOT_AVAILABLE, why)
        trial = _Trial(pattern, texts)
        self._put(trial)
        return await trial.result

    async def topics_named(self, patterns: frozenset[str], topics: ClusterTopics) -> Matches:
        """The topics that each expression matches. Only new names are tried.

        Raises what `matching` raises.
        """
        names = {each: await self._topics_named(each, topics.topics) for each in sorted(patterns)}
        return Matches(topics.topics, names)

    async def run(self) -> NoReturn:
        try:
            while True:
                _, _, trial = await self._queue.get()
                # The result is cancelled once its client has gone.
                if not trial.result.done():
                    await self._go_on(trial)
        finally:
            for lookup in self._lookups.values():
                lookup.cancel()

    def _put(self, trial: _Trial) -> None:
        self._queue.put_nowait((trial.cost, next(self._order), trial))

    async def _go_on(self, trial: _Trial) -> None:
        try:
            if not trial.steps:
                trial.steps = await self._offload.run(check_cost, trial.pattern)
            else:
                end = slice_end(trial.texts, trial.position, trial.steps)
                texts = trial.texts[trial.position : end]
                trial.found += await self._offload.run(matching, trial.pattern, texts)
                trial.position = end
        except TidelogError as error:
            if not trial.result.done():
                trial.result.set_exception(error)
        else:
            if trial.position < len(trial.texts):
                self._put(trial)
            elif not trial.result.done():
                trial.result.set_result(trial.found)

    async def _topics_named(
        self, pattern: str, topics: Mapping[TopicId, KnownTopic]
    ) -> frozenset[str]:
        """The matching names. Members of a group that ask at the same time share one lookup."""
        key = pattern, id(topics)
        lookup = self._lookups.get(key)
        if lookup is None:
            lookup = self._lookups[key] = asyncio.ensure_future(self._look_up(pattern, topics))
            lookup.add_done_callback(lambda done: self._looked_up(key, done))
        return await asyncio.shield(lookup)

    def _looked_up(self, key: tuple[str, int], lookup: asyncio.Future[frozenset[str]]) -> None:
        del self._lookups[key]
        if not lookup.cancelled():
            # All callers may have gone: retrieve the error, so that the loop logs none.
            lookup.exception()

    async def _look_up(self, pattern: str, topics: Mapping[TopicId, KnownTopic]) -> frozenset[str]:
        run, patterns = self._offload.run, self._topic_patterns
        async with self._remembering:
            if topics is not self._names_of:
                self._names, self._names_of = await run(_names_of, topics), topics
            names = self._names
            untried = await run(patterns.untried, pattern, names)
        found = await self.matching(pattern, untried)
        async with self._remembering:
            return await run(patterns.store_matches, pattern, names, found)


def _names_of(topics: Mapping[TopicId, KnownTopic]) -> frozenset[str]:
    return frozenset([each.name for each in topics.values()])


logger = logging.getLogger(__name__)

GroupRuntime: TypeAlias = CoordinatorRuntime[Command, GroupRecord, Reply]


class GroupWorker:
    """Does the work that group decisions request. `run` is its task."""

    def __init__(self, offload: Offload) -> None:
        """`offload` runs work that occupies a worker for tens of milliseconds or more."""
        self._offload = offload
        self.patterns = PatternMatching(offload)
        self._begun: asyncio.Queue[tuple[GroupRuntime, GroupWork]] = asyncio.Queue()
        self._making = asyncio.Lock()

    def begin(self, runtime: GroupRuntime, work: Sequence[GroupWork]) -> None:
        """Queue the work. A group requests one work item of each kind at a time."""
        for each in work:
            self._begun.put_nowait((runtime, each))

    async def run(self) -> NoReturn:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.patterns.run())
            while True:
                runtime, work = await self._begun.get()
                tasks.create_task(self._do(runtime, work))

    async def _do(self, runtime: GroupRuntime, work: GroupWork) -> None:
        try:
            await runtime.submit(await self._result(work))
        except Exception as error:  # noqa: BLE001 - no group's request may end the broker
            logger.warning(
                "work for a group failed; its coordinator requests it again",
                extra={"partition": runtime.name, "group": work.group_id, "why": str(error)},
            )

    async def _result(self, work: GroupWork) -> Command:
        if isinstance(work, PatternLookup):
            matches = await self.patterns.topics_named(work.patterns, work.topics)
            return PatternsFound(work.group_id, matches)
        # One at a time: each may occupy a worker for a second.
        async with self._making:
            return TargetMade(await self._offload.run(make_target, work))
