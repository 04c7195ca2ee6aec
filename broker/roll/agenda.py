"""The roller's plan: which partitions to roll next, and how fast.

The plan is made at the beginning of a round, and again each second in the pauses of its rolls. So
partitions that come due meanwhile count for the pace. A roll that a client waits for, or an overdue
one, calls the roller away as soon as the present segment is done.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from math import inf

from tidelog.broker.partitions.partitions import PartitionRegistry
from tidelog.broker.roll.metrics import RollMetrics
from tidelog.broker.roll.queue import RollQueue
from tidelog.broker.settings.settings import BrokerSettings, TopicConfig
from tidelog.clock import Clock
from tidelog.identifiers import TopicId, TopicPartition
from tidelog.wal.roll.pace import RollPriority, Throttle, priority_of, rate_for
from tidelog.wal.roll.roll_plan import Backlog, Roll, RollLimits, plan_rolls

LOOK_SECONDS = 1.0
"""How often pauses are used to look for due partitions."""
PAUSE_SECONDS_MIN = 0.001
"""A shorter pause is not worth it; it becomes a part of the next one."""
GRACE_SHARE_MAX = 1 / 8
"""The part of log.delete.grace.ms over which rolls are spread; commits must stay within it."""
LOOKED_AT_ONCE = 1000
"""Partitions that are examined before other tasks get a turn."""


class RollAgenda:
    """The plan of one roller."""

    def __init__(
        self,
        queue: RollQueue,
        partitions: PartitionRegistry,
        clock: Clock,
        settings: Callable[[], BrokerSettings],
        topic_config: Callable[[TopicId], TopicConfig],
        metrics: RollMetrics,
    ) -> None:
        self._queue = queue
        self._partitions = partitions
        self._clock = clock
        self._settings = settings
        self._topic_config = topic_config
        self._metrics = metrics
        self._throttle = Throttle(inf)
        self._planned_at = -inf
        self._planned: set[TopicPartition] = set()
        self._is_preempted = False
        self.has_planned_again = False
        """Whether partitions may be due that were not when this round began."""
        self.paused_seconds = 0.0

    @property
    def is_preempted(self) -> bool:
        """True if a roll that a client waits for should interrupt background rolls."""
        return self._is_preempted or self._queue.asked.is_set()

    async def begin(self) -> list[Roll]:
        """Begin a round: the due rolls, first those that clients wait for, then overdue ones."""
        due = await self._plan()
        self._planned = {roll.partition for roll in due}
        self._is_preempted = self.has_planned_again = False
        return sorted(due, key=priority_of)

    def finish(self, place: TopicPartition) -> None:
        """Remove a partition that has had its turn in this round."""
        self._planned.discard(place)

    async def plan_again(self) -> None:
        """Plan again with newly due partitions, and adapt the pace."""
        self.has_planned_again = True
        priorities = {roll.partition: priority_of(roll) for roll in await self._plan()}
        self._is_preempted = any(
            priority is RollPriority.REQUESTED
            or (priority is RollPriority.OVERDUE and place not in self._planned)
            for place, priority in priorities.items()
        )

    async def wait(self) -> None:
        """Wait until the next piece of a roll may begin."""
        while True:
            now = self._clock.monotonic()
            if self._queue.asked.is_set() or now - self._planned_at >= LOOK_SECONDS:
                await self.plan_again()
                now = self._clock.monotonic()
            seconds = self._throttle.seconds_to_wait(now)
            if seconds < PAUSE_SECONDS_MIN:
                break
            await wait_for(self._queue.asked, min(seconds, LOOK_SECONDS))
            self.paused_seconds += self._clock.monotonic() - now
        self._throttle.begin(now)

    def note(self, work_bytes: int) -> None:
        """Account for the work of a piece, in bytes of the WAL."""
        self._throttle.note(work_bytes)

    async def _plan(self) -> list[Roll]:
        settings = self._settings()
        self._queue.asked.clear()
        limits = RollLimits(
            settings.integer("roll.wal.max.bytes"), settings.integer("roll.min.bytes")
        )
        due = plan_rolls(await self._backlogs(settings), limits)
        grace_seconds = settings.integer("log.delete.grace.ms") / 1000
        seconds = min(settings.integer("roll.spread.ms") / 1000, GRACE_SHARE_MAX * grace_seconds)
        self._planned_at = self._clock.monotonic()
        self._throttle.renew(rate_for(due, seconds), self._planned_at)
        return due

    async def _backlogs(self, settings: BrokerSettings) -> list[Backlog]:
        """The backlogs of all partitions with records for their tables."""
        bytes_max, age_ms_max = settings.integer("roll.bytes"), settings.integer("roll.age.ms")
        found: list[Backlog] = []
        for number, place in enumerate(self._queue.begin_look(), 1):
            if self._partitions.held(place) is None:
                self._queue.forget(place)
                continue
            config = self._topic_config(place.topic_id)
            backlog = self._queue.backlog(place, config, bytes_max, age_ms_max)
            if backlog is not None:
                found.append(backlog)
            if number % LOOKED_AT_ONCE == 0:
                await self._clock.sleep(0)
        self._metrics.backlog_partitions = len(found)
        self._metrics.backlog_bytes = sum(backlog.wal_bytes for backlog in found)
        self._metrics.backlog_limit_bytes = settings.integer("roll.wal.max.bytes")
        self._metrics.stopped = len(self._queue.faults())
        return found


class RollTurns:
    """The pace of one partition's roll: when it may take its next piece."""

    def __init__(self, agenda: RollAgenda, is_wanted: Callable[[], bool]) -> None:
        """`is_wanted`: whether the roll is still useful."""
        self._agenda = agenda
        self._is_wanted = is_wanted

    async def next(self) -> bool:
        """Wait until the next piece may begin; return whether it is still wanted."""
        await self._agenda.wait()
        return self._is_wanted()

    def note(self, work_bytes: int) -> None:
        """Account for the work of a piece."""
        self._agenda.note(work_bytes)


async def wait_for(event: asyncio.Event, seconds: float | None) -> None:
    """Wait for the event, at most so long."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
