"""The client's side of a measurement, in a process of its own; always with confluent-kafka.

    python -m benchmarks.harness.load produce --bootstrap HOST:PORT --topic T ...
    python -m benchmarks.harness.load consume --bootstrap HOST:PORT --topic T ...
    python -m benchmarks.harness.load latency --bootstrap HOST:PORT --topic T ...

Prints one JSON object: records, bytes, seconds, the client's own CPU seconds, and latencies in ms.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import struct
import sys
import time
from itertools import count
from typing import Any

from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition

from tidelog.references import resolved

SECONDS_MAX = 300.0
WARMUP_SECONDS = 2.0
_MIB = 1 << 20


def add_client(parser: argparse.ArgumentParser) -> None:
    """Add the option for properties of `produce` and `consume`, as NAME=VALUE.

    References in values are replaced.
    """
    parser.add_argument("--client", type=_client_property, action="append", default=[])


def _client_property(text: str) -> tuple[str, str]:
    name, _, value = text.partition("=")
    return name, resolved(value)


def percentile(values: list[float], share: float) -> float:
    """The value below which `share` of the sorted values lie."""
    return values[min(len(values) - 1, int(share * len(values)))]


def produce(arguments: argparse.Namespace) -> dict[str, Any]:
    """Send `records` records of one size at full speed, round robin over the partitions."""
    pool = os.urandom(4 * _MIB + arguments.record_bytes)
    payloads = [
        pool[start : start + arguments.record_bytes]
        for start in range(0, 4 * _MIB, max(1, 4 * _MIB // 64))
    ]
    failures: list[str] = []
    producer = Producer(
        {
            "bootstrap.servers": arguments.bootstrap,
            "acks": "all",
            "enable.idempotence": arguments.idempotent,
            "batch.size": arguments.batch_bytes,
            "batch.num.messages": 1_000_000,
            "linger.ms": arguments.linger_ms,
            "message.max.bytes": 8 * _MIB,
            "queue.buffering.max.messages": 1_000_000,
            "queue.buffering.max.kbytes": 256 * 1024,
            "delivery.report.only.error": True,
            "on_delivery": lambda error, _: failures.append(str(error)),
            "log_level": 0,
            **dict(arguments.client),
        }
    )
    producer.list_topics(arguments.topic, timeout=30)
    run = max(1, arguments.batch_bytes // (arguments.record_bytes + 20))
    started = time.perf_counter()
    for number in range(arguments.records):
        # A batch's worth to one partition, then to the next: batches fill as with a busy client.
        partition = number // run % arguments.partitions
        while True:
            try:
                producer.produce(
                    arguments.topic, payloads[number % len(payloads)], partition=partition
                )
                break
            except BufferError:
                producer.poll(0.01)
        if number % 1000 == 0:
            producer.poll(0)
    left = producer.flush(SECONDS_MAX)
    seconds = time.perf_counter() - started
    if left or failures:
        sys.exit(
            f"{left} records were not acknowledged in {SECONDS_MAX:.0f} s,"
            f" {len(failures)} failed: {failures[:1]}"
        )
    return {"records": arguments.records, "seconds": seconds}


def consume(arguments: argparse.Namespace) -> dict[str, Any]:
    """Read `records` records from all partitions; the clock starts with the first one."""
    consumer = Consumer(
        {
            "bootstrap.servers": arguments.bootstrap,
            "group.id": "benchmark",
            "enable.auto.commit": False,
            "fetch.wait.max.ms": 100,
            "fetch.message.max.bytes": 8 * _MIB,
            "fetch.max.bytes": 64 * _MIB,
            "queued.max.messages.kbytes": 512 * 1024,
            "check.crcs": False,
            "log_level": 0,
            **dict(arguments.client),
        }
    )
    consumer.assign([TopicPartition(arguments.topic, p, 0) for p in range(arguments.partitions)])
    deadline = time.perf_counter() + SECONDS_MAX
    first = consumer.poll(SECONDS_MAX)
    started = time.perf_counter()
    if first is None or first.error() is not None:
        sys.exit(f"the first record did not come: {first and first.error()}")
    seen = 1
    while seen < arguments.records and time.perf_counter() < deadline:
        for message in consumer.consume(min(10_000, arguments.records - seen), timeout=1.0):
            error = message.error()
            if error is None:
                seen += 1
            elif error.code() != KafkaError._PARTITION_EOF:
                sys.exit(str(error))
    seconds = time.perf_counter() - started
    consumer.close()
    if seen < arguments.records:
        sys.exit(f"only {seen} of {arguments.records} records came in {SECONDS_MAX:.0f} s")
    return {"records": seen, "seconds": seconds}


def latency(arguments: argparse.Namespace) -> dict[str, Any]:
    """Send one record after the other, and measure each call until its acknowledgement.

    Sends at least the given number, and for the given time.
    """
    producer = Producer(
        {
            "bootstrap.servers": arguments.bootstrap,
            "acks": "all",
            "linger.ms": 0,
            "socket.nagle.disable": True,
            "log_level": 0,
        }
    )
    payload = os.urandom(arguments.record_bytes)
    took: list[float] = []

    def acknowledged(error: object, _: object) -> None:
        if error is not None:
            sys.exit(str(error))
        took.append(time.perf_counter() - sent)

    ends_at = time.perf_counter() + arguments.seconds
    for number in count():
        sent = time.perf_counter()
        if number >= arguments.records + arguments.warmup and sent >= ends_at:
            break
        producer.produce(
            arguments.topic,
            payload,
            partition=number % arguments.partitions,
            on_delivery=acknowledged,
        )
        before = len(took)
        while len(took) == before:
            producer.poll(0.1)
    values = sorted(1000 * t for t in took[arguments.warmup :])
    return {
        "records": len(values),
        "seconds": sum(values) / 1000,
        "p50_ms": percentile(values, 0.50),
        "p99_ms": percentile(values, 0.99),
    }


def paced(arguments: argparse.Namespace) -> dict[str, Any]:
    """Send so many bytes a second for so long, record by record over the partitions.

    The client has its default settings. Latencies count from the moment at which a record was due
    to its acknowledgement. The first seconds do not count.
    """
    producer = Producer(
        {
            "bootstrap.servers": arguments.bootstrap,
            "enable.idempotence": arguments.idempotent,
            "log_level": 0,
        }
    )
    producer.list_topics(arguments.topic, timeout=30)
    payload = os.urandom(arguments.record_bytes)
    took: list[float] = []
    failures: list[str] = []
    interval = arguments.record_bytes / arguments.bytes_a_second
    started = time.perf_counter()

    def send(number: int) -> None:
        due = started + number * interval

        def acknowledged(error: object, _: object) -> None:
            if error is not None:
                failures.append(str(error))
            elif due >= started + WARMUP_SECONDS:
                took.append(time.perf_counter() - due)

        partition = number % arguments.partitions
        producer.produce(arguments.topic, payload, partition=partition, on_delivery=acknowledged)

    number = 0
    while (now := time.perf_counter()) < started + arguments.seconds:
        while started + number * interval <= now:
            send(number)
            number += 1
        producer.poll(min(0.001, max(0.0, started + number * interval - time.perf_counter())))
    left = producer.flush(SECONDS_MAX)
    seconds = time.perf_counter() - started
    if left or failures:
        sys.exit(f"{left} records were not acknowledged, {len(failures)} failed: {failures[:1]}")
    values = sorted(1000 * t for t in took)
    return {
        "records": number,
        "seconds": seconds,
        "p50_ms": percentile(values, 0.50),
        "p99_ms": percentile(values, 0.99),
    }


def tail(arguments: argparse.Namespace) -> dict[str, Any]:
    """Consume at the end of the log while another client writes.

    Latencies count from the moment at which a record was due to its arrival.
    """
    partitions = [TopicPartition(arguments.topic, p) for p in range(arguments.partitions)]
    consumer = Consumer(
        {
            "bootstrap.servers": arguments.bootstrap,
            "group.id": "tail",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "log_level": 0,
        }
    )
    consumer.assign(partitions)
    producer = Producer({"bootstrap.servers": arguments.bootstrap, "log_level": 0})
    padding = bytes(max(0, arguments.record_bytes - 8))
    interval = arguments.record_bytes / arguments.bytes_a_second
    started = time.perf_counter()
    sent = 0
    took: list[float] = []
    ends_at = started + arguments.seconds
    while (now := time.perf_counter()) < ends_at or len(took) < sent:
        if now > ends_at + SECONDS_MAX:
            sys.exit(f"only {len(took)} of {sent} records came")
        while now < ends_at and (due := started + sent * interval) <= now:
            producer.produce(
                arguments.topic, struct.pack("d", due) + padding, partition=sent % len(partitions)
            )
            sent += 1
        producer.poll(0)
        for message in consumer.consume(1000, timeout=0.001):
            if message.error() is None:
                due = struct.unpack_from("d", message.value() or b"")[0]
                took.append(time.perf_counter() - due)
    consumer.close()
    values = sorted(1000 * t for t in took[int(WARMUP_SECONDS / interval) :])
    return {
        "records": sent,
        "seconds": time.perf_counter() - started,
        "p50_ms": percentile(values, 0.50),
        "p99_ms": percentile(values, 0.99),
    }


LOADS = {
    "produce": produce,
    "consume": consume,
    "latency": latency,
    "paced": paced,
    "tail": tail,
}


def main() -> None:
    """Run one load and print what it measured."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=LOADS)
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--partitions", type=int, default=1)
    parser.add_argument("--records", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=0)
    parser.add_argument("--record-bytes", type=int, default=1024)
    parser.add_argument("--batch-bytes", type=int, default=_MIB)
    parser.add_argument("--linger-ms", type=int, default=20)
    parser.add_argument("--bytes-a-second", type=float, default=1e6)
    parser.add_argument("--warmup", type=int, default=50)
    parser.add_argument("--idempotent", action=argparse.BooleanOptionalAction, default=True)
    add_client(parser)
    arguments = parser.parse_args()
    result = LOADS[arguments.kind](arguments)
    used = resource.getrusage(resource.RUSAGE_SELF)
    result["client_cpu_seconds"] = used.ru_utime + used.ru_stime
    result["bytes"] = result["records"] * arguments.record_bytes
    print(json.dumps(result))


if __name__ == "__main__":
    main()
