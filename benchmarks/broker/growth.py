"""The growth of a bucket while a producer writes for an hour: `make growth MINUTES=60`.

A broker runs with default settings on a filesystem store. Each producer sends a record when the
previous one is acknowledged, so nearly every record is a WAL slot of its own. Each minute's line
shows:

- slots written and objects deleted per second;
- objects that wait for the grace and for deletion;
- objects in the bucket, and the minutes that it took to write so many;
- latencies.

Prints a table, line by line as it measures. Exit code 1 if the bucket held more minutes of writing
in the last third of the time than in the second. It compares minutes of writing, not objects: the
number of objects follows the load, which a machine rarely keeps steady for an hour.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka import Producer

from benchmarks.harness.load import percentile
from tidelog.localstack.broker_process import BrokerProcess

TOPIC = "growing"
MINUTE = 60.0
FLUSH_SECONDS_MAX = 30.0
GROWTH_MAX = 0.1
"""How many more minutes of writing the last third may hold than the second, as a share."""
COLUMNS = (
    *("minute", "slots/s", "deleted/s", "marked", "waiting", "objects", "minutes held"),
    *("p50 ms", "p99 ms"),
)


@dataclass(frozen=True, slots=True)
class Minute:
    """The measurements of one minute."""

    number: int
    slots_a_second: float
    deleted_a_second: float
    marked: int
    waiting: int
    objects: int
    held: float
    """The minutes before this one's end in which so many slots were written."""
    p50_ms: float
    p99_ms: float

    def row(self) -> str:
        """The minute's line of the table."""
        cells = (
            str(self.number),
            f"{self.slots_a_second:.0f}",
            f"{self.deleted_a_second:.0f}",
            str(self.marked),
            str(self.waiting),
            str(self.objects),
            f"{self.held:.1f}",
            f"{self.p50_ms:.2f}",
            f"{self.p99_ms:.2f}",
        )
        return f"| {' | '.join(cells)} |"


def measure(
    folder: Path, minutes: int, producers: int, rate: float, settings: dict[str, str]
) -> list[Minute]:
    """Measure minute by minute, and print each."""
    bucket = folder / "bucket"
    bucket.mkdir(parents=True)
    print(f"| {' | '.join(COLUMNS)} |\n|{'---:|' * len(COLUMNS)}", flush=True)
    found: list[Minute] = []
    with BrokerProcess.start(
        f"file://{bucket}",
        folder / "broker.log",
        http="127.0.0.1:0",
        settings={"num.partitions": producers, **settings},
    ) as broker:
        command = [sys.executable, "-m", "benchmarks.broker.growth", "--load", broker.kafka]
        command += ["--producers", str(producers), "--rate", str(rate)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as load:
            try:
                assert load.stdout is not None
                before = _counters(broker.http)
                for number, line in enumerate(_minutes(load.stdout, minutes), start=1):
                    after = _counters(broker.http)
                    written = [each.slots_a_second for each in found]
                    found.append(_minute(number, line, before, after, _count(bucket), written))
                    print(found[-1].row(), flush=True)
                    before = after
            finally:
                load.kill()
    return found


def is_level(held: list[float]) -> bool:
    """Whether the last third held no more minutes of writing than the second."""
    third = len(held) // 3
    if third == 0:
        return True
    return max(held[2 * third :]) <= (1 + GROWTH_MAX) * max(held[third : 2 * third])


def minutes_held(slots_a_second: list[float], objects: int) -> float:
    """The last minutes in which so many slots were written; all minutes if fewer were written."""
    rest = objects / MINUTE
    for minutes, rate in enumerate(reversed(slots_a_second)):
        if rest <= rate:
            return minutes + (rest / rate if rate else 0.0)
        rest -= rate
    return float(len(slots_a_second))


def _minutes(lines: Iterator[str], number: int) -> Iterator[dict[str, float]]:
    for _ in range(number):
        yield json.loads(next(lines))


def _minute(
    number: int,
    acknowledged: dict[str, float],
    before: dict[str, float],
    after: dict[str, float],
    objects: int,
    written: list[float],
) -> Minute:
    seconds = after["at"] - before["at"]
    slots_a_second = (after["slots"] - before["slots"]) / seconds
    return Minute(
        number,
        slots_a_second,
        (after["deleted"] - before["deleted"]) / seconds,
        int(after["marked"]),
        int(after["waiting"]),
        objects,
        minutes_held([*written, slots_a_second], objects),
        acknowledged["p50_ms"],
        acknowledged["p99_ms"],
    )


def _counters(http: str) -> dict[str, float]:
    names = {
        "tidelog_wal_slots_total": "slots",
        "tidelog_collected_objects_total": "deleted",
        "tidelog_collectable_objects": "marked",
        "tidelog_collect_backlog_objects": "waiting",
    }
    found = {"at": time.perf_counter(), **dict.fromkeys(names.values(), 0.0)}
    with urllib.request.urlopen(f"http://{http}/metrics", timeout=30) as answer:
        for line in answer.read().decode().splitlines():
            name = line.partition("{")[0].partition(" ")[0]
            if name in names:
                found[names[name]] += float(line.rpartition(" ")[2])
    return found


def _count(bucket: Path) -> int:
    """Objects in the bucket; reads no file, so the broker is hardly disturbed."""
    number = 0
    for folder, _, files in os.walk(bucket):
        if ".tidelog" not in folder:
            number += len(files)
    return number


# The part below runs in a process of its own.


def _load(bootstrap: str, producers: int, rate: float) -> None:
    """Send records one after the other from each producer; print a line of JSON each minute.

    Runs until killed. A late producer sends at once, but catches up by at most a second.
    """
    milliseconds: list[float] = []

    def work(number: int) -> None:
        producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "linger.ms": 0,
                "socket.nagle.disable": True,
                "log_level": 0,
            }
        )
        due = time.perf_counter()
        while True:
            begun = time.perf_counter()
            producer.produce(TOPIC, b"x" * 100, partition=number)
            if producer.flush(FLUSH_SECONDS_MAX):
                raise RuntimeError("a record was not acknowledged")
            ended = time.perf_counter()
            milliseconds.append(1000 * (ended - begun))
            due = max(due + producers / rate, ended - 1)
            time.sleep(max(0.0, due - ended))

    for number in range(producers):
        threading.Thread(target=work, args=(number,), daemon=True).start()
    while True:
        time.sleep(MINUTE)
        values, milliseconds[:] = sorted(milliseconds), []
        print(
            json.dumps(
                {
                    "acknowledged": len(values),
                    "p50_ms": percentile(values, 0.50),
                    "p99_ms": percentile(values, 0.99),
                }
            ),
            flush=True,
        )


def main() -> int:
    """Run the whole measurement, or only its load."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=int, default=60)
    parser.add_argument("--producers", type=int, default=1)
    parser.add_argument(
        "--rate", type=float, default=math.inf, help="maximum records a second (default: no limit)"
    )
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--load", metavar="BOOTSTRAP")
    arguments = parser.parse_args()
    if arguments.load is not None:
        _load(arguments.load, arguments.producers, arguments.rate)
    settings = dict(each.split("=", 1) for each in arguments.set)
    with tempfile.TemporaryDirectory(prefix="tidelog-growth-") as folder:
        found = measure(
            Path(folder), arguments.minutes, arguments.producers, arguments.rate, settings
        )
    level = is_level([each.held for each in found])
    print(f"\n{'level' if level else 'growing'}: {found[-1].objects} objects at the end")
    return 0 if level else 1


if __name__ == "__main__":
    sys.exit(main())
