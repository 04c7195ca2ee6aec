"""The harness judges correctly: a correct log passes, and each broken one is caught."""

from __future__ import annotations

import pytest

from tests.simulation.run import run
from tests.simulation.toy_log import ToyFaults
from tests.simulation.toy_system import toy_system

_SECONDS = 30.0


def test_a_log_that_is_right_passes_and_meets_every_kind_of_fault() -> None:
    counts: dict[str, int] = {}
    for seed in range(8):
        result = run(seed, _SECONDS, toy_system())
        assert result.valid, f"{result.line()}\n{result.report}"
        for name, count in result.counts.items():
            counts[name] = counts.get(name, 0) + count
    needed = (
        "exit killed",
        "store reply lost",
        "store request lost",
        "store delayed",
        "store repeated",
        "store refused",
        "connections broken",
        "send unknown",
        "retried",
    )
    assert all(counts[name] > 0 for name in needed), counts


def test_a_seed_replays_to_the_byte() -> None:
    first, second = (run(3, _SECONDS, toy_system()) for _ in range(2))
    assert first.line() == second.line()
    assert first.tail == second.tail


@pytest.mark.parametrize(
    ("faults", "names"),
    [
        (ToyFaults(acknowledge_early=True), {"unseen", "lost-write", "inconsistent-offsets"}),
        (ToyFaults(no_dedupe=True), {"duplicate", "sequence-twice", "sequence-hole"}),
        (ToyFaults(stale_reads=True), {"stale-watermark"}),
    ],
    ids=["acknowledged early", "no deduplication", "stale reads"],
)
def test_a_broken_log_is_caught(faults: ToyFaults, names: set[str]) -> None:
    for seed in range(30):
        found = run(seed, _SECONDS, toy_system(faults)).report.names()
        if found:
            assert found & names, found
            return
    pytest.fail(f"{faults} was not noticed")
