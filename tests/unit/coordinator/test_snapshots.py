"""Snapshots of a coordinator's state: when they are written, their contents, and how a start uses
them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.unit.coordinator.number_world import (
    ORIGIN,
    Log,
    NumberTable,
    Runtime,
    batch,
    settle,
    tell,
    until,
)
from tidelog.clock import SystemClock
from tidelog.coordinator.runtime import CoordinatorRefused, RuntimeState
from tidelog.coordinator.snapshot_format import (
    SnapshotDecoder,
    SnapshotEncoder,
    SnapshotPosition,
)
from tidelog.coordinator.snapshots import (
    LOADED_RECORDS_MAX,
    ROWS_A_REPLAYED_RECORD,
    SnapshotSchedule,
)
from tidelog.crash_points import CrashPoint
from tidelog.errors import TidelogError
from tidelog.identifiers import LeaderEpoch
from tidelog.protocol.error_codes import ErrorCode
from tidelog.storage.object_store import (
    Buffer,
    ByteRange,
    Condition,
    ObjectNotFound,
    StoredObject,
    StoreNotApplied,
    Suffix,
)
from tidelog.storage.segment.parquet_seal import seal
from tidelog.storage.stores.memory import MemoryStore


def snapshot(total: int, next_offset: int) -> bytes:
    """The state of a log whose numbers below the offset add up to `total`."""
    position = SnapshotPosition(next_offset, LeaderEpoch(1), 1_700_000_000_000)
    encoder = SnapshotEncoder(NumberTable(), ORIGIN, position, [total])
    while encoder.step():
        pass
    return b"".join(encoder.finish().pieces)


class Store(MemoryStore):
    """A store in memory that can be told to fail, and to lose objects that it has listed."""

    def __init__(self, *snapshots: tuple[int, int]) -> None:
        super().__init__(SystemClock())
        self.failing_puts = 0
        self.vanishing: list[str] = []
        self.at_get: Callable[[], None] = lambda: None
        for total, offset in snapshots:
            self.place(offset, snapshot(total, offset))

    def place(self, offset: int, data: bytes) -> None:
        asyncio.run(super().put(ORIGIN.key(offset), data))

    async def put(
        self, key: str, data: Buffer | Sequence[Buffer], condition: Condition | None = None
    ) -> str:
        if self.failing_puts:
            self.failing_puts -= 1
            raise StoreNotApplied(key, "it is busy")
        return await super().put(key, data, condition)

    async def get(self, key: str, byte_range: ByteRange | Suffix | None = None) -> StoredObject:
        self.at_get()
        if key in self.vanishing:
            raise ObjectNotFound(key, "it is gone")
        return await super().get(key, byte_range)

    async def offsets(self) -> list[int | None]:
        return [ORIGIN.offset_in(meta.key) async for meta in self.list()]

    async def total_at(self, offset: int) -> int:
        stored = await self.get(ORIGIN.key(offset))
        decoder = SnapshotDecoder(NumberTable(), ORIGIN, ORIGIN.key(offset), stored.data)
        (total,) = decoder.step() or []
        return total


class Hits:
    """Records the crash points, and the contents of the store and the log at each."""

    def __init__(self, store: Store, log: Log) -> None:
        self.store, self.log = store, log
        self.seen: list[tuple[CrashPoint, int, int]] = []

    def hit(self, point: CrashPoint) -> None:
        self.seen.append((point, len(self.store._keys), self.log.begins_at))


# When snapshots are written.


def test_a_snapshot_is_due_after_a_number_of_records() -> None:
    schedule = SnapshotSchedule(interval_records=100)
    assert not schedule.is_due(99)
    assert schedule.is_due(100)
    schedule.taken(100, rows=7)
    assert not schedule.is_due(199)
    assert schedule.is_due(200)


def test_a_large_state_is_snapshotted_less_often() -> None:
    schedule = SnapshotSchedule(interval_records=100)
    schedule.taken(1000, rows=500)
    assert not schedule.is_due(1499)
    assert schedule.is_due(1500)


def test_a_load_of_many_records_makes_a_snapshot_due() -> None:
    schedule = SnapshotSchedule(interval_records=10_000)
    assert not schedule.is_due_after_load(LOADED_RECORDS_MAX - 1)
    assert schedule.is_due_after_load(LOADED_RECORDS_MAX)
    schedule.taken(1000, rows=7)
    assert not schedule.is_due_after_load(1000 + LOADED_RECORDS_MAX - 1)
    assert schedule.is_due_after_load(1000 + LOADED_RECORDS_MAX)


def test_a_load_of_a_large_state_makes_a_snapshot_due_less_often() -> None:
    schedule = SnapshotSchedule(interval_records=10_000)
    rows = 10 * LOADED_RECORDS_MAX * ROWS_A_REPLAYED_RECORD
    schedule.taken(1000, rows)
    assert not schedule.is_due_after_load(1000 + 10 * LOADED_RECORDS_MAX - 1)
    assert schedule.is_due_after_load(1000 + 10 * LOADED_RECORDS_MAX)


def test_a_short_interval_holds_for_loads_too() -> None:
    assert SnapshotSchedule(interval_records=3).is_due_after_load(3)


def test_a_snapshot_waits_until_its_records_are_durable() -> None:
    store = Store()

    async def story(runtime: Runtime, log: Log) -> None:
        for _ in range(3):
            runtime.submit("+5")
        await settle()
        assert await store.offsets() == []
        log.make_durable()
        await until(lambda: log.begins_at == 3)
        assert await store.offsets() == [3]
        assert await store.total_at(3) == 15

    tell(story, store=store, interval_records=3)


def test_a_snapshot_lacks_records_that_are_appended_meanwhile() -> None:
    store = Store()

    async def story(runtime: Runtime, log: Log) -> None:
        runtime.submit("+5")
        await settle()
        runtime.submit("+1")
        log.make_durable()
        await until(lambda: log.begins_at >= 1)
        assert await store.total_at(1) == 5

    tell(story, store=store, interval_records=1)


def test_lost_records_get_no_snapshot() -> None:
    store = Store()

    async def story(runtime: Runtime, log: Log) -> None:
        runtime.submit("+5")
        await settle()
        log.lose()
        await settle()
        assert await store.offsets() == []
        assert log.begins_at == 0

    tell(story, store=store, interval_records=1)


def test_crash_points_lie_before_and_behind_the_put() -> None:
    store, log = Store(), Log()
    hits = Hits(store, log)

    async def story(runtime: Runtime, log: Log) -> None:
        runtime.submit("+5")
        log.make_durable()
        await until(lambda: log.begins_at == 1)

    tell(story, log, store=store, interval_records=1, crash_points=hits)
    assert hits.seen == [
        (CrashPoint.SNAPSHOT_CAPTURED, 0, 0),
        (CrashPoint.SNAPSHOT_WRITTEN, 1, 0),
    ]


def test_a_put_that_fails_is_tried_again_and_keeps_the_log(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tidelog.coordinator.snapshots.RETRY_SECONDS", 0.001)
    store = Store()
    store.failing_puts = 2

    async def story(runtime: Runtime, log: Log) -> None:
        runtime.submit("+5")
        log.make_durable()
        await until(lambda: store.failing_puts == 0)
        assert log.begins_at == 0
        await until(lambda: log.begins_at == 1)
        assert await store.total_at(1) == 5

    tell(story, store=store, interval_records=1)


def test_a_snapshot_of_the_same_offset_by_another_broker_counts() -> None:
    store = Store()

    async def story(runtime: Runtime, log: Log) -> None:
        await MemoryStore.put(store, ORIGIN.key(1), snapshot(5, 1))
        runtime.submit("+5")
        log.make_durable()
        await until(lambda: log.begins_at == 1)
        assert await store.offsets() == [1]

    tell(story, store=store, interval_records=1)


def test_a_coordinator_that_is_stopped_begins_no_snapshot() -> None:
    store = Store()

    async def story(runtime: Runtime, log: Log) -> None:
        runtime.submit("+5")
        runtime.stop()
        log.make_durable()
        await settle()
        assert await store.offsets() == []

    tell(story, store=store, interval_records=1)


# Loading.


def test_a_state_is_the_newest_snapshot_and_the_log_behind_the_snapshot() -> None:
    async def story(runtime: Runtime, log: Log) -> None:
        await until(lambda: runtime.state is not RuntimeState.LOADING)
        assert await runtime.submit("?") == 107
        assert log.begins_at == 2

    log = Log([("a", batch(50, 50)), ("b", batch(7, at=2))])
    tell(story, log, store=Store((50, 1), (100, 2)))


def test_batches_that_the_snapshot_holds_are_passed_over() -> None:
    """An object of the log has batches both below and above the snapshot's end."""

    async def story(runtime: Runtime, log: Log) -> None:
        await until(lambda: runtime.state is not RuntimeState.LOADING)
        assert await runtime.submit("?") == 107

    log = Log([("a", batch(50, 50) + batch(7, at=2))])
    tell(story, log, store=Store((100, 2)))


