"""The time of a broker's start, life after life, each ended by kill -9 under transactional load.

Also the time until the first transaction of the next life is committed.

    python -m benchmarks.broker.restarts --lives 10 --seconds 8 8 --get-ms 100 FOLDER

prints one JSON object. Two transactional producers write to four partitions all the while.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from confluent_kafka import KafkaException, Producer

from tidelog.localstack.broker_process import BrokerProcess
from tidelog.localstack.ports import free_ports

TOPIC = "restarts"
PARTITIONS = 4
PRODUCERS = 2
SEED = 1
COMMIT_SECONDS_MAX = 60.0
COMPARED = 10
"""The restart that is compared with the first, and the number of restarts of a median."""
RECONNECT_MS = 50


@dataclass(frozen=True, slots=True)
class Life:
    """One start of the broker."""

    ready_seconds: float
    """The time from the start of the process to its ready line."""
    commit_seconds: float
    """The time from the start to the first commit of a new transactional producer."""


@dataclass(frozen=True, slots=True)
class Restarts:
    """The starts of consecutive lives."""

    label: str
    lives: list[Life]
    slots: int
    """WAL slots that all lives together wrote."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """Lives of random lengths between two bounds, on a store with a given latency."""

    label: str
    lives: int
    seconds_min: float
    seconds_max: float
    get_ms: int = 0


SCENARIOS = (
    Scenario("killed 8 s after ready", 11, 8.0, 8.0),
    Scenario("killed 8 s after ready, 100 ms a GET", 11, 8.0, 8.0, get_ms=100),
    Scenario("killed 1 to 3 s after ready", 31, 1.0, 3.0),
    Scenario("killed 1 to 3 s after ready, 100 ms a GET", 31, 1.0, 3.0, get_ms=100),
)


def measure_restarts(folder: Path) -> list[Restarts]:
    """Run all scenarios."""
    found = []
    for number, scenario in enumerate(SCENARIOS):
        print(f"restarting, {scenario.label}", file=sys.stderr, flush=True)
        found.append(measure(scenario, folder / str(number)))
    return found


def measure(scenario: Scenario, folder: Path) -> Restarts:
    """Run one scenario. The first life finds an empty bucket."""
    (folder / "bucket").mkdir(parents=True)
    drawn = random.Random(SEED)
    port = free_ports(1)[0]
    bootstrap = f"127.0.0.1:{port}"
    load = None
    lives = []
    try:
        for _ in range(scenario.lives):
            begun = time.perf_counter()
            with BrokerProcess.start(
                f"file://{folder / 'bucket'}",
                folder / "broker.log",
                listen=bootstrap,
                settings={"num.partitions": PARTITIONS},
                module="benchmarks.harness.slow_store" if scenario.get_ms else "tidelog.cli",
                environment={"BENCHMARK_GET_MS": str(scenario.get_ms)},
            ):
                ready = time.perf_counter()
                committed = _first_commit(bootstrap)
                if load is None:
                    load = _start_load(bootstrap, folder)
                lives.append(Life(ready - begun, committed - begun))
                left = ready + drawn.uniform(scenario.seconds_min, scenario.seconds_max)
                time.sleep(max(0.0, left - time.perf_counter()))
    finally:
        if load is not None:
            load.kill()
            load.wait()
    slots = sum(int(path.name.split(".")[0]) + 1 for path in _newest_slots(folder / "bucket"))
    return Restarts(scenario.label, lives, slots)


def _newest_slots(bucket: Path) -> list[Path]:
    # After the end of a WAL there are only a few seals of those that took it over.
    wals = sorted((bucket / "wal").iterdir())
    return [max(path for path in wal.iterdir() if path.stat().st_size > 64) for wal in wals]


def _first_commit(bootstrap: str) -> float:
    producer = _producer(bootstrap, "first")
    _transact(producer)
    return time.perf_counter()


def _start_load(bootstrap: str, folder: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "benchmarks.broker.restarts", "--load", bootstrap, str(folder)]
    with (folder / "load.log").open("ab") as log:
        return subprocess.Popen(command, stdout=log, stderr=log)


# The part below runs in a process of its own.


def _load(bootstrap: str) -> None:
    """Commit transactions until killed, through all deaths of the broker."""

    def work(number: int) -> None:
        while True:
            try:
                producer = _producer(bootstrap, f"load-{number}")
                while True:
                    _transact(producer)
            except KafkaException:
                time.sleep(RECONNECT_MS / 1000)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(PRODUCERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _producer(bootstrap: str, transactional_id: str) -> Producer:
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "transactional.id": transactional_id,
            "linger.ms": 0,
            "log_level": 0,
            "reconnect.backoff.ms": RECONNECT_MS,
            "reconnect.backoff.max.ms": RECONNECT_MS,
            "retry.backoff.ms": RECONNECT_MS,
        }
    )
    producer.init_transactions(COMMIT_SECONDS_MAX)
    return producer


def _transact(producer: Producer) -> None:
    producer.begin_transaction()
    for partition in range(PARTITIONS):
        producer.produce(TOPIC, b"x" * 100, partition=partition)
    producer.commit_transaction(COMMIT_SECONDS_MAX)


def main() -> None:
    """Run one scenario, or the load of one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--load", metavar="BOOTSTRAP")
    parser.add_argument("--lives", type=int, default=11)
    parser.add_argument("--seconds", type=float, nargs=2, default=(8.0, 8.0))
    parser.add_argument("--get-ms", type=int, default=0)
    arguments = parser.parse_args()
    if arguments.load is not None:
        _load(arguments.load)
        return
    low, high = arguments.seconds
    scenario = Scenario("restarts", arguments.lives, low, high, arguments.get_ms)
    print(json.dumps(asdict(measure(scenario, arguments.folder))))


if __name__ == "__main__":
    main()
