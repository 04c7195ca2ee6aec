"""One seed of a campaign: its options, the command that repeats it, and a smaller run that
fails."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from tests.simulation.crowd.system import CROWD, crowd_system
from tests.simulation.run import Result, System, run
from tests.simulation.tidelog_system import tidelog_system
from tests.simulation.toy_system import toy_system
from tests.simulation.variants.variants import broken

SHORTER = (1 / 8, 1 / 4, 1 / 2)
"""The parts of a failing run's time that the search tries, in turn."""
RUNS_MAX = 24
"""The number of runs that the search for a smaller failure may make."""


@dataclass(frozen=True, slots=True)
class SeedOptions:
    """The options that determine a run, together with the code."""

    seed: int
    seconds: float
    variant: str = ""
    toy: bool = False
    workload: str = ""
    segments: bool = False
    brokers: int = 1
    without: tuple[str, ...] = ()
    """Faults that are skipped when their turn comes."""

    def command(self) -> str:
        """The command that repeats the run."""
        command = f"python -m tests.simulation.campaign --seeds 1 --first {self.seed}"
        command += f" --duration {self.seconds:g}"
        if self.workload:
            command += f" --workload {self.workload}"
        if self.brokers != 1:
            command += f" --brokers {self.brokers}"
        if not self.toy:
            command += f" --segments {'all' if self.segments else 'none'}"
        if self.variant:
            command += f" --variant {self.variant}"
        if self.without:
            command += f" --without {shlex.quote(','.join(self.without))}"
        return command + (" --toy" if self.toy else "")

    def described(self) -> dict[str, Any]:
        """The options without the seed, as JSON."""
        named = asdict(self) | {"without": list(self.without)}
        del named["seed"]
        return named


def simulate(options: SeedOptions, trace: Path | None = None) -> Result:
    """Run one seed. `trace`: a file for all events."""
    with ExitStack() as stack:
        if options.variant:
            stack.enter_context(broken(options.variant))
        sink = None
        if trace is not None:
            sink = stack.enter_context(trace.open("w")).write
        return run(
            options.seed,
            options.seconds,
            _system(options),
            sink,
            options.workload,
            without=options.without,
        )


def _system(options: SeedOptions) -> System:
    if options.toy:
        return toy_system()
    if options.workload == CROWD:
        return crowd_system(options.seed, options.brokers)
    return tidelog_system(options.seed, segments=options.segments, brokers=options.brokers)


def smaller(
    failed: SeedOptions, faults: Iterable[str], fails: Callable[[SeedOptions], bool]
) -> SeedOptions:
    """A shorter run with fewer kinds of faults that fails too, or the same run.

    `faults`: the faults that the failing run has met. `fails`: runs a seed, and tells whether it
    fails.
    """
    found, runs = failed, 0
    for part in SHORTER:
        shorter = replace(failed, seconds=round(failed.seconds * part, 3))
        runs += 1
        if fails(shorter):
            found = shorter
            break
    for fault in faults:
        if runs >= RUNS_MAX:
            break
        fewer = replace(found, without=(*found.without, fault))
        runs += 1
        if fails(fewer):
            found = fewer
    return found
