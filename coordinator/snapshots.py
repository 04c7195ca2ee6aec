"""When a coordinator's state is snapshotted, where snapshots lie, and how a state is restored.

A snapshot holds a prefix of the durable log (rule H6), so it is right whoever wrote it and whenever
it arrived, and the one with the highest offset counts. What happens when something fails:

- The process dies before the put: the snapshot before, and more of the log, serve as well.
- The put's answer is lost, or another was there first: either way what lies under the key is the
  state at that offset.
- A coordinator writes one after it lost its partition: it counts only what was durable in its own
  WAL, which its successor's log begins with.
- The newest cannot be decoded, or the log does not reach back to it: the coordinator stops. An
  older snapshot, or none, would be a state that never was.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Generic, NamedTuple, Protocol, TypeVar

from tidelog.clock import Clock
from tidelog.coordinator.snapshot_format import (
    SnapshotDecoder,
    SnapshotEncoder,
    SnapshotOrigin,
    SnapshotPosition,
    StateTable,
)
from tidelog.crash_points import CrashPoint, CrashPoints
from tidelog.errors import CorruptObject, MissingObject, TidelogError
from tidelog.identifiers import LeaderEpoch, Slot
from tidelog.offload import Offload
from tidelog.storage.object_store import (
    Buffer,
    IfAbsent,
    ObjectNotFound,
    ObjectStore,
    PreconditionFailed,
    StoredObject,
    StoreError,
)

logger = logging.getLogger(__name__)

RETRY_SECONDS = 1.0
_ATTEMPTS_MAX = 5

RecordT = TypeVar("RecordT")
RecordT_co = TypeVar("RecordT_co", covariant=True)


class Captured(Protocol[RecordT_co]):
    """A machine whose state can be captured."""

    def capture(self) -> Iterator[RecordT_co]:
        """The records that make the same of a new machine, as of now, whatever becomes of this one
        while they are read, in another thread perhaps. Cheap. One capture at a time."""
        ...

    def release(self) -> None:
        """What was captured is not read any more."""
        ...


class SnapshottedLog(Protocol):
    """The log whose prefixes the snapshots are."""

    @property
    def next_offset(self) -> int:
        """Behind the last record that was appended."""
        ...

    @property
    def newest_slot(self) -> Slot:
        """When this slot is durable, all that was appended is."""
        ...

    def durable(self, slot: Slot) -> asyncio.Future[None]:
        """Done when the slot is durable; fails when that can no longer be told."""
        ...

    def superseded_below(self, offset: int) -> None:
        """A snapshot holds what the records below the offset have led to."""
        ...


@dataclass(slots=True)
class SnapshotMetrics:
    """What a broker's coordinators have done."""

    written: int = 0
    bytes: int = 0
    seconds: float = 0.0
    """From capture to durable snapshot."""
    failures: int = 0
    """Each is tried again."""


class Restored(NamedTuple):
    """Which snapshot a machine was restored from."""

    key: str
    next_offset: int
    rows: int


class SnapshotSchedule:
    """When a snapshot is due: pure. As many records as would have to be replayed make one worth its
    price, and that is in proportion to the state."""

    def __init__(self, interval_records: int) -> None:
        self._interval_records = interval_records
        self._newest = 0
        self._rows = 0

    def taken(self, next_offset: int, rows: int) -> None:
        """There is a snapshot at this offset."""
        self._newest, self._rows = next_offset, rows

    def is_due(self, next_offset: int) -> bool:
        """Whether there should be a newer one."""
        return next_offset - self._newest >= max(self._interval_records, self._rows)

    def is_behind(self, next_offset: int, records: int) -> bool:
        """Whether so many records are in no snapshot."""
        return next_offset - self._newest >= records


