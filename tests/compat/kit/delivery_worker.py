"""A worker that moves records one by one with a given guarantee, and may kill itself between its
two steps.

    python -m tests.compat.kit.delivery_worker LEVEL BOOTSTRAP GROUP SOURCE TARGET COUNT DIES_AT

`LEVEL`: at-least-once (first the output, then the offset), at-most-once (first the offset, then the
output), exactly-once (both in a transaction). The worker ends at offset `COUNT`. If `DIES_AT` is
given, it dies between the two steps of the record with that number.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable

from confluent_kafka import Consumer, Producer, TopicPartition

SECONDS_MAX = 120.0


def main(
    level: str, bootstrap: str, group: str, source: str, target: str, count: str, dies_at: str
) -> None:
    """Run the worker with the arguments of the command line."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
        }
    )
    settings: dict[str, object] = {"bootstrap.servers": bootstrap, "linger.ms": 0}
    if level == "exactly-once":
        settings["transactional.id"] = group
    producer = Producer(settings)
    if level == "exactly-once":
        producer.init_transactions(SECONDS_MAX)
    place = TopicPartition(source, 0)
    [committed] = consumer.committed([place], SECONDS_MAX)
    offset = max(committed.offset, 0)
    consumer.assign([TopicPartition(source, 0, offset)])
    while offset < int(count):
        message = consumer.poll(SECONDS_MAX)
        assert message is not None
        assert not message.error(), message.error()
        value, offset = message.value(), message.offset() + 1
        next_place = TopicPartition(source, 0, offset)

        def put(output: bytes = value) -> None:
            producer.produce(target, output, partition=0)
            assert producer.flush(SECONDS_MAX) == 0

        def commit(following: TopicPartition = next_place) -> None:
            if level == "exactly-once":
                metadata = consumer.consumer_group_metadata()
                producer.send_offsets_to_transaction([following], metadata)
            else:
                consumer.commit(offsets=[following], asynchronous=False)

        steps: list[Callable[[], None]] = [put, commit]
        if level == "at-most-once":
            steps.reverse()
        if level == "exactly-once":
            producer.begin_transaction()
        steps[0]()
        if value == dies_at.encode():
            os.kill(os.getpid(), signal.SIGKILL)
        steps[1]()
        if level == "exactly-once":
            producer.commit_transaction()
    consumer.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
