"""`tidelog transactions` as a user types it: output, exit codes, wrong input. An abort by hand ends
the hanging transaction and no other."""

from __future__ import annotations

import json
import sys
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, NamedTuple

import pytest

from tests.unit.broker.hanging_transactions import make_hanging
from tidelog.cli.broker_client import with_client
from tidelog.cli.root import run
from tidelog.client.operations import LATEST, IsolationLevel, list_offsets
from tidelog.client.pool import Client
from tidelog.client.transactions.producer import TransactionalProducer
from tidelog.clock import SystemClock
from tidelog.entropy import SeededEntropy
from tidelog.localstack.broker_process import BrokerProcess
from tidelog.records.records import NewRecord

HANGING = ("lost-0", "lost-1", "lost-2")
PLACE = ("--topic", "lost", "--partition", "2")
NO_EPOCH = ("--producer-id", "1", "--producer-epoch", "99999", "--coordinator-epoch", "0")
NOW = ("--max-transaction-timeout", "0")


class Result(NamedTuple):
    """The result of a command."""

    code: int
    out: str
    err: str


Command = Callable[..., Result]


class Lost(NamedTuple):
    """A broker, and the producers whose transactions hang in the partitions of `lost`."""

    broker: BrokerProcess
    producer_ids: list[int]


@pytest.fixture(scope="module")
def lost(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lost]:
    folder = tmp_path_factory.mktemp("cli")
    producer_ids = make_hanging(folder / "bucket", "lost", HANGING)
    with BrokerProcess.start(f"file://{folder / 'bucket'}", folder / "log") as process:
        yield Lost(process, producer_ids)


