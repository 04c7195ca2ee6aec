"""Simulate many seeds: `python -m tests.simulation.campaign --seeds 200 --first 1 --duration 120`.

Prints a line for each seed, and a summary: counts, and the faults, crash points and table rows that
were met. For a seed that breaks a promise it prints the command that replays the seed and, if there
is one, the command of a shorter run with fewer faults. The exit code is then 1. `--results FILE`
keeps each finished seed, so that an interrupted campaign goes on. `--trace FILE` writes every event
of a run.
"""

from __future__ import annotations

import argparse
import gc
import multiprocessing
import resource
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from tests.simulation.campaign_file import CampaignFile, SeedResult
from tests.simulation.coverage import coverage_lines
from tests.simulation.crowd.nemesis import CROWD_PROFILE
from tests.simulation.crowd.system import CROWD
from tests.simulation.nemesis import profiles_of
from tests.simulation.seeds import SeedOptions, simulate, smaller
from tests.simulation.variants.variants import VARIANTS
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
    "brokers",
    "fences",
    "levels",
    "quotas",
    "states compared",
    "quiet",
    "seconds to rest",
)
_TAIL_LINES = 25
_RUNS_A_PROCESS = 20
_SEGMENT_SEEDS = (0, 2)
"""Of five seeds, those whose records go into tables, unless an option says otherwise. Five shares
no factor with the numbers of profiles and workloads, so all of these meet such seeds."""


def _simulate_one(arguments: tuple[SeedOptions, Path | None]) -> SeedResult:
    # The loop of a run freezes what it finds, so the cycles of the run before would stay for ever.
    gc.collect()
    return SeedResult.of(simulate(*arguments))


def results(arguments: argparse.Namespace) -> Iterator[tuple[SeedOptions, SeedResult]]:
    """The runs, in the order of their seeds. Seeds in the file are not run again."""
    file = None if arguments.results is None else CampaignFile(arguments.results)
    seeds = range(arguments.first, arguments.first + arguments.seeds)
    all_options = [options_of(arguments, seed) for seed in seeds]
    if file is not None:
        for options in all_options:
            found = file.find(options)
            if found is not None:
                yield options, found
        all_options = [each for each in all_options if file.find(each) is None]
    for options, result in zip(all_options, _run(arguments, all_options), strict=True):
        if file is not None:
            file.add(options, result)
        yield options, result


def _run(arguments: argparse.Namespace, options: list[SeedOptions]) -> Iterator[SeedResult]:
    runs = [(each, arguments.trace) for each in options]
    if arguments.jobs == 1:
        yield from map(_simulate_one, runs)
        return
    # A process keeps the memory of its largest run. New processes give it back now and then.
    pool_of = multiprocessing.get_context("spawn").Pool
    with pool_of(arguments.jobs, maxtasksperchild=_RUNS_A_PROCESS) as pool:
        yield from pool.imap(_simulate_one, runs)


def options_of(arguments: argparse.Namespace, seed: int) -> SeedOptions:
    """The options of one seed."""
    return SeedOptions(
        seed,
        arguments.duration,
        arguments.variant,
        arguments.toy,
        arguments.workload,
        has_segments(arguments, seed),
        arguments.brokers,
        tuple(each for each in arguments.without.split(",") if each),
    )


def has_segments(arguments: argparse.Namespace, seed: int) -> bool:
    """Whether this seed rolls, compacts and deletes."""
    if arguments.segments == "some":
        return not arguments.toy and seed % 5 in _SEGMENT_SEEDS
    return bool(arguments.segments == "all")


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
        "--workload",
        default="",
        choices=["", *WORKLOADS, CROWD],
        help="the same one for all seeds; `crowd`: many brokers around the metadata log",
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
    parser.add_argument(
        "--without", default="", help="faults that do nothing when their turn comes, by commas"
    )
    parser.add_argument(
        "--results",
        type=Path,
        default=None,
        help="write each finished seed to this file, and run only those that it lacks",
    )
    parser.add_argument(
        "--no-minimise",
        action="store_true",
        help="look for no shorter run with fewer faults behind a violation",
    )
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
    for options, result in results(arguments):
        print(result.line, flush=True)
        totals += result.counts
        errors += result.errors
        if not result.valid:
            failed.append(result.seed)
            _report(options, result, is_minimised=not arguments.no_minimise)
    for name in sorted(totals):
        if name.startswith(_SHOWN_COUNTS):
            print(f"  {name}: {totals[name]}")
    for name, count in errors.most_common(20):
        print(f"  answered {count} times: {name}")
    for line in coverage_lines(totals, _faults(arguments)):
        print(line)
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    cpu = sum(usage.ru_utime + usage.ru_stime for usage in used)
    print(
        f"{arguments.seeds} seeds of {arguments.duration:g} virtual seconds:"
        f" {len(failed)} violated{f' ({failed})' if failed else ''};"
        f" {time.perf_counter() - began:.1f} s, {cpu:.1f} s of CPU,"
        f" {max(usage.ru_maxrss for usage in used) // 1024} MiB"
    )
    return 1 if failed else 0


def _report(options: SeedOptions, result: SeedResult, *, is_minimised: bool) -> None:
    print(result.report)
    print("the last events:", *result.tail[-_TAIL_LINES:], sep="\n  ")
    print(f"replay: {options.command()}", flush=True)
    if not is_minimised:
        return
    faults = (name.removeprefix("fault ") for name in result.counts if name.startswith("fault "))
    least = smaller(options, faults, lambda each: not simulate(each).valid)
    if least != options:
        print(f"smaller: {least.command()}", flush=True)


def _faults(arguments: argparse.Namespace) -> dict[str, int]:
    """The faults of all profiles that the seeds may have."""
    profiles = profiles_of(arguments.brokers)
    if arguments.workload == CROWD:
        profiles = {CROWD: CROWD_PROFILE}
    return {name: 1 for profile in profiles.values() for name in profile.weights}


if __name__ == "__main__":
    sys.exit(main())
