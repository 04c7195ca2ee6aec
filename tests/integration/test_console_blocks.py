"""The commands of OPERATIONS and SECURITY, run as they are written, on a local S3 server.

Hosts, ports and folders of the pages are replaced by those of this machine. ELSEWHERE lists
commands that need more, with the reason.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.integration.page_reader import Command, Reader, console, reader
from tidelog.localstack.ports import free_ports
from tidelog.localstack.s3_servers import start_seaweedfs

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

REPAIR = "tidelog bucket repair"
ELSEWHERE = {
    REPAIR: "needs a damaged bucket; a test of its own below makes one",
    "kafka-configs.sh": "a tool of Apache Kafka; make compat runs it",
    "aws iam": "needs an account at AWS",
    "tidelog server --store 's3://my-bucket/prefix?sse=c": (
        "needs a store with SSE-C; tests/unit/storage/stores/s3/test_encryption.py has one"
    ),
}
"""By the beginning of a command: why it does not run here, and the test that runs it."""


BEFORE_CLIENTS = ("tidelog bucket", "tidelog server")


def excuse(command: Command) -> str | None:
    """The entry of ELSEWHERE with which the command begins."""
    return next((start for start in ELSEWHERE if command.line.startswith(start)), None)


def follow(operator: Reader, written: Iterable[Command]) -> None:
    """Run all commands without an excuse. Those that make buckets come first, since pages name the
    buckets later."""
    for command in sorted(written, key=lambda each: "bucket create" not in each.line):
        if excuse(command) is None:
            operator.run(shown(command))


def shown(command: Command) -> Command:
    """The command with `…` in its output for values of a run: ids, times, counts."""
    # With an endpoint from the environment a URL is shown with its options.
    varying = r"(?<=/prefix)(?=:)|(?<=cluster=)\S+|(?<=broker=)\d+|(?<=offset )\d+|(?<=: )\S*\d\S*$"
    return command._replace(output=[re.sub(varying, "…", each) for each in command.output])


@contextmanager
def bucket_of_a_reader(folder: Path, **variables: str) -> Iterator[Reader]:
    """A reader whose `s3://` is a server of this machine."""
    with ExitStack() as stack:
        server = stack.enter_context(start_seaweedfs(folder / "s3"))
        for bucket in ("lake", "lake-b"):
            server.create_bucket(bucket)
        place = folder / "reader"
        place.mkdir()
        yield stack.enter_context(reader(place, **server.environment, **variables))


def test_the_commands_of_operations(tmp_path: Path) -> None:
    kafka, http = free_ports(2)
    replaced = {
        "0.0.0.0:9092": f"127.0.0.1:{kafka}",
        "broker.example.com:9092": f"127.0.0.1:{kafka}",
        "0.0.0.0:9093": f"127.0.0.1:{http}",
        "broker:9092": f"127.0.0.1:{kafka}",
        "broker:9093": f"127.0.0.1:{http}",
        # Brokers listen on the next free port.
        "$ tidelog server --store s3://my-bucket/prefix\n": (
            "$ tidelog server --store s3://my-bucket/prefix --listen 127.0.0.1:0\n"
        ),
    }
    written = console("OPERATIONS.md", replaced)
    with bucket_of_a_reader(tmp_path, TIDELOG_BOOTSTRAP=f"127.0.0.1:{kafka}") as operator:
        user = "'SCRAM-SHA-512=[name=admin,password=secret]'"
        operator.run(Command(f"tidelog bucket create s3://lake/prod --add-scram {user}", []))
        first = [each for each in written if each.line.startswith(BEFORE_CLIENTS)]
        follow(operator, first)
        assert len(operator.brokers) == 3
        operator.run(Command("tidelog topics create flights --partitions 1", []))
        operator.run(Command("echo 'EWR to IAH' | tidelog produce flights", []))
        follow(operator, [each for each in written if each not in first])


def test_the_commands_of_a_repair(tmp_path: Path) -> None:
    (kafka,) = free_ports(1)
    written = [each for each in console("OPERATIONS.md", {}) if each.line.startswith(REPAIR)]
    [shown_key] = {each.line.split()[-1] for each in written if "--accept-loss" in each.line}
    with start_seaweedfs(tmp_path / "s3") as server:
        server.create_bucket("lake")
        objects = server.client()

        def wal() -> set[str]:
            listed = objects.list_objects_v2(Bucket="lake", Prefix="prod/wal/")
            return {each["Key"] for each in listed.get("Contents", [])}

        variables = {**server.environment, "TIDELOG_BOOTSTRAP": f"127.0.0.1:{kafka}"}
        with reader(tmp_path, **variables) as operator:
            serving = f"tidelog server --store s3://lake/prod --listen 127.0.0.1:{kafka}"
            operator.run(Command(serving, []))
            operator.run(Command("tidelog topics create flights --partitions 1", []))
            slots = []
            for value in "abc":
                before = wal()
                operator.run(Command(f"echo {value} | tidelog produce flights", []))
                slots.append(sorted(wal() - before))
            operator.end()
            # The key of the slot of "b", which lies between the others.
            [key] = slots[1]
            objects.delete_object(Bucket="lake", Key=key)
            lost = key.removeprefix("prod/")
            survey, accepting = (
                Command(
                    each.line.replace(shown_key, lost),
                    [re.sub(r"\d+", "…", line) for line in each.output],
                )
                for each in written
            )
            # The survey exits with 4, since there are losses.
            operator.run(survey._replace(line=f"{survey.line}; test $? -eq 4"))
            operator.run(accepting)


def test_the_commands_of_security(tmp_path: Path) -> None:
    (kafka,) = free_ports(1)
    (tmp_path / "etc").mkdir()
    written = console("SECURITY.md", {"/etc/tidelog/bucket.key": f"{tmp_path}/etc/bucket.key"})
    variables = {"TIDELOG_BOOTSTRAP": f"127.0.0.1:{kafka}", "ADMIN_PASSWORD": "of the operator"}
    with bucket_of_a_reader(tmp_path, **variables) as operator:
        operator.run(
            Command(
                f"tidelog server --store memory://rules --listen 127.0.0.1:{kafka}"
                " --set authorizer.class.name=acl --set super.users=User:ANONYMOUS",
                [],
            )
        )
        follow(operator, written)


def test_every_excuse_has_its_command_in_the_pages() -> None:
    """Each excuse belongs to a command of a page."""
    written = [*console("OPERATIONS.md", {}), *console("SECURITY.md", {})]
    assert {excuse(each) for each in written} - {None} == set(ELSEWHERE)
    assert len(written) > 20
