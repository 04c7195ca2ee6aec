"""The command line as a user types it: output, exit codes, wrong input."""

from __future__ import annotations

import asyncio
import io
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import polars as pl
import pytest

import tidelog
from tests.process_table import children_with
from tidelog.cli.broker_client import with_client
from tidelog.cli.commands.produce import BATCH_RECORDS_MAX
from tidelog.cli.root import run
from tidelog.client.errors import RequestFailed, RequestOutcome
from tidelog.client.pool import Client
from tidelog.localstack.broker_process import BrokerProcess


class Result(NamedTuple):
    """The result of a command."""

    code: int
    out: str
    err: str


Command = Callable[..., Result]
PRODUCE = [sys.executable, "-m", "tidelog.cli", "produce"]


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes]) -> Command:
    """Runs `tidelog ...` in this process."""

    def invoke(*arguments: str, text: str = "") -> Result:
        monkeypatch.setattr(sys, "argv", ["tidelog", *arguments])
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
        try:
            run()
            code = 0
        except SystemExit as exit_:
            code = int(exit_.code or 0)
        out, err = capsysbinary.readouterr()
        return Result(code, out.decode(), err.decode())

    return invoke


@pytest.fixture(scope="module")
def broker_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cli")


@pytest.fixture(scope="module")
def broker(broker_folder: Path) -> Iterator[BrokerProcess]:
    folder = broker_folder
    with BrokerProcess.start(
        f"file://{folder / 'bucket'}", folder / "log", http="127.0.0.1:0"
    ) as process:
        yield process


