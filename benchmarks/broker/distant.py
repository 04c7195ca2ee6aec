"""Clients' latencies and the costs on a store with slow requests, in units of its PUT."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.broker.throughput import WAL_ALONE
from benchmarks.harness.targets import LOAD_SECONDS_MAX, Target, distant
from tidelog.doctor.prices import dollars_a_month
from tidelog.localstack.kafka import java_command, kafka_jars

PROGRAM = Path(__file__).parent / "programs" / "PacedProducer.java"
PARTITIONS = (1, 16)
RECORD_BYTES = 1024
PACED_BYTES_A_SECOND = 2e5
SECONDS = 10.0
WARMUP_SECONDS = 3
TRANSACTIONS = 40
COLD_BYTES = 100_000_000
FULL_BYTES = 4_000_000
"""Bytes for each partition, up to FULL_PARTITIONS, of a client that sends at full speed."""
FULL_PARTITIONS = 8
NO_LIMIT, DEFAULT_LIMIT, CHEAP_LIMIT = 0, 10, 4
PEER_SECONDS, PEER_BYTES = 0.25, 8 << 20
"""AutoMQ's defaults for an upload: so much time, or so many bytes."""


class Distance(NamedTuple):
    """The latencies of a store."""

    put_ms: int
    get_ms: int


class Feel(NamedTuple):
    """The latencies of one client."""

    label: str
    megabytes_a_second: float
    p50_ms: float
    p99_ms: float


@dataclass(slots=True)
class Felt:
    """The measurements on one store."""

    distance: Distance
    full: list[tuple[str, float]] = field(default_factory=list)
    """The rates of clients at full speed, in MB/s."""
    paced: list[Feel] = field(default_factory=list)
    cold_megabytes_a_second: float = 0.0
    transaction: dict[str, float] = field(default_factory=dict)


class Price(NamedTuple):
    """The cost of a rate under a limit of PUTs a second."""

    wanted_megabytes_a_second: float
    limit: int
    megabytes_a_second: float
    p50_ms: float
    p99_ms: float
    puts_a_second: float

    @property
    def dollars_a_month(self) -> float:
        return dollars_a_month(self.puts_a_second)


@dataclass(slots=True)
class Distant:
    """All measurements."""

    felt: list[Felt] = field(default_factory=list)
    prices: list[Price] = field(default_factory=list)


DISTANCES = (Distance(100, 30), Distance(250, 80))
RATES = {
    0.1: (),
    1.0: (),
    10.0: ("batch.size=65536",),
    100.0: ("batch.size=524288", "max.request.size=8388608", "buffer.memory=134217728"),
}
"""Rates in MB/s, each with the client's settings for it: see `docs/OPERATIONS.md`."""


def measure_distant(folder: Path, cache: Path) -> Distant:
    """Run all measurements."""
    lib = kafka_jars(cache)
    found = Distant()
    for distance in DISTANCES:
        print(f"measuring a store of {distance.put_ms} ms a PUT", file=sys.stderr, flush=True)
        found.felt.append(_felt(folder / str(distance.put_ms), lib, distance))
    for rate, settings in RATES.items():
        for limit in (NO_LIMIT, DEFAULT_LIMIT, CHEAP_LIMIT):
            print(f"{rate} MB/s, {limit} PUTs a second", file=sys.stderr, flush=True)
            found.prices.append(_price(folder / f"{rate}-{limit}", lib, rate, limit, settings))
    return found


