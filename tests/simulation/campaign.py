"""Simulate many seeds: `python -m tests.simulation.campaign --seeds 200 --first 1 --duration 120`.

Prints a line a seed and a summary. A seed that breaks a promise is reported with the command that
replays it, and the exit code is 1. `--trace FILE` writes every event of the run.
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

from tests.simulation.run import Result, System, run
from tests.simulation.tidelog_system import tidelog_system
from tests.simulation.toy_system import toy_system
from tests.simulation.variants.variants import VARIANTS, broken
from tests.simulation.workloads import WORKLOADS

_SHOWN_COUNTS = (
    "values acknowledged",
    "values read",
    "send ok",
    "send unknown",
    "send fail",
    "markers",
    "repeated",
    "transaction",
    "identity",
    "join",
    "commit",
    "offsets",
    "trim",
    "view",
    "check",
    "retried",
    "exit",
    "fault",
    "store",
    "network",
    "moves",
    "partitions moved",
    "drains",
    "broker starts",
)
_TAIL_LINES = 25
_RUNS_A_PROCESS = 20
_SEGMENT_SEEDS = (0, 2)
"""Of five: those in which records go into tables, if nothing else is asked for. Five has nothing in
common with the numbers of profiles and workloads, so that all of them meet it."""


def simulate(
    seed: int,
    seconds: float,
    variant: str,
    toy: bool,
    trace: Path | None,
    workload: str,
    segments: bool,
    brokers: int,
) -> Result:
    """One seed, with the named breakage and workload if any."""
    system: System = (
        toy_system() if toy else tidelog_system(seed, segments=segments, brokers=brokers)
    )
    with ExitStack() as stack:
        if variant:
            stack.enter_context(broken(variant))
        sink = None
        if trace is not None:
            sink = stack.enter_context(trace.open("w")).write
        return run(seed, seconds, system, sink, workload)


def _simulate_one(
    arguments: tuple[int, float, str, bool, Path | None, str, bool, int],
) -> Result:
    return simulate(*arguments)


def results(arguments: argparse.Namespace) -> Iterator[Result]:
    """The runs, in the order of their seeds."""
    runs = [
        (
            seed,
            arguments.duration,
            arguments.variant,
            arguments.toy,
            arguments.trace,
            arguments.workload,
            has_segments(arguments, seed),
            arguments.brokers,
        )
        for seed in range(arguments.first, arguments.first + arguments.seeds)
    ]
    if arguments.jobs == 1:
        yield from map(_simulate_one, runs)
        return
    # A process keeps the memory of its greediest run: new ones now and then have none of it.
    pool_of = multiprocessing.get_context("spawn").Pool
    with pool_of(arguments.jobs, maxtasksperchild=_RUNS_A_PROCESS) as pool:
        yield from pool.imap(_simulate_one, runs)


def has_segments(arguments: argparse.Namespace, seed: int) -> bool:
    """Whether this seed rolls, compacts and deletes."""
    if arguments.segments == "some":
        return not arguments.toy and seed % 5 in _SEGMENT_SEEDS
    return bool(arguments.segments == "all")


def replay_command(arguments: argparse.Namespace, seed: int) -> str:
    """What runs this one seed again."""
    command = f"python -m tests.simulation.campaign --seeds 1 --first {seed}"
    command += f" --duration {arguments.duration:g}"
    if arguments.workload:
        command += f" --workload {arguments.workload}"
    if arguments.brokers != 1:
        command += f" --brokers {arguments.brokers}"
    if not arguments.toy:
        command += f" --segments {'all' if has_segments(arguments, seed) else 'none'}"
    if arguments.variant:
        command += f" --variant {arguments.variant}"
    return command + (" --toy" if arguments.toy else "")


def parse(argv: list[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.simulation.campaign", description=__doc__
    )
    parser.add_argument("--seeds", type=int, default=20, help="how many seeds (20)")
    parser.add_argument("--first", type=int, default=1, help="the first seed (1)")
    parser.add_argument(
        "--duration", type=float, default=60.0, help="virtual seconds of faults in each run (60)"
    )
    parser.add_argument(
        "--variant", default="", choices=["", *VARIANTS], help="break it on purpose"
    )
    parser.add_argument(
        "--workload", default="", choices=["", *WORKLOADS], help="the same one for all seeds"
    )
    parser.add_argument(
        "--segments",
        default="some",
        choices=["some", "all", "none"],
        help="in which runs records go into tables, topics lose some, objects are deleted, and"
        " the bucket is read beside the brokers (two of five)",
    )
    parser.add_argument(
        "--brokers", type=int, default=1, help="how many brokers serve the bucket (1)"
    )
    parser.add_argument("--jobs", type=int, default=1, help="worker processes (1)")
    parser.add_argument("--toy", action="store_true", help="try the harness on its toy log")
    parser.add_argument("--trace", type=Path, default=None, help="write the events to this file")
    arguments = parser.parse_args(argv)
    if arguments.trace is not None and arguments.seeds != 1:
        parser.error("--trace needs --seeds 1")
    return arguments


def main(argv: list[str] | None = None) -> int:
    """Run the campaign; the exit code."""
    arguments = parse(argv)
    began = time.perf_counter()
    totals: Counter[str] = Counter()
    errors: Counter[str] = Counter()
    failed: list[int] = []
    for result in results(arguments):
        print(result.line(), flush=True)
        totals += result.counts
        errors += result.errors
        if not result.valid:
            failed.append(result.seed)
            print(result.report)
            print("the last events:", *result.tail[-_TAIL_LINES:], sep="\n  ")
            print(f"replay: {replay_command(arguments, result.seed)}", flush=True)
    for name in sorted(totals):
        if name.startswith(_SHOWN_COUNTS):
            print(f"  {name}: {totals[name]}")
    for name, count in errors.most_common(20):
        print(f"  answered {count} times: {name}")
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    cpu = sum(usage.ru_utime + usage.ru_stime for usage in used)
    print(
        f"{arguments.seeds} seeds of {arguments.duration:g} virtual seconds:"
        f" {len(failed)} violated{f' ({failed})' if failed else ''};"
        f" {time.perf_counter() - began:.1f} s, {cpu:.1f} s of CPU,"
        f" {max(usage.ru_maxrss for usage in used) // 1024} MiB"
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
