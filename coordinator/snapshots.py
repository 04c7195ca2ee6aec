"""Schedules, writes and restores snapshots of coordinators' states.

A snapshot holds a prefix of the durable log (rule H6). So it is right regardless of its writer and
its time of arrival, and the one with the highest offset counts. Failures:

- The process dies before the put: the previous snapshot and more of the log serve as well.
- The put's answer is lost, or another put came first: in both cases the object under the key is the
  state at that offset.
- A coordinator writes one after it lost its partition. It holds only records that were durable in
  its own WAL, and its successor's log begins with those.
- Each owner dies, or loses its partition, before the put: each load is longer than the one before
  by the records of a tenure, until an owner's put lands.
- The newest cannot be decoded, or the log does not reach back to it: the coordinator stops. An
  older snapshot, or none, would give a state that never existed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

from tidelog.clock import Clock
from tidelog.coordinator.snapshot_format import (
    SnapshotDecoder,
    SnapshotEncoder,
    SnapshotOrigin,
    SnapshotPosition,
    StateTable,
)
from tidelog.counts import counter, timestamp
from tidelog.crash_points import CrashPoint, CrashPoints
from tidelog.errors import MissingObject, TidelogError
from tidelog.identifiers import LeaderEpoch, Slot
from tidelog.storage.object_store import (
    Buffer,
    IfAbsent,
    ObjectNotFound,
    ObjectStore,
    PreconditionFailed,
    StoredObject,
    StoreError,
)
from tidelog.workers.offload import Offload

logger = logging.getLogger(__name__)

RETRY_SECONDS = 1.0
LOADED_RECORDS_MAX: Final = 200
"""After a load that replays this many records, a snapshot is due.

Each may be a GET of its own. An owner that lives for a second still loads in a part of it.
"""
ROWS_A_REPLAYED_RECORD: Final = 16
"""The rows whose writing and reading costs as much as the replay of one record, at most."""

RecordT = TypeVar("RecordT")
RecordT_co = TypeVar("RecordT_co", covariant=True)


class Captured(Protocol[RecordT_co]):
    """A machine whose state can be captured."""

    def capture(self) -> Iterator[RecordT_co]:
        """The records that bring a new machine into the present state.

        Later changes of this machine do not affect them, even while another thread reads them.
        Cheap. One capture at a time.
        """
        ...

    def release(self) -> None:
        """Note that the capture is no longer read."""
        ...


class SnapshottedLog(Protocol):
    """The log of the snapshots."""

    @property
    def next_offset(self) -> int:
        """The offset behind the last appended record."""
        ...

    @property
    def newest_slot(self) -> Slot:
        """Once this slot is durable, every append so far is."""
        ...

    def durable(self, slot: Slot) -> asyncio.Future[None]:
        """Done when the slot is durable; fails if that stays unknown."""
        ...

    def superseded_below(self, offset: int) -> None:
        """A snapshot has replaced the records below the offset."""
        ...


@dataclass(slots=True)
class SnapshotMetrics:
    """Counts of the snapshots of a broker's coordinators."""

    written: int = counter("tidelog_state_snapshots", "Snapshots of coordinators' states.")
    bytes: int = counter("tidelog_state_snapshot_bytes", "Bytes of these snapshots.")
    seconds: float = counter(
        "tidelog_state_snapshot_seconds",
        "Time from a snapshot's capture until it was durable.",
        new=float,
    )
    failures: int = counter(
        "tidelog_state_snapshot_failures",
        "Failed snapshots, each of which is retried.",
    )
    succeeded_at: float | None = timestamp(
        "tidelog_state_snapshot_last_success_timestamp_seconds", "When the last one was durable."
    )


class Restored(NamedTuple):
    """The snapshot that restored a machine."""

    key: str
    next_offset: int
    rows: int


