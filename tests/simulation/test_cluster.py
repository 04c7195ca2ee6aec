"""The production broker under every fault that the simulation knows, seed after seed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.simulation import campaign
from tests.simulation.group_variants import GROUP_VARIANTS
from tests.simulation.nemesis import PROFILES, profile_of
from tests.simulation.run import Result, run
from tests.simulation.tidelog_system import tidelog_system
from tests.simulation.transaction_variants import TRANSACTION_VARIANTS
from tests.simulation.variants import LOG_VARIANTS, broken
from tests.simulation.workloads import WORKLOADS, workload_of

SEEDS = range(1, 25)
SECONDS = 20.0
BROKEN_SECONDS = 30.0
_ROOT = Path(__file__).resolve().parents[2]


def simulate(seed: int, seconds: float = SECONDS, workload: str = "") -> Result:
    """One seed against the production code."""
    return run(seed, seconds, tidelog_system(seed), workload=workload)


@pytest.mark.parametrize("seed", SEEDS)
def test_every_promise_is_kept(seed: int) -> None:
    result = simulate(seed)
    replay = f"python -m tests.simulation.campaign --seeds 1 --first {seed} --duration {SECONDS:g}"
    assert result.valid, f"{result.line()}\n{result.report}\nreplay: {replay}"


def test_a_seed_replays_to_the_byte_in_another_interpreter() -> None:
    """Also where hashes of strings, and addresses of objects, are others."""
    code = f"from tests.simulation.test_cluster import simulate; print(simulate({SEEDS[0]}).line())"
    lines = {
        subprocess.run(
            [sys.executable, "-c", code],
            cwd=_ROOT,
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for hash_seed in ("1", "2")
    }
    assert lines == {simulate(SEEDS[0]).line() + "\n"}


_SHOWN_BY = {
    "no-seal": "zombies",
    "no-lease": "zombies",
    "taken-is-mine": "zombies",
    "stale-commits": "mixed",
}
"""The profile of faults under which it shows soonest, if not by crashes alone."""


def caught_by(variant: str, workload: str, profile: str) -> int | None:
    """The first seed that notices what is broken."""
    seeds = [seed for seed in range(1, 100) if profile_of(seed) == profile][:15]
    with broken(variant):
        runs = ((seed, simulate(seed, BROKEN_SECONDS, workload)) for seed in seeds)
        return next((seed for seed, result in runs if not result.valid), None)


@pytest.mark.parametrize("variant", LOG_VARIANTS)
def test_a_broken_log_is_caught(variant: str) -> None:
    assert caught_by(variant, "log", _SHOWN_BY.get(variant, "crashes")) is not None


@pytest.mark.parametrize("variant", GROUP_VARIANTS)
def test_a_broken_group_coordinator_is_caught(variant: str) -> None:
    assert caught_by(variant, "groups", _SHOWN_BY.get(variant, "crashes")) is not None


@pytest.mark.parametrize("variant", TRANSACTION_VARIANTS)
def test_broken_transactions_are_caught(variant: str) -> None:
    assert caught_by(variant, "transactions", _SHOWN_BY.get(variant, "crashes")) is not None


def test_the_command_prints_what_happened_and_how_to_replay_a_violation(
    capsys: pytest.CaptureFixture[str],
) -> None:
    arguments = ["--seeds", "1", "--first", "1", "--duration", "20"]
    assert campaign.main(arguments) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("seed 1 ")
    assert "exit killed: " in printed
    assert "1 seeds of 20 virtual seconds: 0 violated" in printed
    assert campaign.main([*arguments, "--variant", "acknowledge-early"]) == 1
    printed = capsys.readouterr().out
    command = "replay: python -m tests.simulation.campaign --seeds 1 --first 1 --duration 20"
    assert f"{command} --variant acknowledge-early" in printed


def test_the_seeds_of_the_tests_meet_every_workload_under_every_profile() -> None:
    met = {(workload_of(seed), profile_of(seed)) for seed in SEEDS}
    assert met == {(workload, profile) for workload in WORKLOADS for profile in PROFILES}
