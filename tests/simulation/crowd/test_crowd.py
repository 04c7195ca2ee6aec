"""Many production brokers around one metadata log, under faults, joins, leaves and upgrades."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.simulation.crowd.system import BROKERS, CROWD, crowd_system
from tests.simulation.run import Result, run
from tests.simulation.world.patches import Breakage, Patch, patched
from tidelog.broker.ownership import balancer
from tidelog.coordinator.cluster.log.snapshots import Snapshots
from tidelog.coordinator.cluster.membership import lease_watch
from tidelog.coordinator.cluster.state.state import ClusterState

FEW = 6
MANY = 24
SEED, SECONDS = 7, 15.0


def simulate(brokers: int, seed: int = SEED, seconds: float = SECONDS) -> Result:
    return run(seed, seconds, crowd_system(seed, brokers), workload=CROWD)


def replay(brokers: int, seed: int, seconds: float) -> str:
    return (
        f"python -m tests.simulation.campaign --workload {CROWD} --brokers {brokers} --seeds 1"
        f" --first {seed} --duration {seconds:g}"
    )


def check(result: Result, brokers: int, seed: int, seconds: float) -> None:
    text = f"{result.line()}\n{result.report}\nreplay: {replay(brokers, seed, seconds)}"
    assert result.valid, text
    counts = result.counts
    for name in ("states compared", "fences", "levels raised", "brokers upgraded"):
        assert counts[name] > 0, name


def test_brokers_agree_serve_alone_and_come_to_rest() -> None:
    check(simulate(FEW), FEW, SEED, SECONDS)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_hundred_brokers_agree_serve_alone_and_come_to_rest() -> None:
    check(simulate(BROKERS), BROKERS, SEED, SECONDS)


def _forget_a_part() -> list[Patch]:
    """A broker that starts from a snapshot lacks the quotas."""
    right = Snapshots.newest

    async def newest(self: Snapshots) -> ClusterState | None:
        state = await right(self)
        return None if state is None else replace(state, quotas={})

    return [(Snapshots, "newest", newest)]


def _keep_all() -> list[Patch]:
    """No entry and no snapshot of the metadata log is ever deleted."""

    async def collect(*_: object) -> int:
        return 0

    return [(Snapshots, "collect", collect)]


def _never_balance() -> list[Patch]:
    """Brokers give no partitions to each other, even far above their shares."""
    return [(balancer, "plan_moves", lambda *_: {})]


def _watch_all() -> list[Patch]:
    """At each heartbeat a broker reads the leases of all others, and not only of the next three."""
    return [(lease_watch, "WATCHED_BROKERS", BROKERS)]


BREAKAGES: dict[str, tuple[Breakage, str, int, int]] = {
    "forget a part": (_forget_a_part, "differ in", FEW, 6),
    "keep all entries": (_keep_all, "must be deleted", FEW, 1),
    "never balance": (_never_balance, "too many", FEW, 1),
    "watch all": (_watch_all, "are enough", MANY, 1),
}
"""Each breakage, with the words of its violation, and a number of brokers and a seed that show
it."""
SEEDS_MAX = 20


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", BREAKAGES)
def test_a_broken_rule_is_caught(name: str) -> None:
    breakage, words, brokers, first = BREAKAGES[name]
    with patched(breakage()):
        seeds = range(first, first + SEEDS_MAX)
        reports = (str(simulate(brokers, seed, 2 * SECONDS).report) for seed in seeds)
        assert any(words in report for report in reports)