def test_a_late_snapshot_of_a_predecessor_is_right() -> None:
    """A snapshot's offset counts, not its time. A snapshot with a lower offset is ignored, even if
    it came later."""
    store = Store((100, 2))
    store.place(1, snapshot(50, 1))

    async def story(runtime: Runtime, log: Log) -> None:
        await until(lambda: runtime.state is not RuntimeState.LOADING)
        assert await runtime.submit("?") == 100

    tell(story, Log([("a", batch(50, 50))]), store=store)


def test_a_long_log_behind_the_snapshot_leads_to_a_new_snapshot() -> None:
    store = Store((100, 2))

    async def story(runtime: Runtime, log: Log) -> None:
        await until(lambda: log.begins_at == 5)
        assert await store.total_at(5) == 103

    log = Log([("a", batch(50, 50)), ("b", batch(1, 1, 1, at=2))])
    tell(story, log, store=store, interval_records=3)


def test_replays_stay_short_when_no_owner_lives_long(caplog: pytest.LogCaptureFixture) -> None:
    """Each owner appends too few records for a snapshot. Together they append many."""
    caplog.set_level(logging.INFO)
    store, stored, tenures, appends = Store(), list[tuple[str, bytes | TidelogError]](), 100, 20

    async def story(runtime: Runtime, log: Log) -> None:
        await until(lambda: runtime.state is not RuntimeState.LOADING)
        answers = [runtime.submit("+1") for _ in range(appends)]
        log.make_durable()
        assert await answers[-1] == log.next_offset
        await settle()
        stored.append((f"wal/{log.next_offset}", batch(*[1] * appends, at=len(stored) * appends)))

    for _ in range(tenures):
        tell(story, Log(list(stored)), store=store, interval_records=10_000)
    loads = [each for each in caplog.records if "has loaded" in each.message]
    replayed = [each.__dict__["replayed"] for each in loads]
    assert len(replayed) == tenures - 1
    assert max(replayed) <= LOADED_RECORDS_MAX + appends
    assert len(asyncio.run(store.offsets())) <= tenures * appends / LOADED_RECORDS_MAX


