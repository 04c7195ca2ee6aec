"""The production broker under every fault that the simulation knows, seed after seed."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable
from itertools import count, islice

import pytest

from tests.simulation import campaign
from tests.simulation.nemesis import PROFILES, profile_of
from tests.simulation.run import Result, run
from tests.simulation.tidelog_system import tidelog_system
from tests.simulation.variants.group_variants import GROUP_VARIANTS
from tests.simulation.variants.segment_variants import SEGMENT_VARIANTS
from tests.simulation.variants.transaction_variants import TRANSACTION_VARIANTS
from tests.simulation.variants.variants import LOG_VARIANTS, VARIANTS, broken
from tests.simulation.workloads import WORKLOADS, workload_of
from tests.simulation.world.interpreters import printed

SEEDS = range(1, 13)
SECONDS = 20.0
SEGMENT_SEEDS = (1, 6, 8, 11)
"""Every profile of faults, and every workload."""
SEGMENT_SECONDS = 35.0
"""The collectors need time to delete superfluous objects."""


def simulate(seed: int, workload: str = "") -> Result:
    """Simulate one seed of the production code."""
    return run(seed, SECONDS, tidelog_system(seed), workload=workload)


def simulate_segments(seed: int, workload: str = "", seconds: float = SEGMENT_SECONDS) -> Result:
    """The same, while records move into tables and are deleted from these later."""
    return run(seed, seconds, tidelog_system(seed, segments=True), workload=workload)


@pytest.mark.parametrize("seed", SEEDS)
def test_every_promise_is_kept(seed: int) -> None:
    result = simulate(seed)
    replay = f"python -m tests.simulation.campaign --seeds 1 --first {seed} --duration {SECONDS:g}"
    assert result.valid, f"{result.line()}\n{result.report}\nreplay: {replay}"


@pytest.mark.parametrize("seed", SEGMENT_SEEDS)
def test_every_promise_is_kept_while_things_are_rolled_compacted_and_deleted(seed: int) -> None:
    result = simulate_segments(seed)
    replay = "python -m tests.simulation.campaign --segments all --seeds 1"
    replay += f" --first {seed} --duration {SEGMENT_SECONDS:g}"
    assert result.valid, f"{result.line()}\n{result.report}\nreplay: {replay}"
    needed = (
        "view ok",
        "check ok",
        "store deleted of wal/",
        "store deleted of checkpoint/",
        "store deleted of topics/",
    )
    assert all(result.counts[name] > 0 for name in needed), result.counts


def test_a_seed_replays_to_the_byte_in_another_interpreter() -> None:
    """This holds even if hashes of strings and addresses of objects differ."""
    code = (
        "from tests.simulation.test_cluster import simulate_segments as simulate;"
        f"print(simulate({SEEDS[0]}, seconds={SECONDS}).line())"
    )
    lines = printed(code, "1", "2")
    assert lines == {simulate_segments(SEEDS[0], seconds=SECONDS).line() + "\n"}


_SHOWN_BY = {
    "duplicates-at-once": 15,
    "acknowledge-out-of-order": 5,
    "no-seal": 10,
    "replay-skips-slots": 5,
    "taken-is-mine": 10,
    "unknown-is-lost": 8,
    "no-lease": 6,
    "fence-unread": 18,
    "place-for-partition": 17,
    "stale-commits": 7,
    "answers-before-durable": 37,
    "offsets-forgotten": 9,
    "snapshot-ahead": 13,
    "generation-restarts": 9,
    "given-while-had": 6,
    "markers-first": 3,
    "unstable-offsets-shown": 6,
    "stale-admission-raises": 10,
    "replies-before-durable": 4,
    "retention-past-stable": 28,
    "stable-below-start": 3,
    "tombstones-at-once": 2,
    "views-once": 3,
}
"""By variant, the seed that shows it soonest, if not the first. After a change of the code another
seed with the same profile of faults may show it, and the search finds that one."""
_SEARCHED_MAX = 100
_SEARCH_SECONDS_MAX = 1200
_QUICK = {
    "no-dedupe",
    "acknowledge-early",
    "no-seal",
    "checkpoint-too-new",
    "watermark-ahead",
    "no-lease",
    "requests-overtake",
    "fence-unread",
    "place-for-partition",
    "stale-commits",
    "answers-before-durable",
    "same-for-all",
    "given-while-had",
    "stable-offset-ahead",
    "markers-first",
    "no-transactional-dedupe",
    "promoted-on-abort",
    "stale-admission-raises",
    "retention-at-once",
    "hole-in-the-log",
    "older-kept",
    "undecided-shown",
}
"""Variants that every run tries: at least one for each kind of rule."""


def caught_by(
    variant: str, workload: str, simulated: Callable[[int, str], Result] = simulate
) -> int | None:
    """The first seed whose run notices the variant."""
    first = _SHOWN_BY.get(variant, 1)
    step = 1 if simulated is simulate_segments else len(PROFILES)
    seeds = islice(count(first, step), _SEARCHED_MAX)
    with broken(variant):
        return next((seed for seed in seeds if not simulated(seed, workload).valid), None)


def variants(names: Iterable[str], quick: Container[str] = _QUICK) -> list[object]:
    """Parameters of a test; most of them are slow."""
    slow = (pytest.mark.slow, pytest.mark.timeout(_SEARCH_SECONDS_MAX))
    return [pytest.param(name, marks=() if name in quick else slow) for name in names]


@pytest.mark.parametrize("variant", variants(LOG_VARIANTS))
def test_a_broken_log_is_caught(variant: str) -> None:
    assert caught_by(variant, "log") is not None


@pytest.mark.parametrize("variant", variants(GROUP_VARIANTS))
def test_a_broken_group_coordinator_is_caught(variant: str) -> None:
    assert caught_by(variant, "groups") is not None


@pytest.mark.parametrize("variant", variants(TRANSACTION_VARIANTS))
def test_broken_transactions_are_caught(variant: str) -> None:
    assert caught_by(variant, "transactions") is not None


_OF_TRANSACTIONS = {
    "retention-past-stable",
    "stable-below-start",
    "undecided-shown",
    "sink-blind",
}
"""Variants that only transactions can show."""


@pytest.mark.parametrize("variant", variants(SEGMENT_VARIANTS))
def test_broken_tables_views_and_sinks_are_caught(variant: str) -> None:
    workload = "transactions" if variant in _OF_TRANSACTIONS else "log"
    assert caught_by(variant, workload, simulate_segments) is not None


def test_the_command_prints_each_run_and_how_to_replay_a_violation(
    capsys: pytest.CaptureFixture[str],
) -> None:
    arguments = ["--seeds", "1", "--first", "1", "--duration", "20"]
    assert campaign.main(arguments) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("seed 1 ")
    assert "exit killed: " in printed
    assert "1 seeds of 20 virtual seconds: 0 violated" in printed
    assert campaign.main([*arguments, "--variant", "acknowledge-early", "--no-minimise"]) == 1
    printed = capsys.readouterr().out
    command = "replay: python -m tests.simulation.campaign --seeds 1 --first 1 --duration 20"
    assert f"{command} --segments none --variant acknowledge-early" in printed


def test_the_seeds_of_the_tests_meet_every_workload_under_every_profile() -> None:
    met = {(workload_of(seed), profile_of(seed)) for seed in SEEDS}
    assert met == {(workload, profile) for workload in WORKLOADS for profile in PROFILES}
    assert {workload_of(seed) for seed in SEGMENT_SEEDS} == set(WORKLOADS)
    assert {profile_of(seed) for seed in SEGMENT_SEEDS} == set(PROFILES)


def test_the_variants_that_are_tried_each_time_exist() -> None:
    assert set(VARIANTS) >= _QUICK
