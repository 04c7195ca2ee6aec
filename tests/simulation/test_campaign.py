"""A campaign keeps its finished seeds, goes on behind them, and makes a failing run smaller."""

from __future__ import annotations

import gc
import json
from collections import Counter
from pathlib import Path

import pytest

from tests.simulation import campaign
from tests.simulation.campaign_file import CampaignFile, SeedResult
from tests.simulation.coverage import all_points, all_rows, coverage_lines
from tests.simulation.run import Result, run
from tests.simulation.seeds import RUNS_MAX, SeedOptions, simulate, smaller
from tests.simulation.tidelog_system import tidelog_system
from tests.simulation.world.loop import SimulatedLoop

SECONDS = "3"
FAILED = SeedOptions(7, 80.0)


def finished(seed: int) -> SeedResult:
    return SeedResult(seed, f"seed {seed}", "", (), Counter(kills=seed), Counter())


def test_a_campaign_goes_on_behind_the_seeds_that_its_file_has(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "seeds.jsonl"
    arguments = ["--duration", SECONDS, "--results", str(file)]
    assert campaign.main([*arguments, "--seeds", "1"]) == 0
    (first,) = file.read_text().splitlines()
    ran: list[int] = []

    def noted(options: SeedOptions, trace: Path | None = None) -> Result:
        ran.append(options.seed)
        return simulate(options, trace)

    monkeypatch.setattr(campaign, "simulate", noted)
    capsys.readouterr()
    assert campaign.main([*arguments, "--seeds", "2"]) == 0
    printed = capsys.readouterr().out
    assert ran == [2]
    assert [line.split()[1] for line in printed.splitlines() if line.startswith("seed ")] == [
        "1",
        "2",
    ]
    assert file.read_text().splitlines()[0] == first
    assert [json.loads(line)["seed"] for line in file.read_text().splitlines()] == [1, 2]


def test_one_process_does_not_keep_the_runs_before(monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[int] = []

    def noted(options: SeedOptions, trace: Path | None = None) -> Result:
        kept.append(sum(isinstance(each, SimulatedLoop) for each in gc.get_objects()))
        return simulate(options, trace)

    monkeypatch.setattr(campaign, "simulate", noted)
    gc.collect()
    assert campaign.main(["--duration", "1", "--seeds", "4", "--toy"]) == 0
    assert kept == [kept[0]] * 4


def test_a_seed_with_other_options_is_another_run(tmp_path: Path) -> None:
    path = tmp_path / "seeds.jsonl"
    CampaignFile(path).add(SeedOptions(1, 60.0), finished(1))
    found = CampaignFile(path)
    assert found.find(SeedOptions(1, 60.0)) == finished(1)
    assert found.find(SeedOptions(1, 60.0, brokers=3)) is None
    assert found.find(SeedOptions(2, 60.0)) is None


def test_a_line_that_was_cut_off_is_run_again(tmp_path: Path) -> None:
    path = tmp_path / "seeds.jsonl"
    CampaignFile(path).add(SeedOptions(1, 60.0), finished(1))
    with path.open("a") as file:
        file.write('{"seed": 2, "opt')
    found = CampaignFile(path)
    found.add(SeedOptions(3, 60.0), finished(3))
    assert [json.loads(line)["seed"] for line in path.read_text().splitlines()] == [1, 3]


def test_a_failure_is_made_shorter_and_loses_the_faults_that_it_does_not_need() -> None:
    def fails(options: SeedOptions) -> bool:
        return options.seconds >= 20 and "kill" not in options.without

    least = smaller(FAILED, ["kill", "pause", "stop"], fails)
    assert (least.seconds, least.without) == (20, ("pause", "stop"))
    assert "--duration 20" in least.command()
    assert "--without pause,stop" in least.command()


def test_a_failure_that_needs_everything_stays_and_the_search_has_an_end() -> None:
    tried: list[SeedOptions] = []

    def fails(options: SeedOptions) -> bool:
        tried.append(options)
        return False

    assert smaller(FAILED, map(str, range(100)), fails) == FAILED
    assert len(tried) == RUNS_MAX


def test_a_fault_that_is_left_out_does_nothing() -> None:
    whole = run(1, 10.0, tidelog_system(1)).counts
    met = next(name for name in whole if name.startswith("fault "))
    without = (met.removeprefix("fault "),)
    assert run(1, 10.0, tidelog_system(1), without=without).counts[met] == 0


def test_the_summary_names_faults_and_points_that_were_not_met() -> None:
    counts = Counter([*all_points()[1:], *all_rows(), "fault kill"])
    faults, points, rows = coverage_lines(counts, {"kill": 1, "pause": 1})
    assert faults == "faults: 1 of 2 met; not pause"
    assert points.endswith(f"met; not {all_points()[0].removeprefix('point ')}")
    assert rows == f"table rows: {len(all_rows())} of {len(all_rows())} met"


def test_runs_count_crash_points_and_rows_of_tables() -> None:
    counts = run(4, 10.0, tidelog_system(4), workload="groups").counts
    for name in (
        "point slot upload",
        "row record: BrokerRegistered",
        "row group: EMPTY > PREPARING_REBALANCE",
    ):
        assert counts[name] > 0, name
    assert {name for name in counts if name.startswith("row ")} <= set(all_rows())