@pytest.fixture
def heeds_ctrl_c() -> Iterator[None]:
    """This process and its children heed SIGINT, also if the tests run in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def to_broker(broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDELOG_BOOTSTRAP", broker.kafka)


def test_version(command: Command) -> None:
    assert command("version") == (0, f"tidelog {tidelog.__version__}\n", "")
    assert command("--version").out == f"tidelog {tidelog.__version__}\n"
    assert json.loads(command("version", "--json").out) == {"version": tidelog.__version__}


@pytest.mark.parametrize(
    ("mistyped", "meant"), [(["topcs"], "topics"), (["topics", "creat"], "create")]
)
def test_a_mistyped_command_gets_a_suggestion(
    command: Command, mistyped: list[str], meant: str
) -> None:
    done = command(*mistyped)
    assert done.code == 2
    assert f"Did you mean '{meant}'?" in done.err


@pytest.mark.parametrize(
    "arguments", [["version"], ["topics", "--help"], ["completion", "bash"], ["--help"]]
)
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_output_that_finds_no_space_is_named(arguments: list[str], unbuffered: str) -> None:
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "tidelog.cli", *arguments],
            stdout=full,
            stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
            text=True,
        )
    said = "tidelog: No space left on device; free some, and run the command again\n"
    assert (done.returncode, done.stderr) == (1, said)


@pytest.mark.parametrize(
    ("arguments", "code"), [(["version"], 0), (["fsck", "--json", "--store", "{store}"], 4)]
)
def test_a_reader_that_is_gone_does_not_change_the_exit_code(
    tmp_path: Path, arguments: list[str], code: int
) -> None:
    store = tmp_path / "bucket"
    with BrokerProcess.start(f"file://{store}", tmp_path / "log"):
        pass
    for segment in [*store.rglob("*")]:
        if segment.is_file():
            segment.write_bytes(b"damaged")
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "tidelog.cli", *arguments]
    done = subprocess.run(
        [each.format(store=f"file://{store}") for each in command],
        stdout=writer,
        stderr=subprocess.PIPE,
        # Otherwise each print meets the closed pipe.
        env={name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"},
        text=True,
    )
    os.close(writer)
    assert (done.returncode, "Exception ignored" in done.stderr) == (code, False), done.stderr


@pytest.mark.usefixtures("to_broker")
def test_a_refused_deletion_tells_of_the_topics_that_are_deleted(command: Command) -> None:
    for name in ("gone1", "gone2"):
        command("topics", "create", name)
    done = command("topics", "delete", "gone1", "missing1", "gone2", "missing2", "gone1")
    assert (done.code, done.out) == (1, "deleted topic gone1\ndeleted topic gone2\n")
    assert "missing1" in done.err
    assert "missing2" in done.err
    assert command("topics", "delete", "missing1", "--json").out == '{"deleted": []}\n'


@pytest.mark.usefixtures("to_broker")
def test_short_inputs_without_keys_do_not_all_fill_one_partition(command: Command) -> None:
    command("topics", "create", "spread", "--partitions", "50")
    for _ in range(5):
        command("produce", "spread", text="line\n")
    described = json.loads(command("topics", "describe", "spread", "--json").out)
    filled = [each for each in described["partitions"] if each["high_watermark"]]
    # Five independent choices of 50 are all the same once in six million runs.
    assert len(filled) > 1


@pytest.mark.usefixtures("to_broker")
def test_a_topics_life(command: Command) -> None:
    made = command("topics", "create", "life", "--partitions", "2", "--config", "retention.ms=5")
    assert (made.code, made.out) == (0, "created topic life with 2 partitions\n")
    listed = command("topics", "list").out.splitlines()
    assert listed[0].split() == ["TOPIC", "PARTITIONS"]
    assert ["life", "2"] in [line.split() for line in listed]
    described = json.loads(command("topics", "describe", "life", "--json").out)
    assert described["configs"] == {"retention.ms": "5"}
    assert [p["high_watermark"] for p in described["partitions"]] == [0, 0]
    again = command("topics", "create", "life")
    assert again.code == 1
    assert "TOPIC_ALREADY_EXISTS" in again.err
    assert command("topics", "delete", "life").code == 0
    gone = command("topics", "describe", "life")
    assert gone.code == 1
    assert gone.err == (
        "tidelog: topic life: UNKNOWN_TOPIC_OR_PARTITION (there is no such topic; create it with:"
        " tidelog topics create life)\n"
    )


def test_an_http_port_as_bootstrap_is_named(command: Command, broker: BrokerProcess) -> None:
    done = command("topics", "list", "--bootstrap", broker.http)
    assert done.code == 3
    assert f"{broker.http} is an HTTP port: give the broker's address" in done.err


def test_several_brokers_may_be_named(
    command: Command, broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If one broker refuses or does not exist, the client tries the next."""
    nowhere = "127.0.0.1:1"
    assert command("topics", "create", "named", "--bootstrap", broker.kafka).code == 0
    for bootstrap in (
        f"{nowhere},{broker.kafka}",
        f" {broker.http} , {nowhere},{broker.kafka},",
        f"{broker.kafka},{nowhere}",
    ):
        assert command("topics", "list", "--bootstrap", bootstrap).code == 0
        monkeypatch.setenv("TIDELOG_BOOTSTRAP", bootstrap)
        assert command("consume", "named", "--until-end").code == 0
    wrong = command("topics", "list", "--bootstrap", f"here,{broker.kafka},there:port")
    assert wrong.code == 2
    assert "'here' is not HOST:PORT; 'there:port' is not HOST:PORT" in wrong.err
    none = command("topics", "list", "--bootstrap", f"{nowhere},{broker.http}")
    assert none.code == 3
    assert f"connecting to {nowhere}, {broker.http}: " in none.err
    assert f"; {broker.http} is an HTTP port" in none.err


