"""`tidelog groups` as a user types it: output, lag, exit codes, wrong input."""

from __future__ import annotations

import asyncio
import io
import json
import sys
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, NamedTuple
from uuid import uuid4

import pytest

from tidelog.cli.broker_client import with_client
from tidelog.cli.root import run
from tidelog.client.errors import ReadRefused, RequestFailed, RequestOutcome
from tidelog.client.groups.admin import Place, commit_offsets
from tidelog.client.pool import Client, CoordinatorKind
from tidelog.client.transactions.sink import PROGRESS
from tidelog.localstack.broker_process import BrokerProcess
from tidelog.protocol.error_codes import ErrorCode
from tidelog.protocol.schemas.groups import (
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    LeaveGroupMember,
    LeaveGroupRequest,
)


class Result(NamedTuple):
    """The result of a command."""

    code: int
    out: str
    err: str


Command = Callable[..., Result]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    folder = tmp_path_factory.mktemp("cli")
    (folder / "bucket").mkdir()
    settings = {"group.initial.rebalance.delay.ms": 0}
    url = f"file://{folder / 'bucket'}"
    with BrokerProcess.start(url, folder / "log", settings=settings) as process:
        yield process


@pytest.fixture
def command(
    broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Command:
    """Runs `tidelog groups ...` in this process."""
    monkeypatch.setenv("TIDELOG_BOOTSTRAP", broker.kafka)

    def invoke(*arguments: str) -> Result:
        monkeypatch.setattr(sys, "argv", ["tidelog", *arguments])
        try:
            run()
            code = 0
        except SystemExit as exit_:
            code = int(exit_.code or 0)
        return Result(code, *capsys.readouterr())

    return invoke


def use(broker: BrokerProcess, story: Callable[[Client], Awaitable[Any]]) -> Any:
    host, _, port = broker.kafka.rpartition(":")
    return with_client(((host, int(port)),), story)


def make_topic(command: Command, topic: str, records: int, monkeypatch: pytest.MonkeyPatch) -> None:
    assert command("topics", "create", topic, "--partitions", "1").code == 0
    lines = "".join(f"{number}\n" for number in range(records)).encode()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(lines)))
    assert command("produce", topic).code == 0