def cut(data: bytes) -> bytes:
    return data[:-20]


def newer(data: bytes) -> bytes:
    file = pq.ParquetFile(pa.BufferReader(data))
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(sink, file.schema_arrow) as writer:
        writer.write_table(file.read())
        writer.add_key_value_metadata({**file.metadata.metadata, b"tidelog.format.version": b"2"})
    return b"".join(seal(memoryview(sink.getvalue())).pieces)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (cut(snapshot(100, 2)), f"object {ORIGIN.key(2)} is corrupt"),
        (snapshot(50, 1), f"object {ORIGIN.key(2)} is corrupt: it holds the state at offset 1"),
        (newer(snapshot(100, 2)), f"object {ORIGIN.key(2)} is of state snapshot format 2"),
    ],
)
def test_a_snapshot_that_cannot_be_used_stops_its_coordinator(
    data: bytes, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The start fails, although it could replay the log from an older snapshot."""
    store = Store((50, 1))
    store.place(2, data)

    async def story(runtime: Runtime, log: Log) -> None:
        await until(lambda: runtime.state is not RuntimeState.LOADING)
        with pytest.raises(CoordinatorRefused, match="is corrupt") as refused:
            runtime.submit("?")
        assert refused.value.code is ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert said in str(refused.value)
        assert said in str(runtime.fault)
        (record,) = [each for each in caplog.records if each.levelno == logging.ERROR]
        assert said in record.__dict__["why"]

    tell(story, Log([("a", batch(50, 50))]), store=store)


def test_a_snapshot_ahead_of_the_log_is_corrupt() -> None:
    async def story(runtime: Runtime, log: Log) -> None:
        await until(lambda: runtime.state is not RuntimeState.LOADING)
        assert str(runtime.fault) == (
            f"object {ORIGIN.key(3)} is corrupt: the log of numbers-0 ends at offset 2"
        )

    tell(story, Log([("a", batch(50, 50))]), store=Store((100, 3)))


def test_a_next_owners_snapshot_is_no_damage_to_a_coordinator_that_has_stopped(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = Store((100, 3))

    async def story(runtime: Runtime, log: Log) -> None:
        store.at_get = runtime.stop
        await until(lambda: runtime.state is not RuntimeState.LOADING)
        await settle()
        assert (runtime.state, runtime.fault) == (RuntimeState.STOPPED, None)
        assert caplog.records == []

    tell(story, Log([("a", batch(50, 50))]), store=store)


def test_a_snapshot_that_is_listed_and_never_found_is_corrupt() -> None:
    store = Store((50, 1), (100, 2))
    store.vanishing = [ORIGIN.key(2)]

    async def story(runtime: Runtime, log: Log) -> None:
        await until(lambda: runtime.state is not RuntimeState.LOADING)
        assert str(runtime.fault) == (
            f"object {ORIGIN.key(2)} is corrupt: it is listed but cannot be read"
        )

    tell(story, Log([("a", batch(50, 50))]), store=store)
