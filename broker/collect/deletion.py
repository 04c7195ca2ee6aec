"""Deletes the objects that collections found unreachable, in groups at a steady rate.

Due objects wait here in memory, slots as runs. The rate would delete all of them within one
interval of the collector. So under constant load the broker deletes as much each second as it
creates, and the waiting objects stay in proportion to the load.

If the process dies anywhere, less is deleted. A failed deletion is repeated. Deleting twice does no
harm: slots and other names are never reused.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final, NamedTuple, NoReturn

from tidelog.broker.collect.wal_inventory import WalRuns
from tidelog.broker.tables.segment_ages import SEGMENT_SUFFIX
from tidelog.clock import Clock
from tidelog.counts import counter, gauge, timestamp
from tidelog.crash_points import CrashPoint, CrashPoints
from tidelog.identifiers import Incarnation, Slot
from tidelog.storage.object_store import DELETED_AT_ONCE_MAX, ObjectStore, StoreError
from tidelog.storage.segment.segment import TOPICS_PREFIX
from tidelog.wal.format.object_format import wal_key
from tidelog.wal.recover.slot_runs import SlotRun, count
from tidelog.wal.roll.pace import rate_of

logger = logging.getLogger(__name__)

DELETES_A_SECOND_MIN: Final = 100
DELETES_A_SECOND_MAX: Final = 10_000
"""Several times the rate at which a broker can create objects."""
STEP_SECONDS: Final = 0.1
"""One request deletes at most what the rate allows for this time."""
RETRY_SECONDS: Final = 10.0


@dataclass(slots=True)
class CollectorMetrics:
    """Counts of deleted objects, by their folder."""

    objects: dict[str, int] = counter(
        "tidelog_collected_objects",
        "Deleted unreachable objects.",
        "folder",
        new=dict,
    )
    bytes: dict[str, int] = counter("tidelog_collected_bytes", "Deleted bytes.", "folder", new=dict)
    """An estimate for WAL objects: the collector does not list them."""
    marked: dict[str, int] = gauge(
        "tidelog_collectable_objects",
        "Superfluous objects that wait for the end of log.delete.grace.ms.",
        "pass",
        new=dict,
    )
    waiting: int = gauge(
        "tidelog_collect_backlog_objects",
        "Objects past log.delete.grace.ms that are being deleted.",
    )
    passes: int = counter("tidelog_collections", "Passes of the collector.")
    failures: int = counter("tidelog_collection_failures", "Abandoned passes.")
    """Failed deletions too."""

    succeeded_at: float | None = timestamp(
        "tidelog_collection_last_success_timestamp_seconds",
        "When a pass outside of tables last ended well, or found that nothing had changed.",
    )

    def deleted(self, key: str, size_bytes: int) -> None:
        """Count an object."""
        folder = key.partition("/")[0]
        self.objects[folder] = self.objects.get(folder, 0) + 1
        self.bytes[folder] = self.bytes.get(folder, 0) + size_bytes


class DueObject(NamedTuple):
    """An object to delete."""

    key: str
    size_bytes: int


class Deleter:
    """The queue of this process's deletions. `run` is its task."""

    def __init__(
        self,
        store: ObjectStore,
        clock: Clock,
        crash_points: CrashPoints,
        metrics: CollectorMetrics,
        spread_seconds: float,
    ) -> None:
        """`spread_seconds`: the time over which the deleter spreads due deletions."""
        self._store = store
        self._clock = clock
        self._crash_points = crash_points
        self._metrics = metrics
        self._spread_seconds = spread_seconds
        self._objects: deque[DueObject] = deque()
        self._slots: deque[tuple[Incarnation, SlotRun, int]] = deque()
        """Runs of WALs, with the approximate size of one slot."""
        self._wake = asyncio.Event()

    @property
    def waiting_slots(self) -> Mapping[Incarnation, Sequence[SlotRun]]:
        """The slots that wait for their deletion."""
        found: dict[Incarnation, list[SlotRun]] = {}
        for owner, run, _ in self._slots:
            found.setdefault(owner, []).append(run)
        return {owner: sorted(runs) for owner, runs in found.items()}

    def add(self, objects: Iterable[DueObject]) -> None:
        """Delete these objects, in this order. Callers add each object once."""
        self._objects.extend(objects)
        self._changed()

    def add_slots(self, owner: Incarnation, due: WalRuns) -> None:
        """Delete these slots. Callers add each slot once."""
        self._slots.extend((owner, run, due.slot_bytes) for run in due.runs)
        self._changed()

    async def run(self) -> NoReturn:
        while True:
            await self._wake.wait()
            self._wake.clear()
            seconds = 0.0
            while self._metrics.waiting:
                rate = self._rate()
                began = self._clock.monotonic()
                number = int(rate * max(seconds, STEP_SECONDS))
                try:
                    taken = await self._delete(max(1, min(number, DELETED_AT_ONCE_MAX)))
                except StoreError as error:
                    self._metrics.failures += 1
                    logger.warning(
                        "unneeded objects could not be deleted; the broker will try again",
                        extra={"objects": self._metrics.waiting, "why": str(error)},
                    )
                    await self._clock.sleep(RETRY_SECONDS)
                    continue
                seconds = self._clock.monotonic() - began
                await self._clock.sleep(max(0.0, taken / rate - seconds))

    async def drain(self) -> None:
        """Delete everything added, without pauses. Raises StoreError."""
        while self._metrics.waiting:
            await self._delete(DELETED_AT_ONCE_MAX)

    def _rate(self) -> float:
        rate = rate_of(self._metrics.waiting, self._spread_seconds, DELETES_A_SECOND_MIN)
        return min(rate, DELETES_A_SECOND_MAX)

    async def _delete(self, objects_max: int) -> int:
        """Delete the next objects; return their number. After a StoreError they stay queued."""
        objects = list(islice(self._objects, objects_max))
        slots = self._next_slots(objects_max - len(objects))
        due = objects + slots
        for each in due:
            self._crash_points.hit(CrashPoint.COLLECTED_OBJECT)
            if each.key.startswith(TOPICS_PREFIX) and each.key.endswith(SEGMENT_SUFFIX):
                self._crash_points.hit(CrashPoint.COLLECTED_SEGMENT)
        await self._store.delete(*(each.key for each in due))
        for _ in objects:
            self._objects.popleft()
        self._drop_slots(len(slots))
        self._changed()
        for each in due:
            self._metrics.deleted(each.key, each.size_bytes)
        return len(due)

    def _next_slots(self, slots_max: int) -> list[DueObject]:
        due: list[DueObject] = []
        for owner, run, size_bytes in self._slots:
            room = slots_max - len(due)
            if room == 0:
                break
            slots = range(run.first, min(run.end, run.first + room))
            due += [DueObject(wal_key(owner, Slot(slot)), size_bytes) for slot in slots]
        return due

    def _drop_slots(self, number: int) -> None:
        while number:
            owner, (first, end), size_bytes = self._slots.popleft()
            if end - first > number:
                self._slots.appendleft((owner, SlotRun(first + number, end), size_bytes))
            number -= min(number, end - first)

    def _changed(self) -> None:
        self._metrics.waiting = len(self._objects) + count(run for _, run, _ in self._slots)
        if self._metrics.waiting:
            self._wake.set()
