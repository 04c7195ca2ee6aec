"""The production broker under every fault that the simulation knows, seed after seed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.simulation import campaign
from tests.simulation.nemesis import PROFILES, profile_of
from tests.simulation.run import Result, run
from tests.simulation.tidelog_system import tidelog_system
from tests.simulation.variants import VARIANTS, broken

SEEDS = range(1, 21)
SECONDS = 30.0
_ROOT = Path(__file__).resolve().parents[2]


def simulate(seed: int) -> Result:
    """One seed against the production code."""
    return run(seed, SECONDS, tidelog_system(seed))


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


_SHOWN_BY_ZOMBIES = frozenset({"no-seal", "no-lease", "taken-is-mine"})


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_broken_broker_is_caught(variant: str) -> None:
    profile = "zombies" if variant in _SHOWN_BY_ZOMBIES else "crashes"
    seeds = [seed for seed in range(1, 100) if profile_of(seed) == profile][:15]
    with broken(variant):
        caught = next((seed for seed in seeds if not simulate(seed).valid), None)
    assert caught is not None, f"{variant} was not noticed in the seeds {seeds}"


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


def test_the_seeds_of_the_tests_meet_every_profile() -> None:
    assert {profile_of(seed) for seed in SEEDS} == set(PROFILES)
