"""The client's side of the measurements of transactions and groups, in a process of its own.

It always uses confluent-kafka.

    python -m benchmarks.broker.transaction_load commits --bootstrap HOST:PORT --topic T ...

Prints one JSON object.
"""

from __future__ import annotations

import argparse
import json
import threading
import time
from typing import Any

from confluent_kafka import Consumer, Producer

from benchmarks.harness.load import percentile

READY_SECONDS_MAX = 120.0


def producer_of(bootstrap: str, transactional_id: str | None) -> Producer:
    """A producer that sends at once; a transactional one is initialised."""
    settings = {
        "bootstrap.servers": bootstrap,
        "enable.idempotence": True,
        "linger.ms": 0,
        "socket.nagle.disable": True,
        "log_level": 0,
    }
    if transactional_id is None:
        return Producer(settings)
    producer = Producer({**settings, "transactional.id": transactional_id})
    producer.init_transactions(READY_SECONDS_MAX)
    return producer


def send(producer: Producer, topic: str, records: int, partitions: int) -> None:
    """Send so many records of 100 bytes over so many partitions, and wait for acknowledgements."""
    for number in range(records):
        producer.produce(topic, b"x" * 100, partition=number % partitions)
    if producer.flush(READY_SECONDS_MAX):
        raise RuntimeError("records were not acknowledged")


def commits(arguments: argparse.Namespace) -> dict[str, Any]:
    """Run one transaction after the other; measure acknowledgement and commit separately."""
    producer = producer_of(arguments.bootstrap, f"commits-{arguments.run}")
    sending, committing = [], []
    for _ in range(arguments.warmup + arguments.rounds):
        producer.begin_transaction()
        begun = time.perf_counter()
        send(producer, arguments.topic, 1, 1)
        sent = time.perf_counter()
        producer.commit_transaction(READY_SECONDS_MAX)
        committed = time.perf_counter()
        sending.append(1000 * (sent - begun))
        committing.append(1000 * (committed - sent))
    sending = sorted(sending[arguments.warmup :])
    committing = sorted(committing[arguments.warmup :])
    return {
        "send_p50_ms": percentile(sending, 0.50),
        "commit_p50_ms": percentile(committing, 0.50),
        "commit_p99_ms": percentile(committing, 0.99),
        "transactions": arguments.warmup + arguments.rounds,
    }


def rounds(arguments: argparse.Namespace) -> dict[str, Any]:
    """Send and flush, with or without a transaction around it, one round after the other."""
    transactional_id = f"rounds-{arguments.run}" if arguments.transactional else None
    producer = producer_of(arguments.bootstrap, transactional_id)
    took = []
    for _ in range(arguments.warmup + arguments.rounds):
        begun = time.perf_counter()
        if arguments.transactional:
            producer.begin_transaction()
        send(producer, arguments.topic, arguments.records, arguments.partitions)
        if arguments.transactional:
            producer.commit_transaction(READY_SECONDS_MAX)
        took.append(1000 * (time.perf_counter() - begun))
    took = sorted(took[arguments.warmup :])
    return {"p50_ms": percentile(took, 0.50)}


def concurrent(arguments: argparse.Namespace) -> dict[str, Any]:
    """Run many producers at once, each with transactions of one record, for some seconds."""
    producers = [
        producer_of(arguments.bootstrap, f"concurrent-{arguments.run}-{number}")
        for number in range(arguments.producers)
    ]
    counts = [0] * arguments.producers
    ends = time.perf_counter() + arguments.seconds

    def work(number: int) -> None:
        producer = producers[number]
        while time.perf_counter() < ends:
            producer.begin_transaction()
            partition = number % arguments.partitions
            producer.produce(arguments.topic, b"x" * 100, partition=partition)
            producer.commit_transaction(READY_SECONDS_MAX)
            counts[number] += 1

    started = time.perf_counter()
    threads = [threading.Thread(target=work, args=(number,)) for number in range(len(producers))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return {"transactions": sum(counts), "seconds": time.perf_counter() - started}


def rebalance(arguments: argparse.Namespace) -> dict[str, Any]:
    """Measure a large group until all members have partitions, and again after one has left."""
    consumers = [
        Consumer(
            {
                "bootstrap.servers": arguments.bootstrap,
                "group.id": f"group-{arguments.run}",
                "partition.assignment.strategy": "range",
                "enable.auto.commit": False,
                "log_level": 0,
            }
        )
        for _ in range(arguments.members)
    ]
    started = time.perf_counter()
    for consumer in consumers:
        consumer.subscribe([arguments.topic])
    formed = _await_shares(consumers, arguments.partitions) - started
    left = time.perf_counter()
    consumers.pop().close()
    shared_again = _await_shares(consumers, arguments.partitions) - left
    closers = [threading.Thread(target=consumer.close) for consumer in consumers]
    for closer in closers:
        closer.start()
    for closer in closers:
        closer.join()
    return {"formed_seconds": formed, "left_seconds": shared_again}


def _await_shares(consumers: list[Consumer], partitions: int) -> float:
    """The time when each member has partitions, and the group has each partition once."""
    deadline = time.perf_counter() + READY_SECONDS_MAX
    while time.perf_counter() < deadline:
        for consumer in consumers:
            consumer.poll(0.002)
        shares = [consumer.assignment() for consumer in consumers]
        owned = [(each.topic, each.partition) for share in shares for each in share]
        if all(shares) and len(owned) == len(set(owned)) == partitions:
            return time.perf_counter()
    raise RuntimeError("the group did not come to rest")


def main() -> None:
    """Run one load and print its measurements."""
    parser = argparse.ArgumentParser(description=__doc__)
    kinds = {
        "commits": commits,
        "rounds": rounds,
        "concurrent": concurrent,
        "rebalance": rebalance,
    }
    parser.add_argument("kind", choices=kinds)
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--run", default="0", help="makes names of ids and groups unique")
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--warmup", type=int, default=20)
    parser.add_argument("--records", type=int, default=1)
    parser.add_argument("--partitions", type=int, default=1)
    parser.add_argument("--producers", type=int, default=1)
    parser.add_argument("--members", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--transactional", action=argparse.BooleanOptionalAction, default=True)
    arguments = parser.parse_args()
    print(json.dumps(kinds[arguments.kind](arguments)))


if __name__ == "__main__":
    main()
