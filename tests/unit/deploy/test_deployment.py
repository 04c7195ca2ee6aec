"""The deployment's files, without containers: their commands run, systemd accepts the unit."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.unit.deploy.commands import DEPLOY, ROOT, environment_of, served
from tidelog.broker.settings.loading import load_settings
from tidelog.broker.settings.settings import BROKER_TABLE
from tidelog.localstack.ports import free_ports
from tidelog.localstack.s3_servers import start_moto
from tidelog.sdk.consumer import Consumer
from tidelog.sdk.producer import Producer

UNIT = DEPLOY / "systemd" / "tidelog@.service"


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    return loaded


def test_containers_have_no_rights_and_nothing_to_write_to(compose: dict[str, Any]) -> None:
    brokers = [each for name, each in compose["services"].items() if name.startswith("broker")]
    assert len(brokers) == 3
    for broker in brokers:
        assert broker["read_only"] is True
        assert broker["cap_drop"] == ["ALL"]
        assert "volumes" not in broker
    assert re.fullmatch(r"minio/minio:RELEASE\.\S+", compose["services"]["minio"]["image"])
    dockerfile = (DEPLOY / "Dockerfile").read_text()
    assert dockerfile.count("\nFROM ") == 2
    assert re.search(r"^USER \d+:\d+$", dockerfile, re.M)


def test_the_commands_of_compose_make_a_cluster(compose: dict[str, Any], tmp_path: Path) -> None:
    services = compose["services"]
    brokers = [services[f"broker-{number}"] for number in range(3)]
    words = [word for broker in brokers for word in broker["command"]]
    known = re.findall(r"127\.0\.0\.1:(\d+)", " ".join(words))
    ports = dict(zip(known, map(str, free_ports(len(known))), strict=True))

    def moved(text: str) -> str:
        return re.sub(r"127\.0\.0\.1:(\d+)", lambda found: f"127.0.0.1:{ports[found[1]]}", text)

    with start_moto(tmp_path) as server, ExitStack() as stack:
        given = services["bucket"]["environment"]
        stores = {
            **given,
            "AWS_ENDPOINT_URL_S3": server.endpoint,
            "AWS_ACCESS_KEY_ID": server.access_key,
            "AWS_SECRET_ACCESS_KEY": server.secret_key,
            "TIDELOG_HEALTH": brokers[0]["environment"]["TIDELOG_HEALTH"],
        }
        subprocess.run(
            ["tidelog", *services["bucket"]["command"]], env=environment_of(stores), check=True
        )
        addresses = [
            stack.enter_context(served(["tidelog", *map(moved, broker["command"])], stores))[
                "kafka"
            ]
            for broker in brokers
        ]
        bootstrap = ",".join(addresses)
        with Producer(bootstrap) as producer:
            producer.send("topic", "a")
        with Consumer(bootstrap, "topic", auto_offset_reset="earliest") as consumer:
            assert [message.value for message in consumer.to_end()] == [b"a"]
        for broker, http in zip(brokers, ("9093", "9193", "9293"), strict=True):
            assert broker["environment"]["TIDELOG_HEALTH"] == f"http://127.0.0.1:{http}/healthz"
            assert f"127.0.0.1:{http}" in broker["command"]


def test_the_units_command_runs_a_broker() -> None:
    [line] = re.findall(r"^ExecStart=/opt/tidelog/bin/(.*)$", UNIT.read_text(), re.M)
    arguments = "--listen 127.0.0.1:0 --http 127.0.0.1:0"
    command = line.replace("%i", "7").replace("$TIDELOG_ARGUMENTS", arguments).split()
    added = {"TIDELOG_STORE": "memory://unit", "TIDELOG_ARGUMENTS": arguments}
    with served(command, added) as facts:
        assert facts["broker"] == "7"


def test_a_broker_takes_no_variable_of_the_deployment_or_of_the_commands_for_a_setting() -> None:
    files = [path for path in DEPLOY.rglob("*") if path.is_file()]
    files += (ROOT / "tidelog" / "cli").rglob("*.py")
    text = "".join(path.read_text(encoding="utf-8") for path in files)
    variables = set(re.findall(r"\bTIDELOG_[A-Z_]+", text))
    assert {"TIDELOG_HEALTH", "TIDELOG_ARGUMENTS", "TIDELOG_LOG_LEVEL"} <= variables
    settings = {"TIDELOG_" + name.upper().replace(".", "_") for name in BROKER_TABLE}
    load_settings(environment=dict.fromkeys(variables - settings, "x"))


def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    program = shutil.which("systemd-analyze")
    if program is None:
        pytest.skip("without systemd-analyze")
    # It looks for the program of ExecStart.
    unit = tmp_path / UNIT.name
    unit.write_text(UNIT.read_text().replace("/opt/tidelog/bin/tidelog", sys.executable))
    done = subprocess.run(
        [program, "verify", "--man=no", unit], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