class SnapshotSchedule:
    """When a snapshot is due. Pure.

    It is due once the records to replay outnumber the rows of the state, which are its cost. After
    a load it is due much earlier: an owner that is soon replaced never writes the interval's
    records, and each of its successors would replay more.
    """

    def __init__(self, interval_records: int) -> None:
        self._interval_records = interval_records
        self._newest = 0
        self._rows = 0

    def taken(self, next_offset: int, rows: int) -> None:
        """A snapshot at this offset exists."""
        self._newest = next_offset
        self._rows = rows

    def is_due(self, next_offset: int) -> bool:
        """Whether a newer snapshot is due."""
        return self.is_behind(next_offset, max(self._interval_records, self._rows))

    def is_due_after_load(self, next_offset: int) -> bool:
        """Whether a newer snapshot is due when the log has been loaded up to this offset."""
        records = min(self._interval_records, LOADED_RECORDS_MAX)
        return self.is_behind(next_offset, max(records, self._rows // ROWS_A_REPLAYED_RECORD))

    def is_behind(self, next_offset: int, records: int) -> bool:
        """Whether at least this many records are in no snapshot."""
        return next_offset - self._newest >= records


class Snapshotter:
    """Writes a broker's snapshots one after the other, so that only one state is held twice.

    `run` is its task.
    """

    def __init__(self, clock: Clock, metrics: SnapshotMetrics) -> None:
        self._clock = clock
        self._metrics = metrics
        self._requested: dict[Callable[[], Awaitable[None]], None] = {}
        self._wake = asyncio.Event()

    def request(self, write: Callable[[], Awaitable[None]]) -> None:
        """Queue a snapshot; repeated requests before its start are one."""
        self._requested[write] = None
        self._wake.set()

    async def run(self) -> None:
        """Write requested snapshots until cancelled."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._requested:
                write = next(iter(self._requested))
                del self._requested[write]
                try:
                    await write()
                except StoreError as error:
                    # A failure only makes a recovery slower.
                    self._metrics.failures += 1
                    logger.warning(
                        "a snapshot could not be written; the broker will try again",
                        extra={"key": error.key, "why": str(error)},
                    )
                    await self._clock.sleep(RETRY_SECONDS)
                    self._requested[write] = None
                except TidelogError as error:
                    # The incarnation has ended; the WAL's owner reports why.
                    logger.info("a snapshot was cancelled", extra={"why": str(error)})


class StateSnapshots(Generic[RecordT]):
    """The snapshots of one coordinator's state, for one tenure of its partition."""

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
        self.schedule = schedule

    async def restore(self, apply: Callable[[RecordT], None]) -> Restored | None:
        """Apply the records of the newest snapshot in a worker thread; None if there is none.

        Raises UnsupportedFormat, StoreError or CorruptObject: MissingObject if the snapshot is
        listed but gone. A newer one may have superseded it (F4).
        """
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
        """Write a snapshot of the machine's present state, which includes every append to the log.

        Raises StoreError (it may or may not be stored: the caller may retry), and another
        TidelogError if those appends may never be durable.
        """
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
            logger.info("the snapshot exists already", extra={"key": key})
        self._crash_points.hit(CrashPoint.SNAPSHOT_WRITTEN)
        self.schedule.taken(next_offset, encoder.rows)
        log.superseded_below(next_offset)
        seconds = self._clock.monotonic() - started
        self._metrics.written += 1
        self._metrics.bytes += sealed.size_bytes
        self._metrics.seconds += seconds
        self._metrics.succeeded_at = self._clock.time_ms() / 1000
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
        newest = await newest_snapshot(self._store, self._origin)
        if newest is None:
            return None
        key = self._origin.key(newest)
        try:
            return key, await self._store.get(key)
        except ObjectNotFound as error:
            raise MissingObject(key, "it is listed but cannot be read") from error


async def newest_snapshot(store: ObjectStore, origin: SnapshotOrigin) -> int | None:
    """The offset of the newest listed snapshot; None if there is none."""
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
    """Apply the records of a snapshot in a worker thread.

    Raises CorruptObject and UnsupportedFormat.
    """
    decoder = await offload.run(SnapshotDecoder, table, origin, key, data)
    while await offload.run(_apply_step, decoder, apply):
        pass
    return Restored(key, decoder.position.next_offset, decoder.rows)


def _apply_step(decoder: SnapshotDecoder[RecordT], apply: Callable[[RecordT], None]) -> bool:
    """Apply one step in a worker thread. No other thread uses the machine while it loads."""
    records = decoder.step()
    if records is None:
        return False
    for record in records:
        apply(record)
    return True
