"""How exactly quotas hold: the bytes that a client reaches over those that it may have.

    python -m benchmarks.security.quotas produce --bootstrap HOST:PORT --topic T --seconds N

As a program it is the client: it writes or reads a little more than it may, and prints one JSON
object. A client that knows no pace uses the whole window at once and waits until it has passed. The
bytes of a bounded time then depend on the bursts that fall into it.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

from confluent_kafka import Consumer, Message, Producer, TopicPartition

from benchmarks.harness.load import add_client
from benchmarks.harness.targets import Target
from tidelog import Admin

CLIENT_ID = "quota"
BYTES_A_SECOND = 4_000_000
WANTED = 1.25
"""The client's pace over the quota."""
WARMUP_SECONDS = 15.0
"""Longer than the window of samples: after an idle time it lets a client use ten seconds' worth."""
SECONDS = 30.0
SHARE_MIN = 1 / 3
"""In a shorter time the samples of a second would decide."""
PACE_SECONDS = 0.05
PARTITIONS = 4
RECORD_BYTES = 10_000


@dataclass(frozen=True, slots=True)
class QuotaReached:
    """The bytes a second that a client reached, over the quota's."""

    produce: float
    consume: float


def measure_quotas(target: Target, share: float) -> QuotaReached:
    """Measure both quotas of a client id. `share` shortens the time behind the warm-up."""
    seconds = WARMUP_SECONDS + SECONDS * max(share, SHARE_MIN)
    limited = {**target.client, "client.id": CLIENT_ID}
    client = Target(target.name, target.bootstrap, target.pid, target.metrics_url, limited)
    target.create_topic("bench.quota", PARTITIONS)
    target.create_topic("bench.quota.read", PARTITIONS)
    # More than the reader may have until its end, with what it may have at once.
    records = int(BYTES_A_SECOND * (seconds + 30) / RECORD_BYTES)
    options = {"partitions": PARTITIONS, "record_bytes": RECORD_BYTES, "batch_bytes": 100_000}
    target.load("produce", "bench.quota.read", records=records, **options)
    quotas = {"producer_byte_rate": BYTES_A_SECOND, "consumer_byte_rate": BYTES_A_SECOND}
    Admin(target.bootstrap).set_quotas(quotas, client_id=CLIENT_ID)
    reached = {
        kind: client.load(kind, topic, module=__name__, seconds=seconds)["bytes_a_second"]
        for kind, topic in (("produce", "bench.quota"), ("consume", "bench.quota.read"))
    }
    return QuotaReached(reached["produce"] / BYTES_A_SECOND, reached["consume"] / BYTES_A_SECOND)


class Pacer:
    """Holds a client to its pace. Time that the client lost is not made up for."""

    def __init__(self) -> None:
        self._next = time.perf_counter()

    def wait(self, size: int) -> None:
        """Return when the next `size` bytes are due."""
        now = time.perf_counter()
        self._next = max(self._next, now - PACE_SECONDS) + size / (WANTED * BYTES_A_SECOND)
        if self._next > now:
            time.sleep(self._next - now)


def produce(arguments: argparse.Namespace, arrived: Callable[[int], None]) -> None:
    """Send at the pace, as far as the broker takes it, with little in flight."""

    def acknowledged(error: object, message: Message) -> None:
        if error is not None:
            sys.exit(str(error))
        arrived(len(message.value() or b""))

    producer = Producer(
        {
            "bootstrap.servers": arguments.bootstrap,
            "enable.idempotence": True,
            "batch.size": 100_000,
            "queue.buffering.max.messages": 400,
            "on_delivery": acknowledged,
            "log_level": 0,
            **dict(arguments.client),
        }
    )
    payload = os.urandom(RECORD_BYTES)
    number, pacer = 0, Pacer()
    ends_at = time.perf_counter() + arguments.seconds
    while time.perf_counter() < ends_at:
        try:
            producer.produce(arguments.topic, payload, partition=number % PARTITIONS)
            number += 1
            pacer.wait(RECORD_BYTES)
        except BufferError:
            producer.poll(0.05)
        producer.poll(0)
    producer.purge()


def consume(arguments: argparse.Namespace, arrived: Callable[[int], None]) -> None:
    """Read at the pace, as far as the broker gives it, a little at a time."""
    consumer = Consumer(
        {
            "bootstrap.servers": arguments.bootstrap,
            "group.id": "benchmark",
            "enable.auto.commit": False,
            "fetch.max.bytes": 1_000_000,
            "fetch.message.max.bytes": 100_000,
            "queued.max.messages.kbytes": 400,
            # Else librdkafka waits for a second whenever its queue is full.
            "fetch.queue.backoff.ms": 10,
            "log_level": 0,
            **dict(arguments.client),
        }
    )
    consumer.assign([TopicPartition(arguments.topic, p, 0) for p in range(PARTITIONS)])
    pacer = Pacer()
    ends_at = time.perf_counter() + arguments.seconds
    while time.perf_counter() < ends_at:
        for message in consumer.consume(100, timeout=0.05):
            if message.error() is None:
                arrived(len(message.value() or b""))
                pacer.wait(RECORD_BYTES)
    consumer.close()


def main() -> None:
    """Run one load, and print what it reached behind the warm-up."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=("produce", "consume"))
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--seconds", type=float, required=True)
    add_client(parser)
    arguments = parser.parse_args()
    started = time.perf_counter()
    counted = 0

    def arrived(size: int) -> None:
        nonlocal counted
        elapsed = time.perf_counter() - started
        if WARMUP_SECONDS <= elapsed < arguments.seconds:
            counted += size

    {"produce": produce, "consume": consume}[arguments.kind](arguments, arrived)
    print(json.dumps({"bytes_a_second": counted / (arguments.seconds - WARMUP_SECONDS)}))


if __name__ == "__main__":
    main()
