"""A coordinator that adds up numbers, over a log whose slots become durable when a test says so."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

import pyarrow as pa

from tidelog.clock import SystemClock
from tidelog.coordinator.decision import BatchProducer, Decision, Now, Token
from tidelog.coordinator.log_codec import Codec, LoggedRecord
from tidelog.coordinator.runtime import CoordinatorRuntime
from tidelog.coordinator.snapshot_format import SnapshotOrigin
from tidelog.coordinator.snapshots import (
    SnapshotMetrics,
    SnapshotSchedule,
    Snapshotter,
    StateSnapshots,
)
from tidelog.crash_points import NO_CRASH_POINTS, CrashPoints
from tidelog.errors import CorruptObject, Refused, TidelogError
from tidelog.identifiers import LeaderEpoch, Slot
from tidelog.records.batch import BatchHeader
from tidelog.records.records import NewRecord, encode_batch
from tidelog.storage.object_store import ObjectStore
from tidelog.storage.stores.memory import MemoryStore
from tidelog.wal.log.producer_state import AppendRefused
from tidelog.wal.write.writer import WalLost
from tidelog.workers.offload import InlineOffload

ORIGIN = SnapshotOrigin("cluster", "numbers", UUID(int=1), 0)


class Adder:
    """A machine that adds up: "+3" is stored, "?" asks, "soon" adds 100 by a timer, "wait" is
    answered by the next "+"."""

    def __init__(self) -> None:
        self.total = 0
        self.held = 0
        """The usage that it counts against a shared limit."""
        self.deadline_ms: int | None = None
        self.parked: list[Token] = []

    def apply(self, record: int) -> None:
        self.total += record
        self.held = self.total

    def close(self) -> None:
        self.held = 0

    def loaded(self, now: Now) -> Decision[int, int]:
        return Decision()

    def decide(self, command: str, token: Token, now: Now) -> Decision[int, int]:
        if command.startswith("+"):
            parked, self.parked = self.parked, []
            added = int(command)
            total = self.total + added
            return Decision([added], [(each, total) for each in [*parked, token]])
        if command == "soon":
            self.deadline_ms = now.monotonic_ms + 20
        if command == "wait":
            self.parked.append(token)
            return Decision()
        return Decision(replies=[(token, self.total)])

    def capture(self) -> Iterator[int]:
        return iter([self.total])

    def release(self) -> None:
        return

    def next_deadline_ms(self) -> int | None:
        return self.deadline_ms

    def tick(self, now: Now) -> Decision[int, int] | None:
        if self.deadline_ms is None or self.deadline_ms > now.monotonic_ms:
            return None
        self.deadline_ms = None
        return Decision([100])


def decode(logged: LoggedRecord) -> int:
    value = logged.value
    if value is None or not value.lstrip(b"-").isdigit():
        raise Refused(f"{value!r} is no number")
    return int(value)


class NumberTable:
    """One row a number."""

    name: Final = "tidelog.numbers"
    schema: Final = pa.schema([pa.field("number", pa.int64(), nullable=False)])
    descriptive: Final = frozenset[str]()
    added: Final = frozenset[str]()

    def rows(self, records: list[int]) -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays([pa.array(records)], schema=self.schema)

    def records(self, rows: pa.RecordBatch) -> Iterator[int]:
        return iter(rows.column("number").to_pylist())


CODEC = Codec(lambda record: (b"", str(record).encode()), decode)


@dataclass
class Log:
    """A log whose slots become durable when a test says so."""

    stored: list[tuple[str, bytes | TidelogError]] = field(default_factory=list)
    appended: list[bytes | None] = field(default_factory=list)
    durable_end: int = 0
    ended: bool = False
    faults: int = 0
    waiters: list[tuple[int, asyncio.Future[None]]] = field(default_factory=list)
    begins_at: int = 0
    """The log keeps no records below this offset."""
    fault: CorruptObject | None = None
    refusal: AppendRefused | None = None
    """Raised by the next appends."""

    @property
    def is_empty(self) -> bool:
        return not self.stored

    def append(
        self, records: Sequence[NewRecord], now_ms: int, producer: BatchProducer | None
    ) -> Slot:
        if self.ended:
            raise WalLost("the WAL has ended")
        if self.refusal is not None:
            raise self.refusal
        self.appended += [record.value for record in records]
        return Slot(len(self.appended) - 1)

    @property
    def next_offset(self) -> int:
        ends = [offset_behind(data) for _, data in self.stored if isinstance(data, bytes)]
        return max(self.begins_at, max(ends, default=0) + len(self.appended))

    @property
    def newest_slot(self) -> Slot:
        return Slot(len(self.appended) - 1)

    def superseded_below(self, offset: int) -> None:
        self.begins_at = max(self.begins_at, offset)

    def is_durable(self, slot: Slot) -> bool:
        return slot < self.durable_end

    def durable(self, slot: Slot) -> asyncio.Future[None]:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self.is_durable(slot):
            future.set_result(None)
        self.waiters.append((slot, future))
        return future

    def tell(self, slot: Slot, told: Callable[[TidelogError | None], None]) -> None:
        self.durable(slot).add_done_callback(lambda done: told(done.exception()))

    def make_durable(self) -> None:
        self.durable_end = len(self.appended)
        for slot, future in self.waiters:
            if slot < self.durable_end and not future.done():
                future.set_result(None)

    def lose(self) -> None:
        self.ended = True
        for _, future in self.waiters:
            if not future.done():
                future.set_exception(WalLost("the slot is lost"))

    async def read(self, offset: int) -> AsyncGenerator[list[tuple[str, bytes]], None]:
        for key, data in list(self.stored):
            await asyncio.sleep(0)
            if isinstance(data, TidelogError):
                self.faults += 1
                raise data
            yield [(key, data)]


def batch(*values: int, at: int = 0) -> bytes:
    """Numbers as the log has them from an offset on."""
    data = bytearray(encode_batch([NewRecord(str(each).encode()) for each in values]))
    data[:8] = at.to_bytes(8, "big")
    return bytes(data)


def offset_behind(data: bytes) -> int:
    return BatchHeader.parse(data).last_offset + 1


Runtime = CoordinatorRuntime[str, int, int]
Story = Callable[[Runtime, Log], Awaitable[None]]


def tell(
    story: Story,
    log: Log | None = None,
    *,
    fresh: Callable[[], bool] = lambda: True,
    store: ObjectStore | None = None,
    interval_records: int = 1_000_000,
    crash_points: CrashPoints = NO_CRASH_POINTS,
) -> None:
    log = log or Log()
    clock, offload, metrics = SystemClock(), InlineOffload(), SnapshotMetrics()

    async def main() -> None:
        snapshotter = Snapshotter(clock, metrics)
        snapshots = StateSnapshots(
            store or MemoryStore(clock),
            clock,
            offload,
            crash_points,
            metrics,
            ORIGIN,
            LeaderEpoch(3),
            NumberTable(),
            SnapshotSchedule(interval_records),
        )
        runtime: Runtime = CoordinatorRuntime(
            "numbers-0", log, Adder, CODEC, clock, offload, fresh, snapshots, snapshotter
        )
        tasks = [asyncio.create_task(runtime.run()), asyncio.create_task(snapshotter.run())]
        async with asyncio.timeout(10):
            await story(runtime, log)
            runtime.stop()
            await tasks[0]
        tasks[1].cancel()

    asyncio.run(main())


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def until(condition: Callable[[], bool]) -> None:
    """Let other tasks run until the condition holds. `tell` bounds the time."""
    for _ in range(10_000_000):
        if condition():
            return
        await asyncio.sleep(0)
