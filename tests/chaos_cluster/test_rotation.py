"""Certificates of a closed cluster change under load: no client sees an error, no connection ends.

New connections get the new certificate. Brokers take it by a look at the files, or on SIGHUP.
"""

from __future__ import annotations

import json
import socket
import ssl
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from cryptography import x509
from cryptography.x509.oid import NameOID

from tests.chaos.etl import SOURCE
from tests.chaos_cluster.cluster import Cluster
from tests.chaos_cluster.protection import CHECK_MS, Protection
from tests.chaos_cluster.test_faults import PARTITIONS, create_topics

pytestmark = [pytest.mark.chaos_cluster, pytest.mark.timeout(900)]

ROTATIONS = 6
NEVER_MS = 3_600_000
TAKEN_SECONDS_MAX = 120.0
SETTLE_SECONDS = 120.0
SEND_SECONDS = 0.005


class Load(threading.Thread):
    """A producer and a consumer at work, and the errors that they report."""

    def __init__(self, connection: dict[str, str]) -> None:
        super().__init__()
        self.sent = 0
        self.errors: list[str] = []
        self.found: list[int] = []
        self.connects: dict[str, int] = {}
        """How often the producer has connected, by broker."""
        self._ends = threading.Event()
        watched = {**connection, "error_cb": lambda error: self.errors.append(str(error))}
        self._producer = Producer(
            {
                **watched,
                "enable.idempotence": True,
                "statistics.interval.ms": 200,
                "stats_cb": self._count,
            }
        )
        self._consumer = Consumer(
            {**watched, "group.id": "reader-java", "enable.auto.commit": False}
        )
        self._consumer.assign([TopicPartition(SOURCE, each, 0) for each in range(PARTITIONS)])

    def run(self) -> None:
        deadline = None
        while deadline is None or len(self.found) < self.sent:
            if not self._ends.wait(SEND_SECONDS):
                partition = self.sent % PARTITIONS
                self._producer.produce(
                    SOURCE, b"%d" % self.sent, partition=partition, on_delivery=self._delivered
                )
                self.sent += 1
            elif deadline is None:
                self._producer.flush(SETTLE_SECONDS)
                deadline = time.monotonic() + SETTLE_SECONDS
            elif time.monotonic() > deadline:
                break
            self._producer.poll(0)
            self._read()
        self._consumer.close()

    def _read(self) -> None:
        for message in self._consumer.consume(100, timeout=0):
            if (error := message.error()) is not None:
                self.errors.append(str(error))
            else:
                self.found.append(int(message.value() or b""))

    def _delivered(self, error: KafkaError | None, _: object) -> None:
        if error is not None:
            self.errors.append(str(error))

    def _count(self, text: str) -> None:
        brokers = json.loads(text)["brokers"].values()
        self.connects = {
            broker["nodename"]: broker["connects"] for broker in brokers if broker["nodeid"] >= 0
        }

    def end(self) -> None:
        """Stop sending, and read to the end."""
        self._ends.set()
        self.join()


def served(address: str, trusted: Path) -> str:
    """The number in the certificate that a new connection gets."""
    host, _, port = address.partition(":")
    context = ssl.create_default_context(cafile=trusted)
    with (
        socket.create_connection((host, int(port)), timeout=30) as plain,
        context.wrap_socket(plain, server_hostname=host) as connection,
    ):
        found = connection.getpeercert(binary_form=True)
    assert found is not None
    units = x509.load_der_x509_certificate(found).subject.get_attributes_for_oid(
        NameOID.ORGANIZATIONAL_UNIT_NAME
    )
    return str(units[-1].value)


def until_taken(cluster: Cluster, protection: Protection) -> None:
    """Wait until each broker serves the newest certificate."""
    pause = threading.Event()
    deadline = time.monotonic() + TAKEN_SECONDS_MAX
    for address in cluster.bootstrap.split(","):
        while served(address, protection.trusted) != protection.issued:
            assert time.monotonic() < deadline, (
                f"{address} has an old certificate\n{cluster.logs()}"
            )
            pause.wait(0.05)


def write_as_a_new_client(connection: dict[str, str]) -> None:
    """A client that connects now is served."""
    errors: list[KafkaException | KafkaError] = []
    producer = Producer({**connection, "error_cb": errors.append})
    producer.list_topics(SOURCE, timeout=60)
    assert errors == []


@pytest.mark.parametrize(
    ("check_ms", "hastened"),
    [(CHECK_MS, ()), (NEVER_MS, range(3))],
    ids=["the brokers look", "a signal"],
)
def test_certificates_change_under_load_without_an_error_at_clients(
    check_ms: int, hastened: Sequence[int], tmp_path: Path
) -> None:
    protection = Protection(tmp_path / "protection", check_ms)
    (tmp_path / "bucket").mkdir()
    store = f"file://{tmp_path / 'bucket'}"
    protection.create_cluster(store)
    with (
        closing(Cluster(store, tmp_path, faults=(), protection=protection)) as cluster,
        ExitStack() as ending,
    ):
        create_topics(cluster, ["java"])
        load = Load(cluster.connection)
        ending.callback(load.end)
        load.start()
        for _ in range(ROTATIONS):
            cluster.rotate(hastened)
            until_taken(cluster, protection)
            write_as_a_new_client(cluster.connection)
        load.end()
    assert load.errors == []
    assert sorted(load.found) == list(range(load.sent))
    assert load.connects
    assert max(load.connects.values()) == 1, load.connects
