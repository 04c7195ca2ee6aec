"""The commands of DEPLOYMENT: run as they are written, or only checked if they need Docker,
Kubernetes or systemd.

The commands of compose's clients run beside Spark: tests/integration/test_deployment.py.
"""

from __future__ import annotations

import re
import shlex
import stat
from pathlib import Path

import pytest
import yaml

from tests.integration.page_reader import ROOT, Command, console, reader
from tests.unit.deploy.commands import served
from tests.wheels import copy_clone
from tidelog.localstack.ports import free_ports
from tidelog.localstack.s3_servers import start_moto

PAGE = "DEPLOYMENT.md"
COMPOSE, BUILD, RUN = "docker compose", "docker build", "docker run"
HELM_INSTALL, SYSTEMCTL = "helm install", "systemctl"
NOT_RUN = (COMPOSE, BUILD, RUN, HELM_INSTALL, SYSTEMCTL)
CLIENTS = ("tidelog topics", "tidelog consume", "echo", "export")
INSTALLATION = ("python3 -m venv", "cp", "mkdir", "printf")


def written(*starts: str) -> list[Command]:
    """The page's commands that begin with this text."""
    return [each for each in console(PAGE, {}) if each.line.startswith(starts)]


def words(start: str) -> list[str]:
    """The words of the page's only command with this beginning, without `left_out`."""
    [command] = written(start)
    return shlex.split(command.line)[len(start.split()) :]


def test_each_command_of_the_page_has_its_test_or_is_said_not_to_run() -> None:
    starts = (*NOT_RUN, *CLIENTS, *INSTALLATION)
    assert written(*starts) == console(PAGE, {})
    assert all(written(start) for start in starts)
    text = (ROOT / "docs" / PAGE).read_text()
    [said] = re.findall(r"^The commands with (.*?)\swere not run", text, re.M | re.S)
    assert re.findall(r"`([^`]+)`", said) == list(NOT_RUN)


def test_docker_finds_the_files_and_the_image_that_it_is_told() -> None:
    composed, *up = _named(words(COMPOSE), "-f")
    assert up == ["up", "--build"]
    services = yaml.safe_load((ROOT / composed).read_text())["services"]
    image, dockerfile, *context = _named(words(BUILD), "-t", "-f")
    assert context == ["."]
    assert services["bucket"]["build"]["dockerfile"] == dockerfile
    assert (ROOT / dockerfile).is_file()
    assert image in words(RUN)


def test_the_image_is_run_with_a_command_that_makes_a_broker() -> None:
    given, (image, *_) = words(RUN), _named(words(BUILD), "-t")
    place = given.index(image)
    temporary, published, store, region, *options = _named(
        given[:place], "--tmpfs", "-p", "-e", "-e"
    )
    assert (temporary, published, options) == ("/tmp", "9092:9092", ["--read-only"])
    assert [each.partition("=")[0] for each in (store, region)] == ["TIDELOG_STORE", "AWS_REGION"]
    command = given[place + 1 :]
    kafka, http = free_ports(2)
    moved = [
        re.sub(r"^(0\.0\.0\.0|broker\.example\.com):9092$", f"127.0.0.1:{kafka}", word).replace(
            "0.0.0.0:9093", f"127.0.0.1:{http}"
        )
        for word in command
    ]
    assert moved != command
    with served(["tidelog", *moved], {"TIDELOG_STORE": "memory://image"}) as facts:
        assert (facts["kafka"], facts["http"]) == (f"127.0.0.1:{kafka}", f"127.0.0.1:{http}")


def test_helm_is_told_values_that_the_chart_has() -> None:
    _, chart, *settings = words(HELM_INSTALL)
    values = yaml.safe_load((ROOT / chart / "values.yaml").read_text())
    assert settings[::2] == ["--set"] * (len(settings) // 2)
    for setting in settings[1::2]:
        found = values
        for name in setting.partition("=")[0].split("."):
            found = found[name]
        assert isinstance(found, str)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_commands_for_systemd_install_a_broker_that_serves(tmp_path: Path) -> None:
    kafka, http = free_ports(2)
    clone = copy_clone(tmp_path / "clone")
    units = tmp_path / "etc" / "systemd" / "system"
    units.mkdir(parents=True)
    places = {
        "/opt/tidelog": f"{tmp_path}/opt/tidelog",
        "/etc/": f"{tmp_path}/etc/",
        "0.0.0.0:9092": f"127.0.0.1:{kafka}",
        "broker.example.com:9092": f"127.0.0.1:{kafka}",
        "127.0.0.1:9093": f"127.0.0.1:{http}",
    }

    def moved(text: str) -> str:
        for before, after in places.items():
            text = text.replace(before, after)
        return text

    with start_moto(tmp_path / "s3") as server, reader(clone) as operator:
        server.create_bucket("my-bucket")
        for command in written(*INSTALLATION):
            operator.run(Command(moved(command.line), command.output))
        settings = tmp_path / "etc" / "tidelog"
        assert stat.S_IMODE(settings.stat().st_mode) == 0o700
        [enabled] = words(SYSTEMCTL)[2:]
        name, _, broker_id = enabled.partition("@")
        text = (units / f"{name}@.service").read_text().replace("%i", broker_id)
        variables: dict[str, str] = {}
        for path in re.findall(r"^EnvironmentFile=(.*)$", text, re.M):
            lines = Path(moved(path)).read_text().splitlines()
            variables |= dict(line.split("=", 1) for line in lines)
        assert variables["AWS_REGION"] == "eu-west-1"
        [start] = re.findall(r"^ExecStart=(.*)$", text, re.M)
        arguments = moved(start).replace("$TIDELOG_ARGUMENTS", variables["TIDELOG_ARGUMENTS"])
        with served(arguments.split(), {**server.environment, **variables}) as facts:
            assert facts["broker"] == broker_id
            assert facts["kafka"] == f"127.0.0.1:{kafka}"
        listed = server.client().list_objects_v2(Bucket="my-bucket", Prefix="prefix/")
        assert listed["KeyCount"] > 0


def _named(given: list[str], *options: str) -> list[str]:
    """The values of these options in this order, and then the other words."""
    rest = list(given)
    values = []
    for option in options:
        place = rest.index(option)
        values.append(rest[place + 1])
        del rest[place : place + 2]
    return [*values, *rest]
