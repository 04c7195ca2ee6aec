"""What a broker's roller is to do now, and how fast.

It is looked for at the beginning of a round, and again each second in the pauses of the rolls of
that round: what comes due meanwhile counts for their pace, and who waits, or has waited for too
long, calls the roller away as soon as the segment in hand is done.
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
from tidelog.wal.roll.pace import Pace
from tidelog.wal.roll.roll_pace import Haste, haste_of, rate_for
from tidelog.wal.roll.roll_plan import Backlog, Roll, RollLimits, plan_rolls

LOOK_SECONDS = 1.0
"""How often it is looked for what is due while there are pauses."""
PAUSE_SECONDS_MIN = 0.001
"""Less is not worth a pause; it is part of the next one."""
GRACE_SHARE_MAX = 1 / 8
"""Of the grace, within which what is built has to be committed: over how long rolls are spread."""
LOOKED_AT_ONCE = 1000
"""Partitions that are looked at before others may go on."""


class RollAgenda:
    """One roller's."""

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
        self._pace = Pace(inf)
        self._looked_at = -inf
        self._planned: set[TopicPartition] = set()
        self._is_called_away = False
        self.has_looked_again = False
        """Whether something may be due that was not when this round began."""
        self.paused_seconds = 0.0

    @property
    def is_called_away(self) -> bool:
        """Whether something is more urgent than what nobody waits for of this round."""
        return self._is_called_away or self._queue.asked.is_set()

    async def begin(self) -> list[Roll]:
        """A round: what is due, the most urgent first: for whom somebody waits, what is overdue."""
        due = await self._look()
        self._planned = {roll.partition for roll in due}
        self._is_called_away = self.has_looked_again = False
        return sorted(due, key=haste_of)

    def strike(self, place: TopicPartition) -> None:
        """The partition has had its turn in this round."""
        self._planned.discard(place)

    async def look_again(self) -> None:
        """Learn what has come due since, and go on as fast as that asks for."""
        self.has_looked_again = True
        hastes = {roll.partition: haste_of(roll) for roll in await self._look()}
        self._is_called_away = any(
            haste is Haste.ASKED or (haste is Haste.OVERDUE and place not in self._planned)
            for place, haste in hastes.items()
        )

    async def wait(self) -> None:
        """Until the next piece of a roll may begin."""
        while True:
            now = self._clock.monotonic()
            if self._queue.asked.is_set() or now - self._looked_at >= LOOK_SECONDS:
                await self.look_again()
                now = self._clock.monotonic()
            seconds = self._pace.seconds_to_wait(now)
            if seconds < PAUSE_SECONDS_MIN:
                break
            await wait_for(self._queue.asked, min(seconds, LOOK_SECONDS))
            self.paused_seconds += self._clock.monotonic() - now
        self._pace.begin(now)

    def note(self, work_bytes: int) -> None:
        """So much was done since it could begin, in bytes of the WAL."""
        self._pace.note(work_bytes)

    async def _look(self) -> list[Roll]:
        settings = self._settings()
        self._queue.asked.clear()
        limits = RollLimits(
            settings.integer("roll.wal.max.bytes"), settings.integer("roll.min.bytes")
        )
        due = plan_rolls(await self._backlogs(settings), limits)
        grace_seconds = settings.integer("log.delete.grace.ms") / 1000
        seconds = min(settings.integer("roll.spread.ms") / 1000, GRACE_SHARE_MAX * grace_seconds)
        self._looked_at = self._clock.monotonic()
        self._pace.renew(rate_for(due, seconds), self._looked_at)
        return due

    async def _backlogs(self, settings: BrokerSettings) -> list[Backlog]:
        """What there is to roll."""
        bytes_max, age_ms_max = settings.integer("roll.bytes"), settings.integer("roll.age.ms")
        found: list[Backlog] = []
        for number, place in enumerate(self._queue.begin_look(), 1):
            if self._partitions.get(place) is None:
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
        self._metrics.stopped = len(self._queue.faults())
        return found


class RollTurns:
    """When the roll of one partition may take up its next piece."""

    def __init__(self, agenda: RollAgenda, is_wanted: Callable[[], bool]) -> None:
        """`is_wanted`: whether the roll is of any use still."""
        self._agenda = agenda
        self._is_wanted = is_wanted

    async def next(self) -> bool:
        """Wait until the next piece may begin; whether it is wanted still."""
        await self._agenda.wait()
        return self._is_wanted()

    def note(self, work_bytes: int) -> None:
        """So much was done since it could begin."""
        self._agenda.note(work_bytes)


async def wait_for(event: asyncio.Event, seconds: float | None) -> None:
    """Until the event, but not longer than that."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
