"""What group coordinators ask for that takes too long for the event loop: looking regular
expressions up, and assigning the partitions of large groups. It is put to them as a command.

If the broker dies, or a result is lost on the way, the coordinator asks again.
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
    """Does what decisions ask for. `run` is its task."""

    def __init__(self, offload: Offload) -> None:
        """`offload`: for what keeps a worker busy for tens of milliseconds, or for longer."""
        self._offload = offload
        self.patterns = PatternMatching(offload)
        self._begun: asyncio.Queue[tuple[GroupRuntime, GroupWork]] = asyncio.Queue()
        self._making = asyncio.Lock()

    def begin(self, runtime: GroupRuntime, work: Sequence[GroupWork]) -> None:
        """Have it done. A group asks for one thing of each kind at a time."""
        for each in work:
            self._begun.put_nowait((runtime, each))

    async def run(self) -> NoReturn:
        """Work until cancelled."""
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
                "work for a group is lost, and is asked for again",
                extra={"partition": runtime.name, "group": work.group_id, "why": str(error)},
            )

    async def _result(self, work: GroupWork) -> Command:
        if isinstance(work, PatternLookup):
            matches = await self.patterns.topics_named(work.patterns, work.topics)
            return PatternsFound(work.group_id, matches)
        # One after the other: each may keep a worker busy for a second.
        async with self._making:
            return TargetMade(await self._offload.run(make_target, work))
