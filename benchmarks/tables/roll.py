"""The costs of rolls through a broker, and producers' latencies during rolls."""

from __future__ import annotations

import asyncio
import os
import statistics
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from confluent_kafka import Producer

from benchmarks.harness.latency import Latency, of_acknowledgements
from benchmarks.harness.targets import (
    GB,
    ONLY_ON_REQUEST,
    WITHOUT_MERGES,
    Target,
    scrape,
    tidelog,
)
from tidelog.client.admin.flush import flush_topic
from tidelog.client.pool import Client
from tidelog.clock import SystemClock
from tidelog.network import SocketNetwork

FLUSH_SECONDS_MAX = 300
AWAITED_SECONDS_MAX = 120.0
ASKED_ROUNDS = 8
DUE_ROUNDS = 3
DUE_BYTES = 150_000_000
"""Bytes of values: more than `roll.bytes` in the WAL."""
DUE_ROLLED_BYTES = 120_000_000
"""WAL bytes read when such a roll is almost done."""
DUE_SECONDS = 12.0
"""Seconds of measurement: less than the roll takes."""


class RollShape(NamedTuple):
    """Records of one kind; half of each value is random, half compresses well."""

    record_bytes: int
    batch_bytes: int
    codec: str = "none"

    @property
    def label(self) -> str:
        """The label in the report."""
        codec = "" if self.codec == "none" else f", {self.codec}"
        return f"{self.record_bytes} B, batches of {self.batch_bytes // 1024} KiB{codec}"


SHAPES = (
    RollShape(1024, 16 * 1024),
    RollShape(1024, 512 * 1024),
    RollShape(1024, 512 * 1024, "lz4"),
    RollShape(100, 16 * 1024),
    RollShape(100, 512 * 1024),
)


@dataclass(frozen=True, slots=True)
class Rolled:
    """The roll of one partition."""

    cpu_seconds_a_gb: float
    """The broker's CPU seconds for a GB of values."""
    megabytes_a_second: float
    """MB of values a second."""
    stored_bytes_a_byte: float
    """Bytes of the segments for each byte of values."""
    extra_memory_mb: float
    """The peak memory of a roll above the memory before it, after an earlier roll."""
    first_extra_memory_mb: float
    """The same for the process's first roll, of as many bytes."""


@dataclass(frozen=True, slots=True)
class Felt:
    """Producers' latencies during a roll: medians of some rounds."""

    store: str
    how: str
    """How the other topic is rolled."""
    without: Latency
    during: Latency


def measure_roll(folder: Path, shape: RollShape, total_bytes: int) -> Rolled:
    """Produce to one partition of a broker on the filesystem store, then roll it."""
    bucket = folder / "bucket"
    bucket.mkdir(parents=True)
    with tidelog("roll", f"file://{bucket}", folder, **ONLY_ON_REQUEST) as target:
        first_extra, _ = _extra_memory(target, "first", _fill(target, "first", shape, total_bytes))
        records = _fill(target, "rolled", shape, total_bytes)
        stored_before, before = _segment_bytes(target), target.usage()
        extra, seconds = _extra_memory(target, "rolled", records)
        used = target.usage().since(before)
        stored_bytes = _segment_bytes(target) - stored_before
    raw_bytes = records * shape.record_bytes
    return Rolled(
        used.cpu_seconds * GB / raw_bytes,
        raw_bytes / 1e6 / seconds,
        stored_bytes / raw_bytes,
        extra,
        first_extra,
    )


def measure_felt(folder: Path, records: int, backlog_bytes: int) -> list[Felt]:
    """Measure acknowledgements of single records, alone and while another topic is rolled, in turn.

    Once only the broker can delay them, once one disk serves both.
    """
    found = []
    for store in ("in memory", "on the filesystem"):
        for measured in (_felt_of_due, _felt_of_asked):
            bucket = folder / measured.__name__
            bucket.mkdir(parents=True, exist_ok=True)
            url = "memory://bench" if store == "in memory" else f"file://{bucket}"
            print(f"acknowledgements {store}, beside rolls", file=sys.stderr, flush=True)
            found.append(measured(store, url, folder, records, backlog_bytes))
    return found


def _felt_of_due(store: str, url: str, folder: Path, records: int, _: int) -> Felt:
    """Roll with the default settings, when there is enough for a file."""
    without, during = [], []
    with tidelog("due", url, folder, **WITHOUT_MERGES) as target:
        of_acknowledgements(target, "warm-up", records)
        for number in range(DUE_ROUNDS):
            without.append(of_acknowledgements(target, f"without-{number}", 0, DUE_SECONDS))
            before = _rolled_bytes(target)
            _produce(target, f"backlog-{number}", SHAPES[0], DUE_BYTES)
            _await_rolled(target, before + 1)
            during.append(of_acknowledgements(target, f"during-{number}", 0, DUE_SECONDS))
            if _rolled_bytes(target) - before > DUE_ROLLED_BYTES:
                raise RuntimeError("the roll was over before the measurement")
            _await_rolled(target, before + DUE_ROLLED_BYTES)
            _settle(target)
    return Felt(store, "rolled, as it is due", _median(without), _median(during))


