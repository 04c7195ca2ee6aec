"""Fills a topic for Spark, on Tidelog and on Kafka alike: the same records in the same order.

Half of their bytes compress well.

    python -m benchmarks.tables.spark_load fill --bootstrap HOST:PORT --topic T --records N ...
"""

from __future__ import annotations

import argparse
import json
import random
import time

from confluent_kafka import Producer

DIFFERENT = 50_000
RECORD_BYTES = 250
_SEED = 7
_FLUSH_SECONDS_MAX = 600.0


def records() -> list[tuple[bytes, bytes]]:
    """Keys and values in the order of sending, which repeats."""
    chance = random.Random(_SEED)
    found = []
    for number in range(DIFFERENT):
        fields = {
            "id": chance.getrandbits(64),
            "carrier": chance.choice(["UA", "AA", "DL", "B6", "WN"]),
            "origin": chance.choice(["EWR", "JFK", "LGA"]),
            "delay_minutes": chance.randrange(-20, 600),
            "token": chance.randbytes(40).hex(),
        }
        value = json.dumps(fields).encode()
        key = b"%08d" % (number % 5_000)
        found.append((key, value.ljust(RECORD_BYTES - len(key), b" ")))
    return found


def fill(arguments: argparse.Namespace) -> dict[str, float]:
    """Send the records, a batch's worth to one partition and then to the next."""
    failures: list[str] = []
    producer = Producer(
        {
            "bootstrap.servers": arguments.bootstrap,
            "enable.idempotence": True,
            "batch.size": 1 << 20,
            "batch.num.messages": 1_000_000,
            "linger.ms": 20,
            "queue.buffering.max.messages": 1_000_000,
            "delivery.report.only.error": True,
            "on_delivery": lambda error, _: failures.append(str(error)),
            "log_level": 0,
        }
    )
    producer.list_topics(arguments.topic, timeout=30)
    chosen = records()
    run = (1 << 20) // (RECORD_BYTES + 20)
    started = time.perf_counter()
    for number in range(arguments.records):
        key, value = chosen[number % DIFFERENT]
        partition = number // run % arguments.partitions
        # Timestamps rise by a millisecond a record, so a share of the time is one of the offsets.
        timestamp = arguments.first_ms + number
        while True:
            try:
                producer.produce(arguments.topic, value, key, partition, timestamp=timestamp)
                break
            except BufferError:
                producer.poll(0.01)
        if number % 1000 == 0:
            producer.poll(0)
    left = producer.flush(_FLUSH_SECONDS_MAX)
    if left or failures:
        raise SystemExit(f"{left} records were not acknowledged, {len(failures)} failed")
    return {"seconds": time.perf_counter() - started}


def main() -> None:
    """Fill a topic and print the time it took."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=("fill",))
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--records", type=int, required=True)
    parser.add_argument("--partitions", type=int, required=True)
    parser.add_argument("--first-ms", type=int, required=True)
    print(json.dumps(fill(parser.parse_args())))


if __name__ == "__main__":
    main()
