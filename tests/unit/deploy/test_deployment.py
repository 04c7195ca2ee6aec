"""The deployment's files, without containers: their commands run, systemd accepts the unit."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.unit.deploy.commands import DEPLOY, ROOT, composed_cluster, served
from tidelog.broker.settings.loading import load_settings
from tidelog.broker.settings.settings import BROKER_TABLE
from tidelog.sdk.consumer import Consumer
from tidelog.sdk.producer import Producer

UNIT = DEPLOY / "systemd" / "tidelog@.service"


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    return loaded


def test_containers_have_no_rights_and_nothing_to_write_to(compose: dict[str, Any]) -> None:
    services = compose["services"]
    brokers = [each for name, each in services.items() if name.startswith("broker")]
    assert len(brokers) == 3
    assert not any("volumes" in broker for broker in brokers)
    for service in (*brokers, services["spark"]):
        assert service["read_only"] is True
        assert service["cap_drop"] == ["ALL"]
    assert re.fullmatch(r"minio/minio:RELEASE\.\S+", compose["services"]["minio"]["image"])
    for folder in (DEPLOY, DEPLOY / "spark"):
        dockerfile = (folder / "Dockerfile").read_text()
        assert dockerfile.count("\nFROM ") == 2
        assert re.search(r"^USER \d+:\d+$", dockerfile, re.M)
        # The base has a pip, and so has the environment that the first stage makes.
        for stage in dockerfile.split("\nFROM ")[1:]:
            assert "pip uninstall --yes pip" in stage


def test_compose_builds_each_image_once_and_pulls_none_of_them(compose: dict[str, Any]) -> None:
    """Compose builds services side by side: two of one image end with "already exists"."""
    services = compose["services"].values()
    built = [each["image"] for each in services if "build" in each]
    assert sorted(built) == ["tidelog-spark:0.1.0", "tidelog:0.1.0"]
    for each in services:
        if each["image"] in built and "build" not in each:
            assert each["pull_policy"] == "never"


def test_the_program_of_the_spark_image_is_readable_whatever_the_clones_modes_are() -> None:
    """A clone that was made with umask 077 gives its files to their owner alone."""
    dockerfile = (DEPLOY / "spark" / "Dockerfile").read_text()
    final = dockerfile.split("\nFROM ")[-1]
    from_clone = re.findall(r"^COPY (?!--from)(.*)$", final, re.M)
    assert [line.split()[0] for line in from_clone] == ["--chmod=755"]


def test_every_service_of_compose_that_fails_starts_again(compose: dict[str, Any]) -> None:
    policies = {name: each.get("restart") for name, each in compose["services"].items()}
    assert set(policies.values()) == {"on-failure"}, policies


def test_spark_of_compose_needs_no_name_of_the_host(compose: dict[str, Any]) -> None:
    """In the host's network a container has the host's name; Spark ends if nothing resolves it."""
    spark = compose["services"]["spark"]
    assert spark["network_mode"] == "host"
    assert spark["environment"]["SPARK_LOCAL_IP"] == "127.0.0.1"


def test_the_commands_of_compose_make_a_cluster(compose: dict[str, Any], tmp_path: Path) -> None:
    with composed_cluster(compose["services"], tmp_path) as cluster:
        with Producer(cluster.bootstrap) as producer:
            producer.send("topic", "a")
        with Consumer(cluster.bootstrap, "topic", auto_offset_reset="earliest") as consumer:
            assert [message.value for message in consumer.to_end()] == [b"a"]
    for number, http in enumerate(("9093", "9193", "9293")):
        broker = compose["services"][f"broker-{number}"]
        assert broker["environment"]["TIDELOG_HEALTH"] == f"http://127.0.0.1:{http}/readyz"
        assert f"127.0.0.1:{http}" in broker["command"]


def test_the_units_command_runs_a_broker() -> None:
    [line] = re.findall(r"^ExecStart=/opt/tidelog/bin/(.*)$", UNIT.read_text(), re.M)
    arguments = "--listen 127.0.0.1:0 --http 127.0.0.1:0"
    command = line.replace("%i", "7").replace("$TIDELOG_ARGUMENTS", arguments).split()
    added = {"TIDELOG_STORE": "memory://unit", "TIDELOG_ARGUMENTS": arguments}
    with served(command, added) as facts:
        assert facts["broker"] == "7"


def test_a_unit_outlives_its_worker_process_without_memory() -> None:
    """By default systemd stops a unit of which the kernel has killed any process."""
    assert "OOMPolicy=continue" in UNIT.read_text().split()


def test_a_broker_takes_no_variable_of_the_deployment_or_of_the_commands_for_a_setting() -> None:
    files = [path for path in DEPLOY.rglob("*") if path.is_file()]
    files += (ROOT / "tidelog" / "cli").rglob("*.py")
    text = "".join(path.read_text(encoding="utf-8") for path in files)
    variables = set(re.findall(r"\bTIDELOG_[A-Z_]+", text))
    assert {"TIDELOG_HEALTH", "TIDELOG_ARGUMENTS", "TIDELOG_LOG_LEVEL"} <= variables
    settings = {"TIDELOG_" + name.upper().replace(".", "_") for name in BROKER_TABLE}
    load_settings(environment=dict.fromkeys(variables - settings, "x"))


def test_brokers_have_the_grace_that_their_end_needs(compose: dict[str, Any]) -> None:
    """Snapshots, giving partitions away and requests have the timeout each; 60 s for the store."""
    timeout_ms = load_settings(environment={}).integer("shutdown.timeout.ms")
    seconds = 60 + 3 * timeout_ms // 1000
    assert compose["services"]["broker-0"]["stop_grace_period"] == f"{seconds}s"
    assert f"TimeoutStopSec={seconds}" in UNIT.read_text().split()


def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    program = shutil.which("systemd-analyze")
    if program is None:
        pytest.skip("without systemd-analyze")
    # systemd-analyze looks for the program of ExecStart.
    unit = tmp_path / UNIT.name
    unit.write_text(UNIT.read_text().replace("/opt/tidelog/bin/tidelog", sys.executable))
    done = subprocess.run(
        [program, "verify", "--man=no", unit], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
