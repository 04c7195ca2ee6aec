"""A process kills itself only at the crash point and the hit that a test names."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tidelog.crash_points import NO_CRASH_POINTS, CrashPoint
from tidelog.errors import InvalidConfiguration
from tidelog.localstack.broker_process import BrokerProcess
from tidelog.localstack.crash_points import CRASH_POINTS_VARIABLE, KillAtHit

TESTS = Path(__file__).parents[2]
PROGRAM = """
from tidelog.crash_points import CrashPoint
from tidelog.localstack.crash_points import KillAtHit

points = KillAtHit.parse("prepare durable:2, snapshot written:1")
for number in range(3):
    points.hit(CrashPoint.PREPARE_DURABLE)
    print(number, flush=True)
"""


def test_a_process_is_killed_at_the_hit_that_was_asked_for() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL
    assert done.stdout.split() == ["0"]


def test_a_broker_dies_at_its_crash_point(tmp_path: Path) -> None:
    store, log = f"file://{tmp_path / 'bucket'}", tmp_path / "log"
    (tmp_path / "bucket").mkdir()
    with BrokerProcess.start(store, log, crash_points="checkpoint written:1") as broker:
        assert broker.stop() == -signal.SIGKILL
    assert "kill itself on purpose at checkpoint written:1" in log.read_text()


def test_the_production_command_knows_no_crash_points(tmp_path: Path) -> None:
    store, log = f"file://{tmp_path / 'bucket'}", tmp_path / "log"
    (tmp_path / "bucket").mkdir()
    asked = {CRASH_POINTS_VARIABLE: "checkpoint written:1"}
    with BrokerProcess.start(store, log, environment=asked) as broker:
        assert broker.stop() == 0


def test_a_crash_point_has_no_effect_by_default() -> None:
    for point in CrashPoint:
        NO_CRASH_POINTS.hit(point)


@pytest.mark.parametrize("text", ["prepare durable", "prepare durable:x", "nowhere:1", ":1"])
def test_an_unknown_point_is_refused_with_a_list_of_the_known_points(text: str) -> None:
    with pytest.raises(InvalidConfiguration, match="prepare durable, between markers"):
        KillAtHit.parse(text)


def test_a_real_process_is_killed_at_each_point() -> None:
    """For each point there is a test in these folders that names it."""
    paths = [path for name in ("integration", "chaos") for path in TESTS.glob(f"{name}/test_*.py")]
    cases = "".join(path.read_text() for path in paths)
    for point in CrashPoint:
        assert f'"{point.value}' in cases or f"CrashPoint.{point.name}" in cases, point


def test_hits_are_counted_from_1() -> None:
    with pytest.raises(InvalidConfiguration, match="counted from 1"):
        KillAtHit.parse("snapshot written:0")