@pytest.mark.usefixtures("to_broker")
def test_settings_of_a_topic_are_listed_and_altered(command: Command) -> None:
    command("topics", "create", "altered")
    assert command("configs", "list", "--topic", "altered").out == "none\n"
    done = command("topics", "alter", "altered", "retention.ms=7", "max.message.bytes=1000")
    assert done.out == (
        "topic altered: retention.ms is 7\ntopic altered: max.message.bytes is 1000\n"
    )
    command(
        "configs", "alter", "retention.ms=8", "--topic", "altered", "--unset", "max.message.bytes"
    )
    listed = json.loads(command("configs", "list", "--topic", "altered", "--json").out)
    assert listed == [{"name": "retention.ms", "value": "8", "source": "topic"}]
    shown = command("configs", "list", "--topic", "altered", "--all").out.splitlines()
    assert shown[0].split() == ["NAME", "VALUE", "SOURCE"]
    assert "default" in {line.split()[-1] for line in shown}
    # All topics or none.
    wrong = command("topics", "alter", "altered", "retention.ms=9", "retention.mz=1")
    assert wrong.code == 1
    assert "retention.mz" in wrong.err
    again = json.loads(command("configs", "list", "--topic", "altered", "--json").out)
    assert again == listed
    for arguments, words in (
        (("configs", "alter", "--topic", "altered"), "nothing to change"),
        (("configs", "list"), "give one of --topic"),
        (("configs", "list", "--topic", "a", "--brokers"), "give one of --topic"),
        (("topics", "alter", "altered", "retention.ms"), "is not NAME=VALUE"),
    ):
        refused = command(*arguments)
        assert (refused.code, words in refused.err) == (2, True)


@pytest.mark.usefixtures("to_broker")
def test_settings_of_brokers_are_listed_and_altered(command: Command) -> None:
    assert command("configs", "alter", "log.retention.ms=70000", "--brokers").code == 0
    listed = json.loads(command("configs", "list", "--broker", "0", "--json").out)
    assert {"name": "log.retention.ms", "value": "70000", "source": "all brokers"} in listed
    assert command("configs", "alter", "--unset", "log.retention.ms", "--brokers").code == 0
    unknown = command("configs", "list", "--broker", "9")
    assert unknown.code == 3
    assert "broker 9: there is no such broker (known: 0)" in unknown.err


@pytest.mark.usefixtures("to_broker")
def test_a_topic_gets_more_partitions_and_never_fewer(command: Command) -> None:
    command("topics", "create", "grows", "--partitions", "2")
    assert command("topics", "add-partitions", "grows", "5").out == "topic grows has 5 partitions\n"
    fewer = command("topics", "add-partitions", "grows", "3")
    assert fewer.code == 1
    assert "INVALID_PARTITIONS" in fewer.err


@pytest.mark.usefixtures("to_broker")
def test_a_topic_is_flushed_into_its_table(command: Command, broker_folder: Path) -> None:
    command("topics", "create", "flushed", "--partitions", "2")
    command("produce", "flushed", "--partition", "1", text="a\nb\nc\n")
    done = command("topics", "flush", "flushed", "--json")
    assert done.code == 0
    facts = json.loads(done.out)
    assert [each["table_next"] for each in facts["partitions"]] == [0, 3]
    assert [each["held_at"] for each in facts["partitions"]] == [None, None]
    described = json.loads(command("topics", "describe", "flushed", "--json").out)
    table = pl.read_delta(str(broker_folder / "bucket" / "topics" / described["id"]))
    assert table.sort("offset")["value"].to_list() == [b"a", b"b", b"c"]
    text = command("topics", "flush", "flushed")
    assert text.out == (
        "partition 0  in the table up to offset 0\npartition 1  in the table up to offset 3\n"
    )
    missing = command("topics", "flush", "nowhere")
    assert missing.code == 1
    assert "nowhere" in missing.err