def _felt(folder: Path, lib: Path, distance: Distance) -> Felt:
    felt = Felt(distance)
    with distant(folder, *distance, **WAL_ALONE) as target:
        for partitions in PARTITIONS:
            topics = _Topics(target, partitions)
            size = FULL_BYTES * min(partitions, FULL_PARTITIONS)
            java = _java(lib, target, topics.new(), partitions, 1e9, size / 1e9)
            felt.full.append((f"Kafka's, {partitions} partitions", _rate(java)))
            native = target.load(
                "produce",
                topics.new(),
                partitions=partitions,
                records=5 * size // RECORD_BYTES,
                record_bytes=RECORD_BYTES,
                batch_bytes=1_000_000,
                linger_ms=5,
            )
            felt.full.append((f"librdkafka, {partitions} partitions", _rate(native)))
        felt.paced += _all_paced(lib, target)
        for partitions in PARTITIONS:
            topic = _Topics(target, partitions).new()
            options = {"seconds": SECONDS, "bytes_a_second": PACED_BYTES_A_SECOND}
            label = f"to a consumer at the tail, librdkafka, {partitions} partitions"
            felt.paced.append(
                _feel(label, target.load("tail", topic, partitions=partitions, **options))
            )
        target.create_topic("transactions", 1)
        before = target.usage()
        felt.transaction = target.load(
            "commits",
            "transactions",
            module="benchmarks.broker.transaction_load",
            rounds=TRANSACTIONS,
        )
        used = target.usage().since(before)
        felt.transaction["puts"] = used.puts / felt.transaction["transactions"]
    with distant(folder / "limited", *distance, **{"wal.puts.per.second.max": DEFAULT_LIMIT}) as t:
        for partitions in PARTITIONS:
            label = f"Kafka's, {partitions} partitions, {DEFAULT_LIMIT} PUTs a second"
            felt.paced.append(_feel(label, _java(lib, t, _Topics(t, partitions).new(), partitions)))
    felt.cold_megabytes_a_second = _cold(folder / "cold", distance)
    return felt


def _all_paced(lib: Path, target: Target) -> list[Feel]:
    found = []
    for partitions in PARTITIONS:
        topics = _Topics(target, partitions)
        java = _java(lib, target, topics.new(), partitions)
        found.append(_feel(f"Kafka's, {partitions} partitions", java))
        for idempotent in (False, True):
            label = f"librdkafka{', idempotent' * idempotent}, {partitions} partitions"
            native = target.load(
                "paced",
                topics.new(),
                partitions=partitions,
                seconds=SECONDS,
                bytes_a_second=PACED_BYTES_A_SECOND,
                idempotent=idempotent,
            )
            found.append(_feel(label, native))
    return found


def _cold(folder: Path, distance: Distance) -> float:
    """The rate of a consumer from the beginning, with no records in memory."""
    cold = {**WAL_ALONE, "tail.cache.bytes": 0}
    with distant(folder, *distance, **cold) as target:
        target.create_topic("cold", 16)
        options = {"partitions": 16, "records": COLD_BYTES // RECORD_BYTES}
        target.load("produce", "cold", record_bytes=RECORD_BYTES, **options)
        return _rate(target.load("consume", "cold", record_bytes=RECORD_BYTES, **options))


def _price(folder: Path, lib: Path, rate: float, limit: int, settings: tuple[str, ...]) -> Price:
    options = {**WAL_ALONE, "wal.puts.per.second.max": limit}
    with distant(folder, *DISTANCES[0], **options) as target:
        topic = _Topics(target, 16).new()
        before = target.usage()
        java = _java(lib, target, topic, 16, rate * 1e6, SECONDS, settings)
        used = target.usage().since(before)
        puts = used.puts / java["seconds"]
        return Price(rate, limit, _rate(java), java["p50_ms"], java["p99_ms"], puts)


def _java(
    lib: Path,
    target: Target,
    topic: str,
    partitions: int,
    bytes_a_second: float = PACED_BYTES_A_SECOND,
    seconds: float = SECONDS,
    settings: tuple[str, ...] = (),
) -> dict[str, Any]:
    """Run Kafka's own client with its default settings, except for these."""
    warmup = WARMUP_SECONDS if seconds > WARMUP_SECONDS else 0
    numbers = (partitions, bytes_a_second, seconds, RECORD_BYTES, warmup)
    arguments = [target.bootstrap, topic, *map(str, numbers), *settings]
    command = java_command(lib, str(PROGRAM), arguments, heap="512m")
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=LOAD_SECONDS_MAX
    )
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
    result: dict[str, Any] = json.loads(done.stdout)
    result["bytes"] = result["records"] * RECORD_BYTES
    return result


def _rate(result: dict[str, Any]) -> float:
    return float(result["bytes"]) / 1e6 / float(result["seconds"])


def _feel(label: str, result: dict[str, Any]) -> Feel:
    return Feel(label, _rate(result), result["p50_ms"], result["p99_ms"])


class _Topics:
    """New topics of one broker."""

    made = 0

    def __init__(self, target: Target, partitions: int) -> None:
        self._target = target
        self._partitions = partitions

    def new(self) -> str:
        """A topic that was not used before."""
        _Topics.made += 1
        topic = f"distant.{_Topics.made}"
        self._target.create_topic(topic, self._partitions)
        return topic
