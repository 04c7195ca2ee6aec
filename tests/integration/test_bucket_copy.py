"""The bucket of three brokers under load is copied. Other brokers open the copy and find the bucket
as it was at one instant. The original brokers go on."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, Message, Producer

from tests.integration.test_all_brokers_replaced import (
    PARTITIONS,
    SECONDS_MAX,
    TOPIC,
    client_of,
    create_topic,
    start,
)
from tidelog.localstack.broker_process import BrokerProcess
from tidelog.localstack.s3_servers import start_seaweedfs

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]

SOURCE = "source"
PLAIN = "plain"
PRODUCERS = ("one", "two")
COPIES = 3


class Load:
    """Transactions that write the same word to all partitions; every third is aborted."""

    def __init__(
        self, brokers: Sequence[BrokerProcess], name: str, pause_seconds: float = 0.0
    ) -> None:
        self.name = name
        self._settings = client_of(brokers, **{"transactional.id": name, "linger.ms": 0})
        self.is_over = threading.Event()
        self._pause_seconds = pause_seconds
        self.committed: list[str] = []
        """The committed words, in order."""
        self.aborted: set[str] = set()

    def run(self) -> None:
        """Produce until the load is to end."""
        producer = Producer(self._settings)
        producer.init_transactions(SECONDS_MAX)
        number = 0
        while not self.is_over.wait(self._pause_seconds):
            word = f"{self.name}-{number}"
            producer.begin_transaction()
            for partition in range(PARTITIONS):
                producer.produce(TOPIC, word, partition=partition)
            if number % 3 == 2:
                # librdkafka's #4849: an abort may be refused before a partition has been added.
                producer.flush(SECONDS_MAX)
                producer.abort_transaction(SECONDS_MAX)
                self.aborted.add(word)
            else:
                producer.commit_transaction(SECONDS_MAX)
                self.committed.append(word)
            number += 1


class PlainLoad(Load):
    """Single records, each acknowledged before the next is sent."""

    def run(self) -> None:
        settings = {key: value for key, value in self._settings.items() if "transact" not in key}
        producer = Producer(settings)
        errors: list[KafkaError] = []

        def delivered(error: KafkaError | None, message: Message) -> None:
            if error is None:
                self.committed.append(str(message.value(), "ascii"))
            else:
                errors.append(error)

        number = 0
        while not self.is_over.wait(self._pause_seconds):
            producer.produce(
                TOPIC, f"{PLAIN}-{number}", partition=number % PARTITIONS, on_delivery=delivered
            )
            producer.flush(SECONDS_MAX)
            number += 1
        assert errors == []


def command(*arguments: str) -> Mapping[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "tidelog.cli", *arguments, "--json"],
        check=False,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found: Mapping[str, Any] = json.loads(done.stdout)
    return found


def read_committed(brokers: Sequence[BrokerProcess]) -> list[list[str]]:
    """The words of each partition up to its end."""
    found: list[list[str]] = [[] for _ in range(PARTITIONS)]
    consumer = Consumer(
        client_of(
            brokers,
            **{
                "group.id": "judge",
                "isolation.level": "read_committed",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
            },
        )
    )
    consumer.subscribe([TOPIC])
    ended: set[int] = set()
    until = time.monotonic() + SECONDS_MAX
    while len(ended) < PARTITIONS:
        assert time.monotonic() < until
        message = consumer.poll(1.0)
        if message is None:
            continue
        partition = message.partition()
        assert partition is not None
        error = message.error()
        if error is None:
            found[partition].append(str(message.value(), "ascii"))
        elif error.code() == KafkaError._PARTITION_EOF:
            ended.add(partition)
    consumer.close()
    return found


def check(
    found: Sequence[Sequence[str]],
    loads: Mapping[str, Load],
    least: Mapping[str, int],
) -> None:
    """The copy has all records that were acknowledged before the copying began, and each
    transaction whole or not at all."""
    for name in PRODUCERS:
        load = loads[name]
        seen = [[word for word in words if word.startswith(f"{name}-")] for words in found]
        assert all(words == seen[0] for words in seen), "only a part of a transaction was copied"
        assert seen[0] == load.committed[: len(seen[0])]
        assert len(seen[0]) >= least[name]
    plain = {word for words in found for word in words if word.startswith(f"{PLAIN}-")}
    assert set(loads[PLAIN].committed[: least[PLAIN]]) <= plain
    aborted = loads["one"].aborted | loads["two"].aborted
    assert not aborted & {word for words in found for word in words}


@contextmanager
def stores(kind: str, folder: Path) -> Iterator[Callable[[str], str]]:
    """Addresses of empty stores by name: folders, or prefixes of two buckets of an S3 server."""
    if kind == "folder":
        yield lambda name: f"file://{folder / name}"
        return
    with start_seaweedfs(folder / "s3") as server:
        copies = server.create_bucket("copies")
        yield lambda name: server.url_of(server.bucket if name == SOURCE else copies, name)


@pytest.mark.parametrize("kind", ["folder", "s3"])
def test_a_bucket_in_use_is_copied_as_of_one_instant(kind: str, tmp_path: Path) -> None:
    with stores(kind, tmp_path) as address_of:
        # A copy of thousands of small objects takes minutes, as each is two requests to a server.
        copy_under_load(address_of, tmp_path, 0.0 if kind == "folder" else 0.2)


def copy_under_load(address_of: Callable[[str], str], tmp_path: Path, pause_seconds: float) -> None:
    source = address_of(SOURCE)
    copies: list[tuple[str, dict[str, int]]] = []
    with ExitStack() as until:
        brokers = start(source, tmp_path, (1, 2, 3), until)
        create_topic(brokers, TOPIC)
        loads: dict[str, Load] = {name: Load(brokers, name, pause_seconds) for name in PRODUCERS}
        loads[PLAIN] = PlainLoad(brokers, PLAIN, pause_seconds)
        # The exit stack ends this pool first, so a failure ends the loads before the brokers.
        pool = until.enter_context(ThreadPoolExecutor(len(loads)))
        running = [pool.submit(load.run) for load in loads.values()]
        try:
            for number in range(COPIES):
                passed = {name: len(load.committed) for name, load in loads.items()}
                while any(len(load.committed) < passed[name] + 5 for name, load in loads.items()):
                    assert not any(each.done() for each in running)
                    time.sleep(0.05)
                least = {name: len(load.committed) for name, load in loads.items()}
                # The last copy updates the first one.
                target = address_of(f"copy-{number % (COPIES - 1)}")
                facts = command("bucket", "copy", source, target)
                assert facts["faults"] == {}
                print(json.dumps(facts))
                copies = [each for each in copies if each[0] != target] + [(target, least)]
        finally:
            for load in loads.values():
                load.is_over.set()
        for each in running:
            each.result(SECONDS_MAX)
        for target, least in copies:
            with ExitStack() as done:
                # One broker has the id of an original broker, which is running.
                others = start(target, tmp_path, (1, 9), done)
                for name in PRODUCERS:
                    # A successor of each producer resolves the transaction that was open at the
                    # instant.
                    producer = Producer(client_of(others, **{"transactional.id": name}))
                    producer.init_transactions(SECONDS_MAX)
                check(read_committed(others), loads, least)
            assert command("fsck", "--store", target)["consistent"]
        everything = {name: len(load.committed) for name, load in loads.items()}
        check(read_committed(brokers), loads, everything)
        assert all(broker.process.poll() is None for broker in brokers)
