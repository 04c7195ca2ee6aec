"""Two versions of the broker at the same time, so that the machine's drift reaches both alike.

    python -m benchmarks.broker.beside COMMIT [--pairs 12]

Each pair is a new process of either version, since the speed of equal processes differs by a tenth.
Both serve the same load on stores in memory. They share one core, their clients the others. Prints
what a unit of work costs here, as a ratio to the commit. Needs Linux and this repository's history.
"""

from __future__ import annotations

import argparse
import io
import os
import subprocess
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Mapping, Set
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from benchmarks.broker import transactions
from benchmarks.broker.throughput import KIB, MIB
from benchmarks.harness.targets import GB, Target
from tidelog.localstack.broker_process import BrokerProcess

ROOT = Path(__file__).parents[2]
PARTITIONS = 16
TRANSACTIONS_SECONDS = 8.0
CONSUMED_TIMES = 10


class Load(NamedTuple):
    """A load, and the unit of its work."""

    name: str
    unit: str
    units: Callable[[Mapping[str, Any]], float]
    """The work that a load did, by its result."""
    run: Callable[[Target], dict[str, Any]]


class Costs(NamedTuple):
    """What one broker of a pair used and did."""

    cpu_seconds: float
    """Of one unit."""
    units_a_second: float


def _transactions(target: Target) -> dict[str, Any]:
    return target.load(
        "concurrent",
        "transactions",
        module=transactions.LOAD,
        producers=10,
        partitions=PARTITIONS,
        seconds=TRANSACTIONS_SECONDS,
    )


def _throughput(
    kind: str, batch_bytes: int, megabytes: int, times: int = 1
) -> Callable[[Target], dict[str, Any]]:
    """`times` loads, one after the other, as one result.

    A broker consumes so fast that what it does beside it would count most in a single one.
    """

    def run(target: Target) -> dict[str, Any]:
        results = [
            target.load(
                kind,
                f"batches.{batch_bytes}",
                record_bytes=KIB,
                partitions=PARTITIONS,
                batch_bytes=batch_bytes,
                records=megabytes * 1_000_000 // KIB,
            )
            for _ in range(times)
        ]
        return {name: sum(result[name] for result in results) for name in ("bytes", "seconds")}

    return run


def _gigabytes(result: Mapping[str, Any]) -> float:
    return float(result["bytes"]) / GB


LOADS = (
    Load(
        "10 transactional producers",
        "transaction",
        lambda result: float(result["transactions"]),
        _transactions,
    ),
    Load("produce, batches of 16 KiB", "GB", _gigabytes, _throughput("produce", 16 * KIB, 100)),
    Load(
        "consume, batches of 16 KiB",
        "GB",
        _gigabytes,
        _throughput("consume", 16 * KIB, 100, CONSUMED_TIMES),
    ),
    Load("produce, batches of 1 MiB", "GB", _gigabytes, _throughput("produce", MIB, 400)),
    Load(
        "consume, batches of 1 MiB",
        "GB",
        _gigabytes,
        _throughput("consume", MIB, 400, CONSUMED_TIMES),
    ),
)


def compare(checkout: Path, pairs: int, folder: Path) -> Mapping[Load, list[list[Costs]]]:
    """The costs of each load, by pair: those of the checkout and those of this one."""
    found: dict[Load, list[list[Costs]]] = {load: [] for load in LOADS}
    for pair in range(pairs):
        # The order of the starts alternates.
        with _brokers((checkout, ROOT), folder / str(pair), reverse=pair % 2 == 1) as targets:
            for target in targets:
                target.create_topic("transactions", PARTITIONS)
                for batch_bytes in (16 * KIB, MIB):
                    target.create_topic(f"batches.{batch_bytes}", PARTITIONS)
            for load in LOADS:
                found[load].append(_both(load, targets))
    return found


@contextmanager
def _brokers(
    checkouts: tuple[Path, Path], folder: Path, *, reverse: bool
) -> Iterator[tuple[Target, ...]]:
    folder.mkdir(parents=True)
    with ExitStack() as stack:
        targets: dict[Path, Target] = {}
        with _on_cores({min(os.sched_getaffinity(0))}):
            for checkout in reversed(checkouts) if reverse else checkouts:
                broker = BrokerProcess.start(
                    "memory://beside",
                    folder / f"{len(targets)}.log",
                    environment={"PYTHONPATH": str(checkout), "PYTHONSAFEPATH": "1"},
                )
                stack.enter_context(broker)
                targets[checkout] = Target(checkout.name, broker.kafka, broker.process.pid, None)
        yield tuple(targets[checkout] for checkout in checkouts)


@contextmanager
def _on_cores(cores: Set[int]) -> Iterator[None]:
    """Processes that start meanwhile run on these cores."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def _both(load: Load, targets: tuple[Target, ...]) -> list[Costs]:
    """Run a load against both brokers at the same time."""
    cores = os.sched_getaffinity(0)
    with (
        _on_cores(cores - {min(cores)} or cores),
        ThreadPoolExecutor(len(targets)) as pool,
    ):
        before = [target.usage() for target in targets]
        results = list(pool.map(load.run, targets))
    costs = []
    for target, begun, result in zip(targets, before, results, strict=True):
        units = load.units(result)
        used = target.usage().since(begun)
        costs.append(Costs(used.cpu_seconds / units, units / result["seconds"]))
    return costs


def _ratios(pairs: list[list[Costs]], of: Callable[[Costs], float]) -> str:
    ratios = sorted(of(after) / of(before) for before, after in pairs)
    return f"{median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})"


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("commit")
    parser.add_argument("--pairs", type=int, default=12)
    arguments = parser.parse_args()
    archive = subprocess.run(
        ["git", "archive", arguments.commit], cwd=ROOT, capture_output=True, check=False
    )
    if archive.returncode:
        parser.error(f"{arguments.commit}: no commit of this clone: {archive.stderr.decode()}")
    with tempfile.TemporaryDirectory(prefix="tidelog-beside-") as folder:
        checkout = Path(folder, "before")
        with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as tar:
            tar.extractall(checkout, filter="data")
        print(f"| Load, beside {arguments.commit} | CPU a unit | unit | units a second |")
        print("|---|---|---|---|")
        for load, pairs in compare(checkout, arguments.pairs, Path(folder)).items():
            cpu = _ratios(pairs, lambda costs: costs.cpu_seconds)
            rate = _ratios(pairs, lambda costs: costs.units_a_second)
            print(f"| {load.name} | {cpu} | {load.unit} | {rate} |")


if __name__ == "__main__":
    main()
