"""Every partition of three brokers, including those of coordinators, moves once a second. A
client's idempotent producer, its group consumer and its transactions see no error, and each record
once."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from tests.chaos_cluster.cluster import Cluster
from tests.moves.judge import Seen
from tests.moves.mover import Mover
from tests.moves.program import (
    FOLDER,
    Program,
    franz_go_program,
    kafkajs_program,
    python_program,
)
from tidelog.localstack.kafka import java_command, kafka_jars
from tidelog.localstack.kafkajs import kafkajs_folder

pytestmark = [pytest.mark.moves, pytest.mark.timeout(3600)]

SECONDS = float(os.environ.get("SECONDS", "20"))
SETTLE_SECONDS = 120.0
BROKERS = 3
PARTITIONS = 4
TOPICS = ("source", "target")
INTERNAL = ("__consumer_offsets", "__transaction_state")


CACHE = Path(__file__).parents[2] / ".cache"
CLIENTS = ("confluent", "java", "franz-go", "aiokafka", "kafka_python", "kafkajs")
GENTLE = ("kafkajs",)
"""Clients that need gentle moves. KafkaJS does not look for a group's coordinator again, and joins
its group again when a partition has moved. So its moves come to an end, and coordinators of groups
stay."""


@pytest.fixture
def command(request: pytest.FixtureRequest, require_tool: Callable[[str], str]) -> list[str]:
    """The command line of the client's program, without its arguments."""
    match request.param:
        case "java":
            require_tool("mvn")
            require_tool("java")
            return java_command(kafka_jars(CACHE), str(FOLDER / "JavaProgram.java"), [])
        case "franz-go":
            return franz_go_program(require_tool("go"), CACHE)
        case "kafkajs":
            require_tool("node")
            require_tool("npm")
            return kafkajs_program(kafkajs_folder(CACHE))
        case library:
            return python_program(library)


class Applications:
    """A client's producer, consumer and transactions, as programs of their own."""

    def __init__(self, command: list[str], bootstrap: str, folder: Path) -> None:
        self.seen = Seen()
        self._programs: dict[str, Program] = {}
        for role, arguments in (
            ("consume", ["readers", *TOPICS]),
            ("transform", ["transforms", *TOPICS]),
            ("produce", ["source", str(PARTITIONS)]),
        ):
            whole = [*command, role, bootstrap, *arguments]
            self._programs[role] = Program(whole, folder / role)

    def wait_until(self, holds: Callable[[Seen], bool], seconds: float, what: str) -> None:
        """Read the programs' lines until the condition holds, an error comes, or a program ends."""
        pause = threading.Event()
        deadline = time.monotonic() + seconds
        while not holds(self.seen) and not self.seen.errors:
            ended = [role for role, each in self._programs.items() if not each.is_running]
            for each in self._programs.values():
                self.seen.add(each.lines())
            if ended:
                return
            if time.monotonic() > deadline:
                self.seen.errors.append(f"not within {seconds:g} seconds: {what}")
            pause.wait(0.05)

    def end(self, role: str) -> None:
        """Let a program end."""
        self._programs.pop(role).end(self.seen)

    def end_all(self) -> None:
        """End the running programs, and wait for them."""
        for role in list(self._programs):
            self.end(role)

    def close(self) -> None:
        """Kill the running programs."""
        for each in self._programs.values():
            each.kill()


def all_arrived(seen: Seen) -> bool:
    return all(seen.got_count(topic) >= seen.sent_count for topic in TOPICS)


@pytest.mark.parametrize("command", CLIENTS, indirect=True)
def test_clients_see_no_error_while_partitions_move(
    command: list[str], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    is_gentle = request.node.callspec.params["command"] in GENTLE
    still = ("__consumer_offsets",) if is_gentle else ()
    store = f"file://{tmp_path / 'bucket'}"
    with (
        closing(Cluster(store, tmp_path, faults=(), count=BROKERS)) as cluster,
        ExitStack() as ending,
    ):
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        created = admin.create_topics([NewTopic(name, PARTITIONS) for name in TOPICS])
        for each in created.values():
            each.result(30)
        applications = Applications(command, cluster.bootstrap, tmp_path)
        ending.callback(applications.close)
        seen = applications.seen
        applications.wait_until(
            lambda seen: seen.counts["committed"] > 0 and seen.got_count("target") > 0,
            SETTLE_SECONDS,
            "the first transaction arrives",
        )
        mover = Mover(cluster.bootstrap, BROKERS, still)
        mover.start()
        try:
            ends_at = time.monotonic() + SECONDS
            applications.wait_until(
                lambda _: time.monotonic() >= ends_at, SECONDS + 1, "the time is over"
            )
            if is_gentle:
                mover.end()
            applications.end("produce")
            applications.wait_until(all_arrived, SETTLE_SECONDS, "all records arrive")
            applications.end_all()
        finally:
            mover.end()
        faults = seen.faults(TOPICS)
        print(
            f"\n{SECONDS:g} s, {mover.rounds} rounds, moves {dict(mover.moves)},"
            f" refused {dict(mover.refusals)}; lines {dict(seen.counts)}; faults {len(faults)}"
        )
        assert faults == [], cluster.logs()
        assert all(mover.moves[topic] > 0 for topic in {*TOPICS, *INTERNAL} - {*still})
        assert seen.counts["committed"] > 0
        assert seen.counts["aborted"] > 0