@pytest.mark.usefixtures("to_broker")
def test_lines_and_json_records_come_back_as_they_were_sent(command: Command) -> None:
    command("topics", "create", "round", "--partitions", "1")
    assert command("produce", "round", text="one\ntwo\n").out == "2 records to round\n"
    records: list[dict[str, object]] = [
        {"key": "k", "value": None, "headers": [["h", "v"], ["n", None]]},
        {"key": None, "value": {"base64": "/w=="}, "headers": []},
    ]
    text = "\n".join(json.dumps(record) for record in records)
    sent = command("produce", "round", "--format", "json", "--compression", "zstd", text=text)
    assert sent.code == 0
    assert command("consume", "round", "--max", "2").out == "one\ntwo\n"
    read = command("consume", "round", "--from", "2", "--until-end", "--format", "json")
    found = [json.loads(line) for line in read.out.splitlines()]
    assert [{name: record[name] for name in records[0]} for record in found] == records
    assert [record["offset"] for record in found] == [2, 3]
    for end in ("4", "end"):
        assert command("consume", "round", "--from", end, "--until-end") == (0, "", "")
    above = command("consume", "round", "--from", "5", "--until-end")
    assert (above.code, "holds 0 to 4, exclusive" in above.err) == (1, True), above
    assert command("consume", "round", "--from", "@0", "--max", "1").out == "one\n"


@pytest.mark.usefixtures("heeds_ctrl_c")
def test_an_interrupted_producer_ends_and_tells_what_was_sent(
    broker: BrokerProcess, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIDELOG_BOOTSTRAP", broker.kafka)
    command("topics", "create", "interrupted", "--partitions", "1")
    with subprocess.Popen(
        [*PRODUCE, "interrupted"],
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as writer:
        assert writer.stdin is not None
        assert writer.stderr is not None
        writer.stdin.write(b"line\n" * BATCH_RECORDS_MAX + b"not sent\n")
        writer.stdin.flush()
        assert command("consume", "interrupted", "--max", str(BATCH_RECORDS_MAX)).code == 0
        writer.send_signal(signal.SIGINT)
        try:
            # Standard input stays open, as that of a terminal.
            assert writer.wait(30) == 130
        finally:
            writer.kill()
        said = writer.stderr.read().decode()
    assert said.startswith("tidelog: interrupted; ")
    assert command("consume", "interrupted", "--until-end").out == "line\n" * BATCH_RECORDS_MAX


@pytest.mark.usefixtures("heeds_ctrl_c")
def test_ctrl_c_ends_a_command_that_waits_whichever_thread_gets_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Here it is not the one that waits, which the system would wake."""
    waits, is_cancelled = threading.Event(), threading.Event()
    ended_at_once: list[bool] = []

    async def use(_: Client) -> None:
        loop, never = asyncio.get_running_loop(), asyncio.Event()
        select = loop._selector.select  # type: ignore[attr-defined]

        def noted(timeout: float | None = None) -> object:
            # The other thread goes on once this one has let the interpreter go, to wait.
            if timeout is None:
                waits.set()
            return select(timeout)

        def interrupt() -> None:
            waits.wait()
            signal.pthread_kill(threading.get_ident(), signal.SIGINT)
            ended_at_once.append(is_cancelled.wait(10))
            loop.call_soon_threadsafe(never.set)

        monkeypatch.setattr(loop._selector, "select", noted)  # type: ignore[attr-defined]
        thread = threading.Thread(target=interrupt)
        thread.start()
        try:
            await never.wait()
        finally:
            is_cancelled.set()
            await asyncio.to_thread(thread.join)

    with pytest.raises(KeyboardInterrupt):
        with_client([("127.0.0.1", 1)], use)
    assert ended_at_once == [True]


def test_a_command_whose_shell_ignores_ctrl_c_goes_on(
    broker: BrokerProcess, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A shell does so for a command in the background."""
    monkeypatch.setenv("TIDELOG_BOOTSTRAP", broker.kafka)
    command("topics", "create", "background", "--partitions", "1")
    lines = b"line\n" * BATCH_RECORDS_MAX
    with subprocess.Popen(
        ["sh", "-c", 'trap "" INT; exec "$@"', "sh", *PRODUCE, "background"],
        stdin=subprocess.PIPE,
    ) as writer:
        assert writer.stdin is not None
        writer.stdin.write(lines)
        writer.stdin.flush()
        assert command("consume", "background", "--max", str(BATCH_RECORDS_MAX)).code == 0
        writer.send_signal(signal.SIGINT)
        writer.communicate(b"last\n", timeout=30)
    assert writer.returncode == 0
    read = command("consume", "background", "--until-end").out
    assert read == lines.decode() + "last\n"


@pytest.mark.usefixtures("to_broker")
def test_keys_choose_partitions_as_all_kafka_clients_do(command: Command) -> None:
    command("topics", "create", "keys", "--partitions", "10")
    text = "\n".join(json.dumps({"key": f"key{n}", "value": "v"}) for n in range(20))
    command("produce", "keys", "--format", "json", text=text)
    read = command("consume", "keys", "--until-end", "--format", "json").out.splitlines()
    placed = {r["key"]: r["partition"] for r in map(json.loads, read)}
    assert len(placed) == 20
    # Known values of Kafka's own murmur2 partitioner.
    assert len(set(placed.values())) > 3


@pytest.mark.usefixtures("to_broker")
@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('{"kex": 1}', "unknown field 'kex'"),
        ("nonsense", "line 1 is no record"),
        ('{"value": 3}', "neither null nor text"),
        ('{"value": {"a": "b"}}', r'write JSON as text: "{\"a\": \"b\"}"'),
        ('{"value": "v", "partition": 99}', "has no partition 99"),
        ('{"value": "v", "partition": false}', "must be whole numbers"),
        ('{"value": "v", "timestamp": true}', "must be whole numbers"),
        (f'{{"value": "v", "timestamp": {2**63}}}', f"timestamp {2**63} is no number of 64 bits"),
        ("[" * 100_000, "nested too deeply"),
        (r'{"value": "v", "headers": [["\ud800", "UA"]]}', "line 1 is no record: 'utf-8' codec"),
        ('{"value": "v", "headers": {"by": "UA"}}', "headers are a list of [NAME, VALUE]"),
        ('{"value": "v", "headers": ["by"]}', "headers are a list of [NAME, VALUE]"),
        ('{"value": "v", "headers": [[null, "UA"]]}', "headers are a list of [NAME, VALUE]"),
    ],
)
def test_a_line_that_is_no_record_is_refused_by_its_number(
    command: Command, text: str, why: str
) -> None:
    command("topics", "create", "refused", "--partitions", "1")
    result = command("produce", "refused", "--format", "json", text=text)
    assert result.code == 1
    assert why in result.err
    assert result.err.endswith("; no line was sent before\n")
    assert command("consume", "refused", "--until-end").out == ""


