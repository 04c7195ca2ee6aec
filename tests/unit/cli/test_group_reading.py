"""`tidelog consume --group` commits the messages that it has printed, and no others."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient

from tests.unit.cli.test_group_commands import Command, broker, command, make_topic
from tidelog.localstack.broker_process import BrokerProcess

__all__ = ["broker", "command"]

SECONDS_MAX = 60.0


def test_each_reader_goes_on_where_the_one_before_has_stopped(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first reader stops in the middle of a batch, and the second prints the rest."""
    make_topic(command, "resumed", 10, monkeypatch)
    asked = ("consume", "resumed", "--group", "readers")
    assert command(*asked, "--max", "3").out == "0\n1\n2\n"
    assert command(*asked, "--max", "4").out == "3\n4\n5\n6\n"
    assert command(*asked, "--until-end").out == "7\n8\n9\n"
    assert command(*asked, "--until-end").out == ""
    described = command("groups", "describe", "readers").out.splitlines()
    assert described[0].startswith("group readers  state Empty")
    assert described[1] == "  resumed partition 0  committed 10  end 10  lag 0"


def test_a_new_group_begins_where_it_is_told(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_topic(command, "begun", 5, monkeypatch)
    asked = ("consume", "begun", "--group", "beginners", "--until-end")
    assert command(*asked, "--from", "3").out == "3\n4\n"
    # The group's committed offset takes precedence over `--from`.
    assert command(*asked, "--from", "beginning").out == ""


def test_offsets_that_were_deleted_are_named_with_those_that_are_left(
    command: Command, broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_topic(command, "cut", 5, monkeypatch)
    asked = ("consume", "cut", "--group", "late")
    assert command(*asked, "--max", "1").out == "0\n"
    admin = AdminClient({"bootstrap.servers": broker.kafka})
    for deleted in admin.delete_records([TopicPartition("cut", 0, 3)]).values():
        deleted.result(SECONDS_MAX)
    refused = command(*asked, "--max", "1")
    assert refused.code == 1
    assert "cut-0 has no record at offset 1: it holds 3 to 5, exclusive" in refused.err
    assert "groups reset-offsets" in refused.err


def test_a_group_shares_out_partitions_by_itself(command: Command) -> None:
    refused = command("consume", "t", "--group", "g", "--partition", "0")
    assert refused.code == 2
    assert "exclude each other" in refused.err


def test_an_interrupted_reader_has_committed_the_printed_records(
    broker: BrokerProcess, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_topic(command, "interrupted", 10, monkeypatch)
    arguments = ["-m", "tidelog.cli", "consume", "interrupted", "--group", "interrupted"]
    reader = subprocess.Popen(
        [sys.executable, *arguments, "--bootstrap", broker.kafka], stdout=subprocess.PIPE, text=True
    )
    assert reader.stdout is not None
    printed = [reader.stdout.readline() for _ in range(10)]
    assert printed == [f"{number}\n" for number in range(10)]
    reader.send_signal(signal.SIGINT)
    reader.communicate(timeout=SECONDS_MAX)
    described = command("groups", "describe", "interrupted").out
    assert "committed 10  end 10  lag 0" in described
    assert "members 0" in described


def test_groups_of_the_consumer_protocol_are_described_too(
    broker: BrokerProcess, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_topic(command, "modern", 3, monkeypatch)
    consumer = Consumer(
        {
            "bootstrap.servers": broker.kafka,
            "group.id": "modern",
            "group.protocol": "consumer",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    try:
        consumer.subscribe(["modern"])
        deadline = time.monotonic() + SECONDS_MAX
        message = None
        while message is None:
            assert time.monotonic() < deadline
            message = consumer.poll(1)
        consumer.commit(message=message, asynchronous=False)
        found = json.loads(command("groups", "describe", "modern", "--json").out)
        facts = (found["state"], found["protocol_type"], found["protocol"], len(found["members"]))
        assert facts == ("Stable", "consumer", "uniform", 1)
        assert found["offsets"][0]["committed"] == 1
        refused = command("groups", "reset-offsets", "modern", "--topic", "modern", "--to", "end")
        assert refused.code == 1
        assert command("groups", "delete", "modern").code == 1
    finally:
        consumer.close()
    assert command("groups", "delete", "modern").out == "deleted group modern\n"