def test_a_groups_offsets_are_shown_with_lag_moved_and_deleted(
    broker: BrokerProcess, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_topic(command, "life", 10, monkeypatch)
    use(broker, lambda client: commit_offsets(client, "g", {Place("life", 0): 4}))
    listed = [line.split() for line in command("groups", "list").out.splitlines()]
    assert listed[0] == ["GROUP", "STATE"]
    assert ["g", "Empty"] in listed
    described = command("groups", "describe", "g")
    assert described.out.splitlines() == [
        "group g  state Empty  members 0",
        "  life partition 0  committed 4  end 10  lag 6",
    ]
    planned = command("groups", "reset-offsets", "g", "--topic", "life", "--to", "end", "--dry-run")
    assert planned.out == "would set life partition 0 of group g to 10\n"
    found = json.loads(command("groups", "describe", "g", "--json").out)
    assert found["offsets"][0] == {
        "topic": "life",
        "partition": 0,
        "committed": 4,
        "end": 10,
        "lag": 6,
    }
    for to, offset in (("beginning", 0), ("7", 7), ("@0", 0), ("end", 10)):
        reset = command("groups", "reset-offsets", "g", "--topic", "life", "--to", to, "--json")
        assert json.loads(reset.out)["offsets"][0]["offset"] == offset
    assert json.loads(command("groups", "describe", "g", "--json").out)["offsets"][0]["lag"] == 0
    assert command("groups", "delete", "g").out == "deleted group g\n"
    gone = command("groups", "delete", "g")
    assert gone.code == 1
    assert "GROUP_ID_NOT_FOUND" in gone.err
    assert command("groups", "describe", "g").code == 1


def test_offsets_that_a_partition_does_not_hold_are_refused(
    broker: BrokerProcess, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A consumer there would start at its auto.offset.reset, and perhaps pass over all records."""
    make_topic(command, "short", 3, monkeypatch)
    reset = ("groups", "reset-offsets", "beyond", "--topic", "short", "--to")
    for options in ((), ("--dry-run",)):
        refused = command(*reset, "4", *options)
        assert (refused.code, refused.out) == (1, "")
        assert "short-0 has the offsets 0 to 3, not 4" in refused.err
    assert command("groups", "describe", "beyond").code == 1
    assert command(*reset, "3").out == "set short partition 0 of group beyond to 3\n"
    none = command(*reset, "3", "--partition", "1", "--dry-run")
    assert (none.code, none.out) == (1, "")
    for word in (f"{2**63}", f"@{2**63}", "\N{SUPERSCRIPT TWO}", "@\N{SUPERSCRIPT TWO}"):
        wrong = command(*reset, word)
        assert wrong.code == 2
        assert "is not beginning, end, an offset or @MILLISECONDS" in wrong.err
    assert command("groups", "delete", "beyond").code == 0


def test_the_number_of_a_sinks_batch_has_no_lag(broker: BrokerProcess, command: Command) -> None:
    use(broker, lambda client: commit_offsets(client, "sink", {PROGRESS: 2}))
    shown = command("groups", "describe", "sink").out.splitlines()
    assert shown[1:] == ["  __consumer_offsets partition 0  committed 2  end -  lag -"]


def test_a_group_with_members_is_shown_and_left_alone(
    broker: BrokerProcess, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_topic(command, "used", 1, monkeypatch)

    async def join(client: Client) -> str:
        request = JoinGroupRequest(
            group_id="busy",
            session_timeout_ms=60_000,
            rebalance_timeout_ms=60_000,
            group_instance_id="one",
            protocol_type="consumer",
            protocols=[JoinGroupRequestProtocol(name="range", metadata=b"")],
        )
        kind = CoordinatorKind.GROUP
        async with asyncio.timeout(30):
            joined = await client.request_to_coordinator(kind, "busy", request)
        assert joined.error_code == 0
        return joined.member_id

    member_id = use(broker, join)
    listed = json.loads(command("groups", "list", "--json").out)
    assert {"group": "busy", "state": "CompletingRebalance", "protocol_type": "consumer"} in listed
    described = command("groups", "describe", "busy").out
    assert f"member {member_id}" in described
    assert "instance one" in described
    refused = command("groups", "reset-offsets", "busy", "--topic", "used", "--to", "0")
    assert refused.code == 1
    assert "busy has 1 members" in refused.err
    for name in ("idle1", "idle2"):
        command("groups", "reset-offsets", name, "--topic", "used", "--to", "0")
    deleted = command("groups", "delete", "idle1", "busy", "none", "idle2", "idle1")
    assert (deleted.code, deleted.out) == (1, "deleted group idle1\ndeleted group idle2\n")
    assert "NON_EMPTY_GROUP" in deleted.err
    assert "GROUP_ID_NOT_FOUND" in deleted.err

    async def leave(client: Client) -> None:
        request = LeaveGroupRequest(
            group_id="busy", members=[LeaveGroupMember(member_id="", group_instance_id="one")]
        )
        await client.request_to_coordinator(CoordinatorKind.GROUP, "busy", request)

    use(broker, leave)
    assert command("groups", "delete", "busy", "--json").out == '{"deleted": ["busy"]}\n'


def test_wrong_words_and_absent_brokers(command: Command) -> None:
    assert command("groups", "reset-offsets", "g", "--to", "0").code == 2
    assert command("groups", "reset-offsets", "g", "--topic", "t", "--to", "soon").code == 2
    assert command("groups", "delete").code == 2
    missing = command("groups", "reset-offsets", "g", "--topic", "none", "--to", "0")
    assert missing.code == 1
    assert "UNKNOWN_TOPIC_OR_PARTITION" in missing.err
    assert command("groups", "list", "--bootstrap", "127.0.0.1:1").code == 3


@pytest.mark.parametrize(
    "failure",
    [
        ReadRefused("topic", ErrorCode.LEADER_NOT_AVAILABLE),
        RequestFailed("connecting", "127.0.0.1:1", RequestOutcome.NOT_APPLIED, "refused"),
    ],
    ids=["no-leader", "dead-leader"],
)
@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        (["groups", "describe", "{0}"], "committed 2  end 3  lag 1"),
        (["groups", "reset-offsets", "{0}", "--topic", "{0}", "--to", "end"], "to 3"),
        (["topics", "describe", "{0}"], "offsets 0 to 3"),
        (["consume", "{0}", "--until-end"], "0\n1\n2"),
        (["consume", "{0}", "--from", "end", "--until-end"], ""),
    ],
    ids=["describe", "reset", "topic", "from-the-beginning", "from-the-end"],
)
def test_a_partition_without_a_leader_is_waited_for(
    broker: BrokerProcess,
    command: Command,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    shown: str,
    failure: ReadRefused | RequestFailed,
) -> None:
    """As between a broker's death and the takeover."""
    topic = f"leaderless-{uuid4().hex[:8]}"
    make_topic(command, topic, 3, monkeypatch)
    use(broker, lambda client: commit_offsets(client, topic, {Place(topic, 0): 2}))
    leader = Client.leader
    asked: list[int] = []

    async def elected(client: Client, name: str, partition: int) -> int:
        asked.append(partition)
        if len(asked) == 1:
            client.forget(name)
            raise failure
        return await leader(client, name, partition)

    monkeypatch.setattr(Client, "leader", elected)
    answer = command(*(each.format(topic) for each in arguments))
    assert answer.code == 0, answer.err
    assert shown in answer.out