@pytest.fixture
def command(
    lost: Lost, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Command:
    """Runs `tidelog transactions ...` in this process."""
    monkeypatch.setenv("TIDELOG_BOOTSTRAP", lost.broker.kafka)

    def invoke(*arguments: str) -> Result:
        monkeypatch.setattr(sys, "argv", ["tidelog", "transactions", *arguments])
        try:
            run()
            code = 0
        except SystemExit as exit_:
            code = int(exit_.code or 0)
        return Result(code, *capsys.readouterr())

    return invoke


def use(lost: Lost, story: Callable[[Client], Awaitable[Any]]) -> Any:
    host, _, port = lost.broker.kafka.rpartition(":")
    return with_client(((host, int(port)),), story)


async def stable(client: Client, partition: int, topic: str = "lost") -> int:
    """The last stable offset."""
    isolation = IsolationLevel.READ_COMMITTED
    return (await list_offsets(client, topic, partition, LATEST, isolation)).offset


def facts(result: Result) -> Any:
    assert result.code == 0, result
    return json.loads(result.out)


def test_a_transaction_is_listed_and_described_while_it_goes_on(
    lost: Lost, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["tidelog", "topics", "create", "live", "--partitions", "2"])
    run()

    async def story(client: Client) -> None:
        producer = TransactionalProducer(client, SystemClock(), SeededEntropy(3), "live-1")
        identity = await producer.init_transactions()
        producer.begin()
        for partition in (1, 0):
            await producer.send("live", partition, [NewRecord(b"v", b"k", timestamp=1)])
        told.append(identity.producer_id)

    told: list[int] = []
    use(lost, story)
    (producer_id,) = told
    listed = [line.split() for line in command("list").out.splitlines()]
    assert ["live-1", "Ongoing", str(producer_id)] in listed
    expected = {"transactional_id": "live-1", "state": "Ongoing", "producer_id": producer_id}
    for filters in (
        ("--state", "Ongoing"),
        ("--state", "Empty", "--state", "Ongoing"),
        ("--producer-id", str(producer_id)),
        ("--longer-than-ms", "0"),
        ("--pattern", "live-[0-9]"),
    ):
        assert facts(command("list", "--json", *filters)) == [expected]
    for filters in (
        ("--state", "CompleteAbort"),
        ("--producer-id", "999999"),
        ("--longer-than-ms", "3600000"),
        ("--pattern", "live"),
    ):
        assert facts(command("list", "--json", *filters)) == []
    described = facts(command("describe", "live-1", "--json"))
    assert described.pop("begun_ms") > 0
    assert described == {
        "transactional_id": "live-1",
        "state": "Ongoing",
        "producer_id": producer_id,
        "producer_epoch": 0,
        "timeout_ms": 60_000,
        "coordinator": lost.broker.kafka,
        "partitions": [{"topic": "live", "partition": 0}, {"topic": "live", "partition": 1}],
    }
    head, *places = command("describe", "live-1").out.splitlines()
    assert head.startswith(
        f"transactional id live-1  state Ongoing  producer {producer_id} epoch 0"
    )
    assert places == ["  live partition 0", "  live partition 1"]
    # The coordinator knows the transaction, so it does not hang, and must not be aborted by hand.
    assert facts(command("find-hanging", "--topic", "live", *NOW, "--json")) == []
    refused = command("abort", "--topic", "live", "--partition", "0", "--start-offset", "0")
    assert refused.code == 1
    assert "the coordinator of live-1 has live partition 0" in refused.err
    assert "Nothing was changed" in refused.err
    assert use(lost, lambda client: stable(client, 0, "live")) == 0


def test_a_hanging_transaction_is_found_and_aborted_by_its_start_offset(
    lost: Lost, command: Command
) -> None:
    found = {each["partition"]: each for each in facts(command("find-hanging", *NOW, "--json"))}
    hangs = found[0]
    assert hangs.pop("last_timestamp_ms") > 0
    assert hangs == {
        "topic": "lost",
        "partition": 0,
        "start_offset": 0,
        "producer_id": lost.producer_ids[0],
        "producer_epoch": 0,
        "coordinator_epoch": -1,
    }
    one = command("find-hanging", "--topic", "lost", "--partition", "0", *NOW)
    assert one.out.startswith(
        f"lost partition 0  start offset 0  producer {lost.producer_ids[0]} epoch 0"
    )
    # The transaction is younger than its timeout.
    assert facts(command("find-hanging", "--json")) == []
    assert use(lost, lambda client: stable(client, 0)) == 0
    place = ("--topic", "lost", "--partition", "0")
    missed = command("abort", *place, "--start-offset", "7")
    assert missed.code == 1
    assert "no open transaction begins at offset 7 of lost partition 0" in missed.err
    assert "those that are open: 0" in missed.err
    assert use(lost, lambda client: stable(client, 0)) == 0
    done = command("abort", *place, "--start-offset", "0")
    said = f"aborted the transaction of producer {lost.producer_ids[0]} in lost partition 0\n"
    assert done == (0, said, "")
    assert use(lost, lambda client: stable(client, 0)) == 2
    assert facts(command("find-hanging", *place[:4], *NOW, "--json")) == []
    again = command("abort", *place, "--start-offset", "0")
    assert again.code == 1
    assert "none is open" in again.err


def test_a_hanging_transaction_is_aborted_by_its_producer(lost: Lost, command: Command) -> None:
    place = ("--topic", "lost", "--partition", "1")
    producer_id = str(lost.producer_ids[1])
    wrong = ("--producer-id", producer_id, "--producer-epoch", "0", "--coordinator-epoch")
    done = command("abort", *place, *wrong, "-1", "--json")
    assert facts(done) == {
        "topic": "lost",
        "partition": 1,
        "producer_id": lost.producer_ids[1],
        "producer_epoch": 0,
        "coordinator_epoch": -1,
    }
    assert use(lost, lambda client: stable(client, 1)) == 2
    # The producer's epoch rises, and the old epoch can end no transaction any more.
    newer = ("--producer-id", producer_id, "--producer-epoch", "5", "--coordinator-epoch", "3")
    assert command("abort", *place, *newer).code == 0
    fenced = command("abort", *place, *wrong, "3")
    assert fenced.code == 1
    assert "INVALID_PRODUCER_EPOCH" in fenced.err
    fenced = command("abort", *place, "--producer-epoch", "6", *newer[:2], *newer[4:5], "2")
    assert fenced.code == 1
    assert "TRANSACTION_COORDINATOR_FENCED" in fenced.err
    assert use(lost, lambda client: stable(client, 1)) == 3


@pytest.mark.parametrize(
    "arguments",
    [
        ("list", "--state", "Late"),
        ("list", "--producer-id", "-1"),
        ("list", "--longer-than-ms", "soon"),
        ("describe",),
        ("find-hanging", "--partition", "0"),
        ("find-hanging", "--max-transaction-timeout", "-1"),
        ("abort", *PLACE),
        ("abort", "--topic", "lost", "--start-offset", "0"),
        ("abort", "--partition", "2", "--start-offset", "0"),
        ("abort", *PLACE, "--producer-id", "1"),
        ("abort", *PLACE, "--start-offset", "0", "--producer-id", "1"),
        ("abort", *PLACE, *NO_EPOCH),
    ],
)
def test_wrong_words(lost: Lost, command: Command, arguments: tuple[str, ...]) -> None:
    assert command(*arguments).code == 2
    assert use(lost, lambda client: stable(client, 2)) == 0


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("list", "--pattern", "("), "INVALID_REGULAR_EXPRESSION"),
        (("describe", "nobody"), "TRANSACTIONAL_ID_NOT_FOUND"),
        (("describe", ""), "INVALID_REQUEST"),
        (("find-hanging", "--topic", "none"), "UNKNOWN_TOPIC_OR_PARTITION"),
        (("find-hanging", "--topic", "lost", "--partition", "9"), "lost-9"),
        (("abort", "--topic", "none", "--partition", "0", "--start-offset", "0"), "topic none"),
        (("abort", "--topic", "lost", "--partition", "9", "--start-offset", "0"), "lost-9"),
    ],
)
def test_a_missing_transaction_is_named(
    lost: Lost, command: Command, arguments: tuple[str, ...], why: str
) -> None:
    result = command(*arguments)
    assert (result.code, result.out) == (1, "")
    assert why in result.err
    assert use(lost, lambda client: stable(client, 2)) == 0


def test_absent_brokers(command: Command) -> None:
    nowhere = ("--bootstrap", "127.0.0.1:1")
    abort = ("abort", *PLACE, "--start-offset", "0")
    for arguments in (("list",), ("describe", "t"), ("find-hanging",), abort):
        assert command(*arguments, *nowhere).code == 3