@pytest.mark.usefixtures("to_broker")
def test_lines_sent_before_a_wrong_line_are_named(command: Command) -> None:
    command("topics", "create", "begun", "--partitions", "2")
    text = '{"value": "v"}\n' * 1200 + "nonsense\n"
    result = command("produce", "begun", "--format", "json", text=text)
    assert result.code == 1
    assert result.err.startswith("tidelog: line 1201 is no record: ")
    assert result.err.endswith("; lines 1 to 1000 were sent before and are durable\n")
    assert command("consume", "begun", "--until-end").out == "v\n" * 1000


@pytest.mark.usefixtures("to_broker")
def test_lines_sent_before_a_refused_batch_are_named(command: Command) -> None:
    command("topics", "create", "large", "--partitions", "2", "--config", "max.message.bytes=1000")
    small = [json.dumps({"value": "v", "partition": n % 2}) for n in range(10)]
    large = json.dumps({"value": "v" * 2000, "partition": 1})
    result = command("produce", "large", "--format", "json", text="\n".join([*small, large]))
    assert result.code == 1
    assert "MESSAGE_TOO_LARGE" in result.err
    assert result.err.endswith("; 5 of the lines 1 to 11 were sent before and are durable\n")
    assert command("consume", "large", "--until-end").out == "v\n" * 5


