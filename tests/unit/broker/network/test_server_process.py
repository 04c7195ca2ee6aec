"""`tidelog server` as a process: its ready line, signals, logs, health and metrics."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from prometheus_client.parser import text_string_to_metric_families

from tidelog.localstack.broker_process import BrokerProcess
from tidelog.localstack.ports import free_ports

WAIT_SECONDS = 30


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("process")


@pytest.fixture(scope="module")
def broker(folder: Path) -> Iterator[BrokerProcess]:
    store = f"file://{folder / 'bucket'}"
    with BrokerProcess.start(store, folder / "log", http="127.0.0.1:0", broker_id=3) as process:
        yield process


def read(url: str) -> str:
    with urllib.request.urlopen(url, timeout=WAIT_SECONDS) as answer:
        return str(answer.read().decode())


def values(http: str) -> dict[tuple[str, str], float]:
    """The metrics by name, and by operation or API if the metric has one."""
    return {
        (sample.name, sample.labels.get("operation", sample.labels.get("api", ""))): sample.value
        for family in text_string_to_metric_families(read(f"http://{http}/metrics"))
        for sample in family.samples
    }


def produce(bootstrap: str, topic: str, records: list[bytes], acks: str) -> list[int]:
    """The offsets that were acknowledged."""
    offsets: list[int] = []

    def delivered(error: KafkaError | None, message: Message) -> None:
        assert error is None, error
        offsets.append(message.offset())

    producer = Producer({"bootstrap.servers": bootstrap, "acks": acks, "log_level": 0})
    for record in records:
        producer.produce(topic, record, on_delivery=delivered)
    assert producer.flush(WAIT_SECONDS) == 0
    return offsets


def consume(bootstrap: str, topic: str, count: int) -> list[bytes | None]:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "none", "log_level": 0})
    consumer.assign([TopicPartition(topic, 0, 0)])
    found = consumer.consume(count, WAIT_SECONDS)
    consumer.close()
    return [message.value() for message in found]


def test_the_ready_line_tells_the_addresses_that_were_picked(broker: BrokerProcess) -> None:
    for address in (broker.kafka, broker.http):
        host, _, port = address.rpartition(":")
        assert host == "127.0.0.1"
        assert int(port) > 0
    assert re.fullmatch(r"[\w-]{22}", broker.cluster)
    assert broker.broker_id == 3


def test_a_topic_is_created_at_first_sight_with_the_usual_number_of_partitions(
    broker: BrokerProcess,
) -> None:
    assert produce(broker.kafka, "unheard-of", [b"first"], acks="all") == [0]
    consumer = Consumer({"bootstrap.servers": broker.kafka, "group.id": "none", "log_level": 0})
    assert list(consumer.list_topics(timeout=WAIT_SECONDS).topics["unheard-of"].partitions) == [0]
    consumer.close()


@pytest.mark.parametrize("acks", ["1", "all"])
def test_acknowledged_records_are_read_back(broker: BrokerProcess, acks: str) -> None:
    topic = f"acks-{acks}"
    assert produce(broker.kafka, topic, [b"a", b"b", b"c"], acks) == [0, 1, 2]
    assert consume(broker.kafka, topic, 3) == [b"a", b"b", b"c"]


def test_without_acknowledgement_records_arrive_all_the_same(broker: BrokerProcess) -> None:
    produce(broker.kafka, "acks-0", [b"a", b"b", b"c"], acks="0")
    assert consume(broker.kafka, "acks-0", 3) == [b"a", b"b", b"c"]


def test_a_serving_broker_is_healthy(broker: BrokerProcess) -> None:
    assert json.loads(read(f"http://{broker.http}/healthz")) == {"healthy": True, "problems": []}


def test_metrics_count_requests_records_and_store_operations(broker: BrokerProcess) -> None:
    before = values(broker.http)
    produce(broker.kafka, "measured", [b"x" * 1000], acks="all")
    assert consume(broker.kafka, "measured", 1) == [b"x" * 1000]
    after = values(broker.http)

    def grown(name: str, label: str = "") -> float:
        return after[name, label] - before.get((name, label), 0)

    assert grown("tidelog_produced_records_total") == 1
    assert grown("tidelog_produced_bytes_total") > 1000
    assert grown("tidelog_fetched_bytes_total") > 1000
    assert grown("tidelog_requests_total", "Produce") == 1
    assert grown("tidelog_wal_slots_total") >= 1
    assert grown("tidelog_store_operations_total", "put") >= 1
    assert after["tidelog_partitions", ""] >= 1


def test_logs_are_lines_with_fields_on_stderr(broker: BrokerProcess) -> None:
    (ready,) = [line for line in broker.log_path.read_text().splitlines() if " ready " in line]
    assert re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z INFO tidelog\.broker\.broker ", ready)
    assert f"address={broker.kafka}" in ready


def test_sigterm_ends_it_cleanly_and_a_successor_serves_the_same(folder: Path) -> None:
    store = f"file://{folder / 'stopped'}"
    with BrokerProcess.start(store, folder / "first.log") as first:
        assert produce(first.kafka, "kept", [b"a", b"b"], acks="all") == [0, 1]
        assert first.stop() == 0
        cluster = first.cluster
    with BrokerProcess.start(store, folder / "second.log") as second:
        assert second.cluster == cluster
        assert consume(second.kafka, "kept", 2) == [b"a", b"b"]
        assert produce(second.kafka, "kept", [b"c"], acks="all") == [2]
    # The first broker had fenced itself, so the second did not wait for its lease.
    assert "waiting until its lease" not in (folder / "second.log").read_text()


STORE_PATIENCE_SECONDS = 60
"""How long requests to a store that cannot be reached are repeated."""


@contextmanager
def server_on(endpoint: tuple[str, int]) -> Iterator[subprocess.Popen[str]]:
    """`tidelog server` whose S3 endpoint is this address."""
    url = f"s3://bucket/prefix?endpoint=http://{endpoint[0]}:{endpoint[1]}"
    options = ["--store", f"{url}&access_key_id=a&secret_access_key=b", "--listen", "127.0.0.1:0"]
    command = [sys.executable, "-m", "tidelog.cli", "server", *options]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("signalled", [signal.SIGTERM, signal.SIGINT])
def test_a_store_that_refuses_connections_does_not_hold_up_a_stop(
    signalled: signal.Signals,
) -> None:
    (port,) = free_ports(1)
    with server_on(("127.0.0.1", port)) as process:
        assert process.stderr is not None
        assert any("the store cannot be reached" in line for line in process.stderr)
        process.send_signal(signalled)
        assert process.wait(STORE_PATIENCE_SECONDS / 2) == 0


def test_a_store_that_never_answers_does_not_hold_up_a_stop() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        server_on(silent.getsockname()) as process,
    ):
        silent.settimeout(WAIT_SECONDS)
        connection, _ = silent.accept()
        with connection:
            assert connection.recv(4) == b"PUT "
            process.terminate()
            assert process.wait(STORE_PATIENCE_SECONDS / 2) == 0
