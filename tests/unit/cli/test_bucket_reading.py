"""Commands that read a bucket without a broker, as a user types them."""

from __future__ import annotations

import io
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.unit.broker.one_broker import World, batch
from tests.unit.broker.one_broker import run as play
from tests.unit.broker.transactional_client import TransactionalClient
from tests.unit.bucket.bucket_world import SETTINGS, roll_and_checkpoint
from tests.unit.storage.scripted_server import ScriptedServer, error
from tidelog.cli.root import run
from tidelog.clock import SystemClock
from tidelog.entropy import SystemEntropy
from tidelog.localstack.ports import free_ports
from tidelog.protocol.error_codes import ErrorCode
from tidelog.storage.stores.location import open_store


class Result(NamedTuple):
    """The result of a command."""

    code: int
    out: str
    err: str


Command = Callable[..., Result]


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """Runs `tidelog ...` in this process."""

    def invoke(*arguments: str) -> Result:
        monkeypatch.setattr(sys, "argv", ["tidelog", *arguments])
        monkeypatch.setattr(sys, "stdin", io.StringIO())
        try:
            run()
            code = 0
        except SystemExit as exit_:
            code = int(exit_.code or 0)
        return Result(code, *capsys.readouterr())

    return invoke


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A bucket at rest, in which there is something of every kind."""
    folder = tmp_path / "bucket"
    store = open_store(f"file://{folder}", SystemClock(), SystemEntropy())
    here = World(store, **{**SETTINGS, "coordinator_snapshot_interval_records": 3})

    async def story() -> None:
        async with here.broker() as broker:
            await broker.create_topic()
            client = TransactionalClient(broker)
            assert await client.init() is ErrorCode.NONE
            assert await client.send(b"a") is ErrorCode.NONE
            assert await client.commit() is ErrorCode.NONE
            await roll_and_checkpoint(store, broker)
            await broker.produce(batch(b"b"))
        async with here.broker() as successor:
            await successor.produce(batch(b"c"))
        await store.close()

    play(story)
    return folder


def key_of(folder: Path, pattern: str) -> str:
    """The last key that matches."""
    return str(sorted(folder.glob(pattern))[-1].relative_to(folder))


def test_fsck_counts_the_objects_it_checked(folder: Path, command: Command) -> None:
    url = f"file://{folder}"
    result = command("fsck", "--store", url)
    assert (result.code, result.err) == (0, "")
    assert result.out.endswith("consistent\n")
    assert "1  tables" in result.out
    facts = json.loads(command("fsck", "--store", url, "--shallow", "--json").out)
    assert facts["consistent"]
    assert facts["faults"] == []
    assert facts["checked"]["segments"] == 1


def test_fsck_names_each_fault_and_exits_with_4(folder: Path, command: Command) -> None:
    key = key_of(folder, "topics/*/partition=0/*.parquet")
    path = folder / key
    data = bytearray(path.read_bytes())
    data[10] ^= 1
    path.write_bytes(data)
    url = f"file://{folder}"
    result = command("fsck", "--store", url)
    assert result.code == 4
    assert f"{key}: damaged: " in result.out
    assert "1 faults" in result.out
    # The damage is not at the end of the object, which a shallow check reads.
    assert command("fsck", "--store", url, "--shallow").code == 0
    path.unlink()
    facts = json.loads(command("fsck", "--store", url, "--shallow", "--json").out)
    assert [(each["key"], each["kind"]) for each in facts["faults"]] == [(key, "missing")]


def test_fsck_of_something_else_is_a_usage_error(tmp_path: Path, command: Command) -> None:
    result = command("fsck", "--store", f"file://{tmp_path}")
    assert result.code == 2
    assert "holds no cluster" in result.err
    assert command("fsck").code == 2


INSPECTED = {
    "wal/0-1/*00000.wal": ("wal", ["kind: data", "entries: ", "base_offset"]),
    "checkpoint/*/*": ("checkpoint", ["images: ", "table_next: ", "extents: "]),
    "topics/*/partition=0/*.parquet": ("segment", ["row_count: 1", "row_groups: 1", "crc32c: "]),
    "topics/*/_delta_log/*.json": ("table", ["version: 0", "advance", "append"]),
    "state/__transaction_state/*/*": ("state", ["tidelog.format: tidelog.transactions", "ordinal"]),
    "cluster/log/*": ("metadata", ["magic: tidelog.metadata.entry", "records: 1"]),
}


@pytest.mark.parametrize("pattern", INSPECTED)
def test_any_object_is_printed_and_a_damaged_one_is_named(
    folder: Path, command: Command, pattern: str
) -> None:
    kind, expected = INSPECTED[pattern]
    key, url = key_of(folder, pattern), f"file://{folder}"
    result = command("inspect", kind, key, "--store", url)
    assert (result.code, result.err) == (0, "")
    for text in expected:
        assert text in result.out
    facts = json.loads(command("inspect", kind, key, "--store", url, "--json").out)
    assert isinstance(facts, dict)
    path = folder / key
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    result = command("inspect", kind, key, "--store", url)
    assert (result.code, result.out) == (4, "")
    assert key in result.err
    path.unlink()
    result = command("inspect", kind, key, "--store", url)
    assert result.code == 1
    assert key in result.err


def test_entries_of_transactions_are_marked(folder: Path, command: Command) -> None:
    printed = ""
    for path in sorted(folder.glob("wal/0-1/*.wal")):
        key = str(path.relative_to(folder))
        printed += command("inspect", "wal", key, "--store", f"file://{folder}").out
    assert "none, transactional" in printed
    assert "none, COMMIT" in printed


def test_seals_hand_over_images_and_hints_are_told_apart(folder: Path, command: Command) -> None:
    url = f"file://{folder}"
    seals = [each for each in sorted(folder.glob("wal/0-*/*.wal")) if each.stat().st_size == 64]
    result = command("inspect", "wal", str(seals[0].relative_to(folder)), "--store", url)
    assert "kind: seal" in result.out
    wrong = command("inspect", "table", "topics/x/_delta_log/1.json", "--store", url)
    assert wrong.code == 1
    key = key_of(folder, "cluster/log/*")
    assert command("inspect", "table", key, "--store", url).code == 2
    lease = command("inspect", "metadata", key_of(folder, "cluster/lease/*"), "--store", url)
    assert "counter: " in lease.out


@pytest.mark.parametrize(
    "pattern", ["wal/0-1/*00000.wal", "checkpoint/*/*", "topics/*/partition=0/*", "state/*/*/*"]
)
def test_an_object_of_another_kind_is_not_called_damaged(
    folder: Path, command: Command, pattern: str
) -> None:
    url, key = f"file://{folder}", key_of(folder, pattern)
    right = next(kind for each, (kind, _) in INSPECTED.items() if each[:5] == pattern[:5])
    for kind in {kind for kind, _ in INSPECTED.values()} - {right}:
        result = command("inspect", kind, key, "--store", url)
        assert (result.code, result.out) == (2, "")
        assert f"is inspected as {right}, not as {kind}" in result.err


@pytest.mark.parametrize(
    ("kind", "pattern", "other", "says"),
    [
        ("wal", "wal/0-1/*00000.wal", f"{99:020d}.wal", "it says that it is data 0 of 0-1"),
        ("checkpoint", "checkpoint/0-1/*", f"{99:020d}", "it is the checkpoint of 0-1 at slot "),
    ],
)
def test_an_object_that_says_that_it_is_another_one_is_named(
    folder: Path, command: Command, kind: str, pattern: str, other: str, says: str
) -> None:
    path = folder / key_of(folder, pattern)
    copied = path.with_name(other)
    copied.write_bytes(path.read_bytes())
    key = str(copied.relative_to(folder))
    result = command("inspect", kind, key, "--store", f"file://{folder}")
    assert (result.code, result.out) == (4, "")
    assert f"{key} is corrupt: {says}" in result.err


@pytest.mark.parametrize(
    "key", ["", "/wal/0-1/x", "../x", ".tidelog/x", "file:///bucket/wal/x", "wal/\t"]
)
def test_a_wrong_key_is_refused_with_the_form_of_keys(
    folder: Path, command: Command, key: str
) -> None:
    result = command("inspect", "wal", key, "--store", f"file://{folder}")
    assert (result.code, result.out) == (2, "")
    assert "Keys are relative to the store's address" in result.err


def test_long_lists_are_cut_and_json_has_all_items(folder: Path, command: Command) -> None:
    url, key = f"file://{folder}", key_of(folder, "checkpoint/0-1/*")
    short = command("inspect", "checkpoint", key, "--store", url, "--rows", "1").out
    assert "more (--rows, --json)" in short
    facts = json.loads(command("inspect", "checkpoint", key, "--store", url, "--json").out)
    assert len(facts["images"]) > 1


def test_a_damaged_bucket_is_repaired_when_its_loss_is_accepted(
    folder: Path, command: Command
) -> None:
    url = f"file://{folder}"
    assert command("bucket", "repair", url).out == "nothing is lost\n"
    key = key_of(folder, "topics/*/partition=0/*.parquet")
    (folder / key).unlink()
    result = command("bucket", "repair", url)
    assert result.code == 4
    assert f"{key}: it is missing" in result.out
    assert "lost: 1 records of flights-0 in offsets 0 to 1" in result.out
    assert command("fsck", "--store", url).code == 4
    refused = command("bucket", "repair", url, "--accept-loss", "delays")
    assert refused.code == 1
    assert "delays: nothing of that is lost" in refused.err
    done = command("bucket", "repair", url, "--accept-loss", "flights", "--json")
    assert done.code == 0
    assert json.loads(done.out)["whole"]
    again = command("fsck", "--store", url)
    assert again.code == 0
    assert "1  losses that were accepted" in again.out
    assert command("bucket", "repair", f"file://{folder}/none").code == 2


@pytest.mark.parametrize(
    "words", [("fsck", "--store"), ("bucket", "repair"), ("bucket", "copy")], ids=" ".join
)
def test_long_commands_print_their_progress_on_stderr(
    words: tuple[str, ...], folder: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = [f"file://{folder.parent}/copy"] if "copy" in words else []
    arguments = [*words, f"file://{folder}", *target, "--json"]
    monkeypatch.setattr("tidelog.cli.commands.fsck.PROGRESS_SECONDS", 0)
    done = command(*arguments)
    assert done.code == 0
    assert json.loads(done.out)
    told = [re.fullmatch(r"\d+ s: (\d+) objects, at (\S+)", each) for each in done.err.splitlines()]
    found = [(int(each[1]), each[2]) for each in told if each is not None]
    assert [number for number, _ in found] == list(range(1, len(told) + 1))
    keys = [key for _, key in found]
    assert key_of(folder, "topics/*/partition=0/*.parquet") in keys
    assert any(key.startswith("wal/") for key in keys)


def test_a_store_that_refuses_is_named(command: Command) -> None:
    with ScriptedServer([error(403, "AccessDenied")]) as server:
        address = f"s3://bucket/prefix?endpoint={server.endpoint}&region=eu-west-1"
        done = command("fsck", "--store", server.url)
    assert done.code == 1
    assert done.err.startswith(f"tidelog: {address}: cluster/")
    assert "403 AccessDenied" in done.err
    assert "SECRETKEY" not in done.err


@pytest.mark.usefixtures("impatient_stores")
def test_a_store_that_does_not_answer_is_named_with_the_reason(command: Command) -> None:
    (port,) = free_ports(1)
    endpoint = f"endpoint=http://127.0.0.1:{port}"
    url = f"s3://lake/prod?{endpoint}&access_key_id=me&secret_access_key=hush"
    done = command("fsck", "--store", url)
    *tries, last = done.err.splitlines()
    assert done.code == 3
    assert last.startswith(f"tidelog: s3://lake/prod?{endpoint}")
    assert "the store cannot be reached" in last
    assert tries
    assert all("it is retried for" in line for line in tries)
    assert all("Connection refused" in line and endpoint in line for line in [*tries, last])
    assert "hush" not in done.err
