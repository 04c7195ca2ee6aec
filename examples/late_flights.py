"""Copies late flights from one topic to another, each exactly once.

    python examples/late_flights.py 127.0.0.1:9092 --worker 1

Several workers share the partitions of `flights`; each needs a number of its own. A worker that is
killed at any moment, and started again, loses no flight and repeats none.
"""

from __future__ import annotations

import argparse
import contextlib
import json
from collections.abc import Callable

from tidelog import Admin, Consumer, KafkaRequestError, Message, NewMessage, Producer, exactly_once

SOURCE = "flights"
TARGET = "late-flights"
LATE_MINUTES = 15


def late(message: Message) -> NewMessage | None:
    """The transform of one message; None drops it."""
    flight = json.loads(message.value)
    if flight["delay_minutes"] < LATE_MINUTES:
        return None
    return NewMessage(TARGET, message.value, message.key)


def create_topic(bootstrap: str, name: str) -> None:
    """Create the topic, unless another worker has."""
    try:
        Admin(bootstrap).create_topic(name, partitions=3)
    except KafkaRequestError as error:
        if error.name != "TOPIC_ALREADY_EXISTS":
            raise


def work(bootstrap: str, worker: int, stop: Callable[[], bool]) -> None:
    """Copy until `stop()`."""
    for name in (SOURCE, TARGET):
        create_topic(bootstrap, name)
    with (
        Consumer(
            bootstrap,
            SOURCE,
            group="late-flights",
            auto_offset_reset="earliest",
            enable_auto_commit=False,
        ) as source,
        Producer(bootstrap, transactional_id=f"late-flights-{worker}") as sink,
    ):
        exactly_once(source, sink, late, stop=stop)


def main() -> None:
    """Run a worker until Ctrl-C."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bootstrap", help="a broker's HOST:PORT")
    parser.add_argument("--worker", type=int, default=1)
    arguments = parser.parse_args()
    # The batch that Ctrl-C interrupts is done again at the next start, if it was not committed.
    with contextlib.suppress(KeyboardInterrupt):
        work(arguments.bootstrap, arguments.worker, lambda: False)


if __name__ == "__main__":
    main()
