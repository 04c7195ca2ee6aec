"""The time and the memory to load a coordinator's state, from a snapshot and from its whole log.

Each measurement is a process of its own:

    python -m benchmarks.broker.recovery STATE SOURCE FOLDER
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

from tidelog.broker.telemetry.process_memory import settle_garbage
from tidelog.clock import SystemClock
from tidelog.coordinator.group.machine import GroupMachine
from tidelog.coordinator.group.records.log_records import CommittedOffset, OffsetStored
from tidelog.coordinator.group.records.log_records import decode_record as decode_group_record
from tidelog.coordinator.group.records.log_records import encode_record as encode_group_record
from tidelog.coordinator.group.settings import GroupSettings
from tidelog.coordinator.group.state_table import GroupTable
from tidelog.coordinator.log_codec import Codec, decode_log
from tidelog.coordinator.snapshot_format import SnapshotOrigin
from tidelog.coordinator.snapshots import SnapshotMetrics, SnapshotSchedule, StateSnapshots
from tidelog.coordinator.transaction.log_records import TransactionStored
from tidelog.coordinator.transaction.log_records import decode_record as decode_transaction_record
from tidelog.coordinator.transaction.log_records import encode_record as encode_transaction_record
from tidelog.coordinator.transaction.machine import TransactionMachine
from tidelog.coordinator.transaction.settings import TransactionCoordinatorSettings
from tidelog.coordinator.transaction.state_table import TransactionTable
from tidelog.coordinator.transaction.states import TransactionState
from tidelog.coordinator.transaction.transaction import EnlistedPartition, Transaction
from tidelog.crash_points import NO_CRASH_POINTS
from tidelog.entropy import SystemEntropy
from tidelog.identifiers import LeaderEpoch, ProducerEpoch, ProducerId, Slot
from tidelog.records.records import NewRecord, encode_batch
from tidelog.storage.stores.location import open_store
from tidelog.workers.offload import ThreadOffload

GROUPS = 10_000
PARTITIONS_OF_A_GROUP = 100
TRANSACTIONAL_IDS = 100_000
BATCH_RECORDS = 100
LOG_OBJECT_BYTES = 8 * 1024 * 1024
SECONDS_MAX = 100
_MB = 1_000_000
_NOW_MS = 1_800_000_000_000


@dataclass(frozen=True, slots=True)
class Recovery:
    """The costs of one state: of its snapshot, and of loading it."""

    label: str
    rows: int
    snapshot_mb: float
    log_mb: float
    write_seconds: float
    longest_pause_ms: float
    """The longest pause of the event loop while the snapshot is written."""
    from_snapshot_seconds: float
    from_log_seconds: float
    snapshot_memory_mb: float
    """The growth of the process's memory."""
    log_memory_mb: float


@dataclass(frozen=True, slots=True)
class State:
    """A coordinator with a very large state."""

    label: str
    origin: SnapshotOrigin
    machine: Any
    table: Any
    codec: Codec[Any]
    records: Iterator[Any]


class DurableLog:
    """A log of so many durable records."""

    def __init__(self, next_offset: int) -> None:
        self.next_offset = next_offset
        self.newest_slot = Slot(0)

    def durable(self, slot: Slot) -> asyncio.Future[None]:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        future.set_result(None)
        return future

    def superseded_below(self, offset: int) -> None:
        return


def state_of(name: str) -> State:
    """A state to measure."""
    if name == "offsets":
        return State(
            "1,000,000 group offsets",
            SnapshotOrigin("bench", "__consumer_offsets", UUID(int=1), 0),
            GroupMachine(GroupSettings()),
            GroupTable(),
            Codec(encode_group_record, lambda logged: decode_group_record(*logged)),
            _offsets(),
        )
    return State(
        "100,000 transactional ids",
        SnapshotOrigin("bench", "__transaction_state", UUID(int=2), 0),
        TransactionMachine(TransactionCoordinatorSettings(), 0),
        TransactionTable(),
        Codec(
            encode_transaction_record,
            lambda logged: decode_transaction_record(logged.key, logged.value),
        ),
        _transactions(),
    )


def _offsets() -> Iterator[OffsetStored]:
    for group in range(GROUPS):
        for partition in range(PARTITIONS_OF_A_GROUP):
            committed = CommittedOffset(group * 1000 + partition, 3, "", _NOW_MS + group)
            yield OffsetStored(f"group-{group}", f"topic-{group % 50}", partition, committed)


