"""Runs the commands of the deployment's files outside of containers."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tidelog.localstack.ports import free_ports
from tidelog.localstack.s3_servers import start_moto

ROOT = Path(__file__).resolve().parents[3]
DEPLOY = ROOT / "deploy"


def environment_of(added: Mapping[str, str]) -> dict[str, str]:
    """This process's variables and others, with the command `tidelog` on the path."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "PATH": path, **added}


@contextmanager
def served(command: Sequence[str], added: Mapping[str, str]) -> Iterator[dict[str, str]]:
    """The facts of the ready line of a broker that a command starts."""
    process = subprocess.Popen(
        list(command), env=environment_of(added), stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("ready "), f"{command} did not become ready: {line!r}"
        yield dict(word.split("=", 1) for word in line.split()[1:])
    finally:
        process.terminate()
        process.wait(60)
        assert process.stdout is not None
        process.stdout.close()


@dataclass(frozen=True, slots=True)
class ComposedCluster:
    """The brokers of compose.yaml, on another S3 server and on other ports."""

    bootstrap: str
    environment: Mapping[str, str]
    """The variables of the services, for this cluster."""
    ports: Mapping[str, str]
    """The ports of this cluster among the file's."""

    def moved(self, text: str) -> str:
        """A text of the file with this cluster's ports."""
        return _moved(text, self.ports)


@contextmanager
def composed_cluster(services: Mapping[str, Any], folder: Path) -> Iterator[ComposedCluster]:
    """The cluster that the commands of compose.yaml start, outside of containers."""
    brokers = [services[f"broker-{number}"] for number in range(3)]
    words = [word for broker in brokers for word in broker["command"]]
    known = re.findall(r"127\.0\.0\.1:(\d+)", " ".join(words))
    ports = dict(zip(known, map(str, free_ports(len(known))), strict=True))
    with start_moto(folder) as server, ExitStack() as stack:
        stores = {
            **services["bucket"]["environment"],
            "AWS_ENDPOINT_URL_S3": server.endpoint,
            "AWS_ACCESS_KEY_ID": server.access_key,
            "AWS_SECRET_ACCESS_KEY": server.secret_key,
            "TIDELOG_HEALTH": brokers[0]["environment"]["TIDELOG_HEALTH"],
        }
        subprocess.run(
            ["tidelog", *services["bucket"]["command"]], env=environment_of(stores), check=True
        )
        addresses = []
        for broker in brokers:
            command = ["tidelog", *(_moved(word, ports) for word in broker["command"])]
            addresses.append(stack.enter_context(served(command, stores))["kafka"])
        yield ComposedCluster(",".join(addresses), stores, ports)


def _moved(text: str, ports: Mapping[str, str]) -> str:
    return re.sub(r"127\.0\.0\.1:(\d+)", lambda found: f"127.0.0.1:{ports[found[1]]}", text)
