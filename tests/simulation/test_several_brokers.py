"""A cluster of production brokers on one bucket, under every fault that the simulation knows."""

from __future__ import annotations

from itertools import count, islice

import pytest

from tests.simulation.nemesis import CLUSTER_PROFILES, PROFILES, profile_of
from tests.simulation.run import Result, run
from tests.simulation.test_cluster import variants
from tests.simulation.tidelog_system import tidelog_system
from tests.simulation.variants.cluster_variants import CLUSTER_VARIANTS
from tests.simulation.variants.handover_variants import HANDOVER_VARIANTS
from tests.simulation.variants.membership_variants import MEMBERSHIP_VARIANTS
from tests.simulation.variants.variants import broken
from tests.simulation.workloads import WORKLOADS, workload_of
from tests.simulation.world.interpreters import printed

BROKERS = 3
SEEDS = (49, 4, 7, 10)
"""Every profile of faults, and every workload."""
SECONDS = 12.0
VARIANT_SECONDS = 20.0
SEGMENT_SECONDS = 35.0


def simulate(
    seed: int, workload: str = "", seconds: float = SECONDS, *, segments: bool = False
) -> Result:
    """Simulate one seed of the production code."""
    system = tidelog_system(seed, segments=segments, brokers=BROKERS)
    return run(seed, seconds, system, workload=workload)


def replay(seed: int, seconds: float, segments: str) -> str:
    return (
        f"python -m tests.simulation.campaign --brokers {BROKERS} --segments {segments} --seeds 1"
        f" --first {seed} --duration {seconds:g}"
    )


@pytest.mark.parametrize("seed", SEEDS)
def test_every_promise_is_kept_by_several_brokers(seed: int) -> None:
    result = simulate(seed)
    text = f"{result.line()}\n{result.report}\nreplay: {replay(seed, SECONDS, 'none')}"
    assert result.valid, text
    assert result.counts["partitions moved"] > 0


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("seed", range(1, 13))
def test_every_promise_is_kept_while_tables_grow(seed: int) -> None:
    result = simulate(seed, seconds=SEGMENT_SECONDS, segments=True)
    text = f"{result.line()}\n{result.report}\nreplay: {replay(seed, SEGMENT_SECONDS, 'all')}"
    assert result.valid, text


def test_a_seed_of_a_cluster_replays_to_the_byte_in_another_interpreter() -> None:
    """This holds even if hashes of strings differ: brokers send markers to several leaders in
    order."""
    code = (
        "from tests.simulation.test_several_brokers import SEEDS, simulate;"
        "print(simulate(SEEDS[-1]).line())"
    )
    lines = printed(code, "1", "2")
    assert workload_of(SEEDS[-1]) == "transactions"
    assert len(lines) == 1


def test_the_seeds_meet_every_workload_under_every_profile() -> None:
    assert len(CLUSTER_PROFILES) == len(PROFILES)
    assert {workload_of(seed) for seed in SEEDS} == set(WORKLOADS)
    assert {profile_of(seed, BROKERS) for seed in SEEDS} == set(CLUSTER_PROFILES)


_SHOWN_BY = {
    "accept-while-giving": 5,
    "serve-what-was-given": 3,
    "read-what-was-given": 2,
    "resume-undecided": 3,
    "remote-markers-first": 101,
    "remote-markers-assumed": 2,
    "refused-markers-settle": 2,
    "drained-gets-partitions": 7,
    "reassign-before-seal": 12,
    "additions-when-appended": 8,
    "markers-without-ordinal": 3,
    "open-left-out": 18,
    "fence-unread": 10,
    "judge-across-outage": 7,
    "newer-records-early": 3,
    "hints-needed": 3,
    "opens-with-old-table": 3,
    "any-commit": 103,
    "enlisted-by-name": 58,
}
"""By variant, the seed that shows it, if not the first one."""
_SEARCHED_MAX = 60
_QUICK = {
    "accept-while-giving",
    "serve-what-was-given",
    "remote-markers-assumed",
    "newer-records-early",
}
_SECONDS = {
    "judge-across-outage": 45.0,
    "enlisted-by-name": 60.0,
    "collector-blind": SEGMENT_SECONDS,
    "opens-with-old-table": SEGMENT_SECONDS,
    "any-commit": SEGMENT_SECONDS,
}
"""The duration of variants that need time: for an outage longer than a session, for a topic that is
created again while two brokers do not know it, or for a deletion."""
_OF_SEGMENTS = {"collector-blind", "opens-with-old-table", "any-commit"}
_WORKLOADS = {
    "markers-without-ordinal": "transactions",
    "open-left-out": "transactions",
    "enlisted-by-name": "transactions",
    "hints-needed": "groups",
    "collector-blind": "transactions",
    "remote-markers-first": "transactions",
    "remote-markers-assumed": "transactions",
    "refused-markers-settle": "transactions",
    "fence-unread": "log",
    "additions-when-appended": "transactions",
    "serves-before-replay": "transactions",
}


def _shows(result: Result) -> bool:
    """Whether a promise was broken. A crash does not count: the variant itself may crash the
    broker, and later violations may follow from that."""
    return not result.valid and "a broker crashed" not in str(result.report)


def caught_by(variant: str) -> int | None:
    """The first seed whose run notices the variant."""
    seeds = islice(count(_SHOWN_BY.get(variant, 1)), _SEARCHED_MAX)
    workload = _WORKLOADS.get(variant, "log")
    seconds, segments = _SECONDS.get(variant, VARIANT_SECONDS), variant in _OF_SEGMENTS
    with broken(variant):
        return next(
            (
                seed
                for seed in seeds
                if _shows(simulate(seed, workload, seconds, segments=segments))
            ),
            None,
        )


_VARIANTS = (*CLUSTER_VARIANTS, *HANDOVER_VARIANTS, *MEMBERSHIP_VARIANTS, "fence-unread")


@pytest.mark.parametrize("variant", variants(_VARIANTS, _QUICK))
def test_a_broken_cluster_is_caught(variant: str) -> None:
    assert caught_by(variant) is not None