def _rolled_bytes(target: Target) -> float:
    """WAL bytes read so far."""
    assert target.metrics_url is not None
    return scrape(target.metrics_url)["tidelog_roll_wal_bytes_total"]


def _await_rolled(target: Target, wal_bytes: float) -> None:
    deadline = time.monotonic() + AWAITED_SECONDS_MAX
    while _rolled_bytes(target) < wal_bytes:
        if time.monotonic() > deadline:
            raise RuntimeError("the broker has not done the due rolls")
        time.sleep(0.1)


def _felt_of_asked(store: str, url: str, folder: Path, records: int, backlog_bytes: int) -> Felt:
    """Roll at full speed, since a client waits."""
    without, during = [], []
    with tidelog("asked", url, folder, **ONLY_ON_REQUEST, **WITHOUT_MERGES) as target:
        of_acknowledgements(target, "warm-up", records)
        for number in range(ASKED_ROUNDS):
            without.append(of_acknowledgements(target, f"without-{number}", records))
            topic = f"backlog-{number}"
            count = _fill(target, topic, SHAPES[0], backlog_bytes)
            rolling = threading.Thread(target=_flush, args=(target, topic, count))
            rolling.start()
            during.append(of_acknowledgements(target, f"during-{number}", records))
            if not rolling.is_alive():
                raise RuntimeError("the roll was over before the measurement: ask for more bytes")
            rolling.join()
    return Felt(store, "flushed, as fast as can be", _median(without), _median(during))


def _fill(target: Target, topic: str, shape: RollShape, total_bytes: int) -> int:
    """Produce the records to roll, and wait until no other work is left."""
    records = _produce(target, topic, shape, total_bytes)
    _settle(target)
    return records


def _extra_memory(target: Target, topic: str, records: int) -> tuple[float, float]:
    """Roll a topic: MB of the peak above the memory before, and the seconds it took."""
    target.reset_peak_memory()
    resident, started = target.resident_memory_mb(), time.perf_counter()
    _flush(target, topic, records)
    seconds = time.perf_counter() - started
    return target.peak_memory_mb() - resident, seconds


def _segment_bytes(target: Target) -> float:
    assert target.metrics_url is not None
    return scrape(target.metrics_url)["tidelog_roll_segment_bytes_total"]


def _median(found: list[Latency]) -> Latency:
    return Latency(
        statistics.median(each.p50_ms for each in found),
        statistics.median(each.p99_ms for each in found),
    )


def _produce(target: Target, topic: str, shape: RollShape, total_bytes: int) -> int:
    """Produce the records; return their number."""
    target.create_topic(topic, 1)
    records = total_bytes // shape.record_bytes
    half = shape.record_bytes // 2
    noise, rest = os.urandom(1 << 24), b"x" * (shape.record_bytes - half)
    failures: list[str] = []
    producer = Producer(
        {
            "bootstrap.servers": target.bootstrap,
            "batch.size": shape.batch_bytes,
            "batch.num.messages": 1_000_000,
            "linger.ms": 50,
            "compression.type": shape.codec,
            "queue.buffering.max.messages": 1_000_000,
            "delivery.report.only.error": True,
            "on_delivery": lambda error, _: failures.append(str(error)),
            "log_level": 0,
        }
    )
    for number in range(records):
        start = number * 7919 % (len(noise) - half)
        while True:
            try:
                producer.produce(topic, noise[start : start + half] + rest, partition=0)
                break
            except BufferError:
                producer.poll(0.01)
        if number % 1000 == 0:
            producer.poll(0)
    if producer.flush(300) or failures:
        raise RuntimeError(f"not all records were acknowledged: {failures[:1]}")
    return records


def _settle(target: Target, seconds: float = 0.5) -> None:
    """Wait until the broker has no more work."""
    before = target.usage().cpu_seconds
    while True:
        time.sleep(seconds)
        now = target.usage().cpu_seconds
        if now - before < 0.1 * seconds:
            return
        before = now


def _flush(target: Target, topic: str, records: int) -> None:
    async def run() -> None:
        host, port = target.bootstrap.split(":")
        async with Client(SocketNetwork(), SystemClock(), [(host, int(port))]) as client:
            (found,) = await flush_topic(client, topic, FLUSH_SECONDS_MAX * 1000)
            if found.refusal is not None:
                raise found.refusal
            assert found.table_next == records

    asyncio.run(run())
