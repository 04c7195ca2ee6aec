"""The partitions with records for their tables: ages, waiting clients and obstacles.

Partitions without such records are not in the queue, and cost nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from dataclasses import dataclass

from tidelog.broker.partitions.partitions import Partition, PartitionError, PartitionRegistry
from tidelog.broker.settings.settings import TopicConfig
from tidelog.broker.tables.table_source import lost_versions
from tidelog.clock import Clock
from tidelog.errors import CorruptObject, TidelogError, without_frames
from tidelog.identifiers import TopicPartition
from tidelog.protocol.error_codes import ErrorCode
from tidelog.storage.table.table_log import log_prefix
from tidelog.storage.table.table_state import TableState
from tidelog.wal.roll.roll_plan import Backlog

logger = logging.getLogger(__name__)

PAUSE_SECONDS_FIRST = 1.0
PAUSE_SECONDS_MAX = 60.0
STOPPED_SECONDS = 300.0
"""The time until a partition with a corrupt object is retried."""
WITHHELD_SECONDS = 1.0
"""The time between two looks at a partition that is being given away."""


@dataclass(slots=True)
class _Pause:
    """Why and until when a partition is not rolled."""

    error: TidelogError
    until: float
    seconds: float
    is_stop: bool
    """Whether a retry is expected to fail again."""


@dataclass(slots=True)
class _TableWaiter:
    """A client waits until the table has all records below an offset."""

    target: int
    done: asyncio.Future[None]


class RollQueue:
    """The state of a broker's pending rolls. No I/O."""

    def __init__(self, partitions: PartitionRegistry, clock: Clock) -> None:
        self._partitions = partitions
        self._clock = clock
        self._since: dict[TopicPartition, float] = {}
        self._pauses: dict[TopicPartition, _Pause] = {}
        self._waiting: dict[TopicPartition, list[_TableWaiter]] = {}
        self._next_look: float | None = None
        self._has_news = False
        self._is_closed = False
        self.news = asyncio.Event()
        """Set when a partition may have become due."""
        self.asked = asyncio.Event()
        """Set when a client waits for a roll that is not planned yet."""

    @property
    def has_waiting(self) -> bool:
        """Whether any client waits for a roll."""
        return bool(self._waiting)

    @property
    def seconds_to_next_look(self) -> float | None:
        """The time until the next partition becomes due, without further news."""
        if self._next_look is None:
            return None
        return max(0.0, self._next_look - self._clock.monotonic())

    def note(self, place: TopicPartition) -> None:
        """Enter a partition whose records have become durable."""
        if place not in self._since:
            self._since[place] = self._clock.monotonic()
        if not self._has_news:
            self._has_news = True
            self.news.set()

    def wait(self, partition: Partition) -> asyncio.Future[None]:
        """A future that is done when the table has all records that are decided now."""
        place, target = partition.log.partition, partition.log.last_stable_offset
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if target <= partition.log.table_next:
            done.set_result(None)
            return done
        # The client may have repaired the damage before it asked.
        self._pauses.pop(place, None)
        self._since.setdefault(place, self._clock.monotonic())
        # Cancelled waits are kept no longer than until the next request.
        still = [each for each in self._waiting.get(place, ()) if not each.done.done()]
        self._waiting[place] = [*still, _TableWaiter(target, done)]
        if self._is_closed:
            self._fail(place, _has_ended(place))
        self.asked.set()
        self.news.set()
        return done

    def close(self) -> None:
        """End all rolls: present and later waits fail."""
        self._is_closed = True
        for place in list(self._waiting):
            self._fail(place, _has_ended(place))

    # Planning.

    @property
    def has_stopped(self) -> bool:
        """Whether a corrupt object stops any rolls."""
        return any(pause.is_stop for pause in self._pauses.values())

    def begin_look(self) -> list[TopicPartition]:
        """The partitions to examine. Partitions noted from now on belong to the next look.

        Those without records whose last roll has failed are among them: they may have left.
        """
        self._has_news = False
        self._next_look = None
        return [*self._since, *(place for place in self._pauses if place not in self._since)]

    def backlog(
        self, place: TopicPartition, config: TopicConfig, bytes_max: int, age_ms_max: int
    ) -> Backlog | None:
        """The records of a partition that could be rolled now.

        `config`: the topic's settings, which may lower both limits.
        """
        partition, now = self._partitions.get(place), self._clock.monotonic()
        if place not in self._since:
            return None
        if partition is None:
            # It is being given away, and stays if the move is refused.
            self._look_at(now + WITHHELD_SECONDS)
            return None
        if partition.fault is not None:
            return None
        log = partition.log
        stable = log.last_stable_offset
        if stable <= log.table_next:
            # Records of open transactions wait; the marker enters the partition again. A reader may
            # have found that another broker has rolled the others (`missing_extent`).
            self.rolled(partition)
            return None
        pause = self._pauses.get(place)
        if pause is not None and pause.until > now:
            self._look_at(pause.until)
            return None
        age_ms_max = min(age_ms_max, config.integer("segment.ms"))
        since = self._since[place]
        self._look_at(since + age_ms_max / 1000)
        return Backlog(
            place,
            log.extents.bytes_below(stable),
            len(log.extents),
            int((now - since) * 1000),
            min(bytes_max, config.integer("segment.bytes")),
            age_ms_max,
            any(not each.done.done() for each in self._waiting.get(place, ())),
        )

    def _look_at(self, time: float) -> None:
        self._next_look = time if self._next_look is None else min(self._next_look, time)

    # Results of rolls.

    def set_waiting_since(self, place: TopicPartition, since: float) -> None:
        """Set the time since which the partition's records wait."""
        if place in self._since:
            self._since[place] = since

    def advance_to_table(self, partition: Partition, state: TableState) -> CorruptObject | None:
        """Advance the log to the table's end, and note the progress.

        Returns the fault if log and table disagree: the table is ahead of every acknowledged
        record, or has lost versions.
        """
        log, ends_at = partition.log, end_of(partition, state)
        if ends_at < log.table_next:
            return lost_versions(state, log.partition, log.table_next)
        if ends_at > log.high_watermark:
            return CorruptObject(
                log_prefix(log.partition.topic_id),
                f"for {partition} the table ends at offset {ends_at}, and all that is there of its"
                f" log at {log.high_watermark}",
            )
        if ends_at > log.table_next:
            log.advance_table(ends_at)
            self.rolled(partition)
        return None

    def rolled(self, partition: Partition) -> None:
        """Note that the table has advanced."""
        log = partition.log
        place, table_next = log.partition, log.table_next
        self._end_pause(place)
        # A partition that went and came back is another object, with records of its own.
        if log.high_watermark <= table_next and self._partitions.held(place) is partition:
            self._since.pop(place, None)
        waiting = self._waiting.pop(place, [])
        left = [each for each in waiting if each.target > table_next]
        for each in waiting:
            if each.target <= table_next and not each.done.done():
                each.done.set_result(None)
        if left:
            self._waiting[place] = left
            self.asked.set()
            self.news.set()

    def forget(self, place: TopicPartition) -> None:
        """Remove a partition that this broker no longer leads, and fail its waits."""
        self._since.pop(place, None)
        self._end_pause(place)
        why = f"partition {place.partition} of {place.topic_id} is not here any more"
        self._fail(place, PartitionError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, why))

    def stop(self, partitions: Iterable[Partition], error: TidelogError) -> None:
        """Stop rolling partitions with a corrupt object, and fail their waits; others continue.

        A partition that was given away meanwhile is its receiver's to roll and to judge: the table
        may be ahead of the giver's log.
        """
        until = self._clock.monotonic() + STOPPED_SECONDS
        for partition in partitions:
            place = partition.log.partition
            if self._partitions.get(place) is not partition:
                continue
            self._pauses[place] = _Pause(
                without_frames(error), until, STOPPED_SECONDS, is_stop=True
            )
            self._look_at(until)
            self._fail(place, error)
            logger.error(
                "a partition cannot be rolled",
                extra={
                    "partition": str(partition),
                    "key": getattr(error, "key", None),
                    "why": str(error),
                },
            )
        # A look counts the stopped partitions.
        self.news.set()

    def _end_pause(self, place: TopicPartition) -> None:
        pause = self._pauses.pop(place, None)
        if pause is not None and pause.is_stop:
            self.news.set()

    def pause(self, partitions: Iterable[Partition], error: TidelogError) -> int:
        """Retry partitions later, after a failure of the store or a worker; return their number."""
        now, count = self._clock.monotonic(), 0
        for partition in partitions:
            place = partition.log.partition
            before = self._pauses.get(place)
            seconds = PAUSE_SECONDS_FIRST if before is None else 2 * before.seconds
            seconds = min(seconds, PAUSE_SECONDS_MAX)
            self._pauses[place] = _Pause(
                without_frames(error), now + seconds, seconds, is_stop=False
            )
            self._look_at(now + seconds)
            count += 1
        logger.warning(
            "a roll failed; the broker retries",
            extra={"key": getattr(error, "key", None), "why": str(error)},
        )
        return count

    def is_paused(self, place: TopicPartition) -> bool:
        """Whether the partition is not to be rolled now."""
        pause = self._pauses.get(place)
        return pause is not None and pause.until > self._clock.monotonic()

    def failure_of(self, place: TopicPartition) -> TidelogError | None:
        """The last error of the partition's rolls, if its table has not advanced since."""
        pause = self._pauses.get(place)
        return None if pause is None else pause.error

    def faults(self) -> list[TidelogError]:
        """The corrupt objects that stop rolls. Callable from any thread."""
        return [pause.error for pause in list(self._pauses.values()) if pause.is_stop]

    def _fail(self, place: TopicPartition, error: TidelogError) -> None:
        for each in self._waiting.pop(place, ()):
            if not each.done.done():
                each.done.set_exception(error)
                # The client may have gone; its unseen error must not reach the event loop's
                # handler.
                each.done.exception()


def _has_ended(place: TopicPartition) -> PartitionError:
    why = f"the broker that led partition {place.partition} of {place.topic_id} has ended"
    return PartitionError(ErrorCode.NOT_LEADER_OR_FOLLOWER, why)


def end_of(partition: Partition, state: TableState) -> int:
    """The partition's next offset that is not in the table."""
    return state.partition(partition.log.partition.partition).next_offset