def _transactions() -> Iterator[TransactionStored]:
    for number in range(TRANSACTIONAL_IDS):
        # One in ten has an open transaction.
        is_ongoing = number % 10 == 0
        topic = f"topic-{number % 50}"
        partitions = [EnlistedPartition(topic, each) for each in range(3 if is_ongoing else 0)]
        state = TransactionState.ONGOING if is_ongoing else TransactionState.COMPLETE_COMMIT
        transaction = Transaction(
            producer_id=ProducerId(number),
            producer_epoch=ProducerEpoch(number % 100),
            state=state,
            timeout_ms=60_000,
            updated_ms=_NOW_MS + number,
            begun_ms=_NOW_MS,
            partitions=frozenset(partitions),
            ordinal=number % 1000 + 1,
            client_version=2,
        )
        yield TransactionStored(f"transactional-id-{number}", transaction)


def measure_recovery(folder: Path) -> list[Recovery]:
    """Measure both states."""
    folder.mkdir(parents=True)
    found = []
    for name in ("offsets", "transactions"):
        written = _measured(name, "write", folder)
        snapshot, log = _measured(name, "snapshot", folder), _measured(name, "log", folder)
        assert snapshot["rows"] == log["rows"] == written["rows"]
        found.append(
            Recovery(
                state_of(name).label,
                written["rows"],
                written["snapshot_mb"],
                written["log_mb"],
                written["write_seconds"],
                written["longest_pause_ms"],
                snapshot["seconds"],
                log["seconds"],
                snapshot["memory_mb"],
                log["memory_mb"],
            )
        )
    return found


def _measured(name: str, source: str, folder: Path) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.broker.recovery", name, source, str(folder)]
    done = subprocess.run(
        command, stdout=subprocess.PIPE, text=True, check=True, timeout=SECONDS_MAX
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


# The part below runs in a process of its own.


async def run(state: State, source: str, folder: Path) -> dict[str, float]:
    """Write the log and the snapshot of the state, or load it from one of them."""
    clock, offload = SystemClock(), ThreadOffload()
    metrics = SnapshotMetrics()
    store = open_store(f"file://{folder}/bucket", clock, SystemEntropy())
    snapshots: StateSnapshots[Any] = StateSnapshots(
        store,
        clock,
        offload,
        NO_CRASH_POINTS,
        metrics,
        state.origin,
        LeaderEpoch(0),
        state.table,
        SnapshotSchedule(1),
    )
    log_path = folder / f"{state.origin.topic}.log"
    try:
        if source == "write":
            rows = _write_log(state, log_path)
            # A full garbage collection over such a state takes longer than the measured work.
            settle_garbage()
            pauses = asyncio.create_task(_longest_pause())
            await asyncio.sleep(0)
            await snapshots.write(state.machine, DurableLog(rows))
            pauses.cancel()
            (longest,) = await asyncio.gather(pauses)
            return {
                "rows": rows,
                "snapshot_mb": metrics.bytes / _MB,
                "log_mb": log_path.stat().st_size / _MB,
                "write_seconds": metrics.seconds,
                "longest_pause_ms": longest * 1000,
            }
        before = _resident_mb()
        started = time.perf_counter()
        if source == "snapshot":
            restored = await snapshots.restore(state.machine.apply)
            rows = 0 if restored is None else restored.rows
        else:
            rows = await _replay(state, _objects(log_path), offload)
        seconds = time.perf_counter() - started
        return {"rows": rows, "seconds": seconds, "memory_mb": _resident_mb() - before}
    finally:
        offload.close()
        await store.close()


def _write_log(state: State, path: Path) -> int:
    count = 0
    batch: list[NewRecord] = []
    with path.open("wb") as log:
        for record in state.records:
            state.machine.apply(record)
            key, value = state.codec.encode(record)
            batch.append(NewRecord(value, key, timestamp=_NOW_MS))
            count += 1
            if len(batch) == BATCH_RECORDS:
                log.write(encode_batch(batch))
                batch.clear()
        assert not batch
    return count


async def _replay(state: State, objects: Iterator[bytes], offload: ThreadOffload) -> int:
    """Load as a coordinator does: an object of the log at a time, decoded in a worker thread."""
    count = 0
    for piece in objects:
        records = await offload.run(decode_log, piece, 0, state.codec)
        for record in records:
            state.machine.apply(record)
        count += len(records)
    return count


def _objects(path: Path) -> Iterator[bytes]:
    data = path.read_bytes()
    begin = position = 0
    while position < len(data):
        position += 12 + int.from_bytes(data[position + 8 : position + 12], "big")
        if position - begin >= LOG_OBJECT_BYTES or position == len(data):
            yield data[begin:position]
            begin = position


async def _longest_pause() -> float:
    """The longest pause of the event loop in seconds, until cancelled."""
    longest, last = 0.0, time.perf_counter()
    try:
        while True:
            await asyncio.sleep(0.001)
            now = time.perf_counter()
            longest, last = max(longest, now - last - 0.001), now
    except asyncio.CancelledError:
        return longest


def _resident_mb() -> float:
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) * 1024 / _MB


if __name__ == "__main__":
    _, name_, source_, folder_ = sys.argv
    print(json.dumps(asyncio.run(run(state_of(name_), source_, Path(folder_)))))