@pytest.mark.usefixtures("to_broker")
def test_a_batch_that_may_have_been_sent_is_said(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    command("topics", "create", "doubtful", "--partitions", "1")
    outcomes = iter([RequestOutcome.UNKNOWN, RequestOutcome.NOT_APPLIED])

    async def lost(*_: object) -> None:
        raise RequestFailed("Produce", "127.0.0.1:1", next(outcomes), "the connection broke")

    produce = sys.modules["tidelog.cli.commands.produce"]
    monkeypatch.setattr(produce, "ATTEMPTS_MAX", 2)
    monkeypatch.setattr(produce, "RETRY_SECONDS", 0)
    monkeypatch.setattr(produce, "produce_batch", lost)
    result = command("produce", "doubtful", text="a\nb\n")
    assert result.code == 3
    assert result.err.endswith("; no line was sent before; 2 more may be durable\n")


@pytest.mark.usefixtures("to_broker")
@pytest.mark.parametrize(
    ("arguments", "code", "why"),
    [
        (("topics", "create", "bad name"), 1, "INVALID_TOPIC_EXCEPTION"),
        (("topics", "create", "x", "--config", "retention.ms=soon"), 1, "retention.ms"),
        (("topics", "create", "x", "--config", "nonsense"), 2, "NAME=VALUE"),
        (("topics", "frobnicate"), 2, "No such command"),
        (("topics", "list", "--bootstrap", "nowhere"), 2, "HOST:PORT"),
        (("topics", "list", "--bootstrap", " ,"), 2, "names no HOST:PORT"),
        (("topics", "list", "--bootstrap", "127.0.0.1:1"), 3, "127.0.0.1:1: "),
        (("topics", "list", "--bootstrap", "127.0.0.1:1"), 3, "; nothing was sent"),
        (("topics", "list", "--bootstrap", "127.0.0.1:1"), 3, "; does a broker listen on"),
        (("consume", "x", "--from", "yesterday"), 2, "beginning"),
        (("server", "--store", "bogus://x"), 2, "no store is known"),
        (("server", "--store", "s3://"), 2, "s3://"),
        (("server", "--store", "file:///x", "--set", "no.such=1"), 2, "no.such"),
        (("server", "--store", "file:///x", "--set", "num.partitions=many"), 2, "num.partitions"),
        (("server", "--store", "file:///x", "--config", "/no/such/file"), 2, "/no/such/file"),
        (("server",), 2, "--store"),
        (("server", "--store", "file:///x", "--listen", "0.0.0.0:0"), 2, "--advertise HOST:PORT"),
        (("server", "--store", "file:///x", "--listen", "[::]:0"), 2, "--advertise HOST:PORT"),
        (("server", "--store", "file:///x", "--advertise", "0.0.0.0:1"), 2, "cannot connect to"),
        (("bucket", "check", "file:///x"), 2, "only S3 stores"),
    ],
)
def test_wrong_input_is_named(
    command: Command, arguments: tuple[str, ...], code: int, why: str
) -> None:
    result = command(*arguments)
    assert (result.code, why in result.err) == (code, True), result


def test_a_server_on_a_taken_port_names_the_port(
    command: Command, broker: BrokerProcess, tmp_path: Path
) -> None:
    result = command("server", "--store", f"file://{tmp_path}", "--listen", broker.kafka)
    assert result.code == 1
    assert broker.kafka in result.err


def test_a_server_on_a_taken_http_port_names_the_port(
    command: Command, broker: BrokerProcess, tmp_path: Path
) -> None:
    arguments = ("--listen", "127.0.0.1:0", "--http", broker.http)
    result = command("server", "--store", f"file://{tmp_path}", *arguments)
    assert result.code == 1
    assert broker.http in result.err
    assert not children_with(os.getpid(), "tidelog.cli.worker")
