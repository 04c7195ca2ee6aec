"""Runs the group coordinators' slow work off the event loop, and submits results as commands.

The work is matching regular expressions and assigning the partitions of large groups. If the broker
dies, or a result is lost, the coordinator asks again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import NoReturn, TypeAlias

from tidelog.broker.coordinate.pattern_matching import PatternMatching
from tidelog.coordinator.group.assign.target_assignment import make_target
from tidelog.coordinator.group.commands import (
    Command,
    GroupWork,
    PatternLookup,
    PatternsFound,
    Reply,
    TargetMade,
)
from tidelog.coordinator.group.records.log_records import GroupRecord
from tidelog.coordinator.runtime import CoordinatorRuntime
from tidelog.offload import Offload

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
