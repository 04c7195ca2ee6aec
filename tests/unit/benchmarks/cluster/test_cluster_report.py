"""The report on given measurements of clusters."""

from __future__ import annotations

import pytest

from benchmarks.broker.throughput import Measured
from benchmarks.cluster.brokers import ClusterTarget
from benchmarks.cluster.costs import Costs, Idle
from benchmarks.cluster.failover import Failover
from benchmarks.cluster.moving import PUT_MS, Moving
from benchmarks.cluster.sharing import Sharing
from benchmarks.cluster.traffic import percentiles
from benchmarks.harness.targets import Target, Usage
from benchmarks.report import Results, tables


def rows_of(document: str) -> dict[str, list[str]]:
    """The cells behind the first cell of each row."""
    rows = [line.strip("|").split("|") for line in document.splitlines() if line.startswith("| ")]
    return {first.strip(): [cell.strip() for cell in rest] for first, *rest in rows}


def measured(rate: float, cpu_seconds: float) -> Measured:
    return Measured(rate, cpu_seconds, 0.1, 300.0, 250.0, 10.0, 1.0)


def test_percentiles_of_unordered_values() -> None:
    found = percentiles([float(value) for value in range(200, 0, -1)])

    assert found == {"p50": 101.0, "p99": 199.0, "largest": 200.0, "count": 200}


def test_a_row_of_a_failover_has_each_measurement() -> None:
    row = Failover("kafka", "kill -9", 1000, 10_000, 0.5, 0.9, 1.25, 333)

    cells = rows_of(tables(Results("make bench", failovers=[row])))["Kafka"]

    assert cells == ["kill -9", "1000, 10000", "333", "0.50", "0.90", "1.25"]


def test_opening_is_the_start_less_that_of_an_empty_broker() -> None:
    found = Sharing(10_000, 0.5, 3.0, 1000, 2.5)

    rows = rows_of(tables(Results("make bench", sharing=found)))

    assert rows["the difference: opening them"] == ["10000", "2.50"]
    assert rows["start of a third broker to 90% of its fair share"] == ["1000", "2.50"]


def test_a_hand_over_and_a_commit_are_counted_in_puts() -> None:
    commits = [{"commit_p50_ms": factor * PUT_MS} for factor in (1.0, 2.5)]
    found = Moving(100, 0.1 * PUT_MS, 2.0 * PUT_MS, 3.0 * PUT_MS, *commits)

    document = tables(Results("make bench", moving=found))

    rows = rows_of(document)
    assert rows["a hand-over, p99"] == [f"{3 * PUT_MS}", "3.00"]
    assert rows["commit, another broker leads it, p50"][1] == "2.50"
    assert "Commit apart to commit together: 2.50." in document


def test_the_cpu_of_several_brokers_is_set_against_one_brokers_cpu() -> None:
    ours = {
        count: [{"produce": measured(rate, 1.0 + 0.1 * count), "consume": measured(500.0, 1.0)}]
        for count, rate in ((1, 300.0), (2, 290.0), (3, 280.0))
    }
    peer = [{"produce": measured(100.0, 5.5), "consume": measured(500.0, 0.5)}]
    idle = Idle({"put": 1800.0, "get": 3600.0}, 7.5, 120.0, 0.01)

    rows = rows_of(tables(Results("make bench", costs=Costs(ours, peer), idle=idle)))

    assert rows["Tidelog, 3"][:3] == ["280", "1.30", "1.18"]
    assert rows["Kafka, 3, three replicas"][:3] == ["100", "5.50", "5.00"]
    assert rows["5400"] == ["1800 put, 3600 get", "7.50", "120", "0.0100"]


def test_the_usage_of_a_cluster_is_the_sum_of_its_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    used = {1: Usage(1.0, 0.5, 10, 1, 100, 10), 2: Usage(2.0, 0.25, 20, 2, 200, 20)}
    monkeypatch.setattr(Target, "usage", lambda target: used[target.pid])
    members = [Target(str(pid), "127.0.0.1:1", pid, None) for pid in used]

    cluster = ClusterTarget("tidelog", "127.0.0.1:1", 1, None, members=members)

    assert cluster.usage() == Usage(3.0, 0.75, 30, 3, 300, 30)