class Snapshotter:
    """Has a broker's snapshots written, one after the other, so that no two states are held twice.
    `run` is its task."""

    def __init__(self, clock: Clock, metrics: SnapshotMetrics) -> None:
        self._clock = clock
        self._metrics = metrics
        self._requested: dict[Callable[[], Awaitable[None]], None] = {}
        self._wake = asyncio.Event()

    def request(self, write: Callable[[], Awaitable[None]]) -> None:
        """Have a snapshot written; asked for again before it is begun, it is one."""
        self._requested[write] = None
        self._wake.set()

    async def run(self) -> None:
        """Write what is requested until cancelled."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._requested:
                write = next(iter(self._requested))
                del self._requested[write]
                try:
                    await write()
                except StoreError as error:
                    # Nothing depends on it but the time that a recovery takes.
                    self._metrics.failures += 1
                    logger.warning(
                        "a snapshot could not be written; it will be tried again",
                        extra={"key": error.key, "why": str(error)},
                    )
                    await self._clock.sleep(RETRY_SECONDS)
                    self._requested[write] = None
                except TidelogError as error:
                    # The incarnation has ended; whoever owns the WAL says why.
                    logger.info("a snapshot is given up", extra={"why": str(error)})


class StateSnapshots(Generic[RecordT]):
    """The snapshots of one coordinator's state, as one tenure of its partition sees them."""

    def __init__(
        self,
        store: ObjectStore,
        clock: Clock,
        offload: Offload,
        crash_points: CrashPoints,
        metrics: SnapshotMetrics,
        origin: SnapshotOrigin,
        leader_epoch: LeaderEpoch,
        table: StateTable[RecordT],
        schedule: SnapshotSchedule,
    ) -> None:
        self._store = store
        self._clock = clock
        self._offload = offload
        self._crash_points = crash_points
        self._metrics = metrics
        self._origin = origin
        self._leader_epoch = leader_epoch
        self._table = table
        self._writing = asyncio.Lock()
        self.schedule = schedule

    async def restore(self, apply: Callable[[RecordT], None]) -> Restored | None:
        """Have the records of the newest snapshot applied, in a worker thread; None where there is
        none. Raises CorruptObject, UnsupportedFormat or StoreError."""
        found = await self._newest()
        if found is None:
            return None
        key, stored = found
        restored = await apply_snapshot(
            self._offload, self._table, self._origin, key, stored.data, apply
        )
        self.schedule.taken(restored.next_offset, restored.rows)
        return restored

    async def write(self, machine: Captured[RecordT], log: SnapshottedLog) -> None:
        """Write a snapshot of the machine as it is now, which is what all that was appended to the
        log has made of it. Raises StoreError (it may or may not be stored: try again), and another
        TidelogError where what was appended may never be durable."""
        async with self._writing:
            next_offset = log.next_offset
            if not self.schedule.is_behind(next_offset, 1):
                return
            started = self._clock.monotonic()
            durable = log.durable(log.newest_slot)
            captured = machine.capture()
            try:
                await durable
                self._crash_points.hit(CrashPoint.SNAPSHOT_CAPTURED)
                position = SnapshotPosition(next_offset, self._leader_epoch, self._clock.time_ms())
                encoder = SnapshotEncoder(self._table, self._origin, position, captured)
                while await self._offload.run(encoder.step):
                    pass
                sealed = await self._offload.run(encoder.finish)
            finally:
                machine.release()
            key = self._origin.key(next_offset)
            try:
                await self._store.put(key, sealed.pieces, IfAbsent())
            except PreconditionFailed:
                logger.info("a snapshot is there already", extra={"key": key})
            self._crash_points.hit(CrashPoint.SNAPSHOT_WRITTEN)
            self.schedule.taken(next_offset, encoder.rows)
            log.superseded_below(next_offset)
            seconds = self._clock.monotonic() - started
            self._metrics.written += 1
            self._metrics.bytes += sealed.size_bytes
            self._metrics.seconds += seconds
            logger.info(
                "a coordinator's state was snapshotted",
                extra={
                    "key": key,
                    "rows": encoder.rows,
                    "bytes": sealed.size_bytes,
                    "seconds": seconds,
                },
            )

    async def _newest(self) -> tuple[str, StoredObject] | None:
        missing = None
        for _ in range(_ATTEMPTS_MAX):
            newest = await newest_snapshot(self._store, self._origin)
            if newest is None:
                return None
            key = self._origin.key(newest)
            if key == missing:
                # A snapshot is deleted only when a newer one has been there for long.
                raise MissingObject(key, "it is listed but cannot be read")
            try:
                return key, await self._store.get(key)
            except ObjectNotFound:
                missing = key
        raise CorruptObject(self._origin.prefix, "snapshots vanish faster than they can be read")


async def newest_snapshot(store: ObjectStore, origin: SnapshotOrigin) -> int | None:
    """The offset of the newest snapshot that is listed; None where there is none."""
    newest = None
    async for meta in store.list(origin.prefix):
        offset = origin.offset_in(meta.key)
        newest = newest if offset is None else offset
    return newest


async def apply_snapshot(
    offload: Offload,
    table: StateTable[RecordT],
    origin: SnapshotOrigin,
    key: str,
    data: Buffer,
    apply: Callable[[RecordT], None],
) -> Restored:
    """Have the records of a snapshot applied, in a worker thread. Raises CorruptObject and
    UnsupportedFormat."""
    decoder = await offload.run(SnapshotDecoder, table, origin, key, data)
    while await offload.run(_apply_step, decoder, apply):
        pass
    return Restored(key, decoder.position.next_offset, decoder.rows)


def _apply_step(decoder: SnapshotDecoder[RecordT], apply: Callable[[RecordT], None]) -> bool:
    """Pure, but for the machine, which nobody else uses while it is loaded; in a worker thread."""
    records = decoder.step()
    if records is None:
        return False
    for record in records:
        apply(record)
    return True
