"""A producer to many partitions that tells when each of its records was acknowledged."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

from confluent_kafka import Producer

from benchmarks.harness.load import percentile

RECORD = b"x" * 100
SECONDS_MAX = 300.0


class Traffic:
    """An idempotent librdkafka producer whose reports are handled at once, by a thread."""

    def __init__(self, bootstrap: str, topic: str, **settings: object) -> None:
        self._topic = topic
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "linger.ms": 0,
                "socket.nagle.disable": True,
                "log_level": 0,
                **settings,
            }
        )
        self._failures: list[str] = []
        self._ends = threading.Event()
        self._polls = threading.Thread(target=self._poll, daemon=True)
        self._polls.start()

    def __enter__(self) -> Traffic:
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        self._polls.join()

    def leaders(self) -> dict[int, int]:
        """The broker that leads each partition."""
        found = self._producer.list_topics(self._topic, timeout=60).topics[self._topic]
        return {number: each.leader for number, each in found.partitions.items()}

    def send(self, partition: int, then: Callable[[float], object]) -> None:
        """Send one record; `then` hears the moment of its acknowledgement."""

        def acknowledged(error: object, _: object) -> None:
            if error is None:
                then(time.perf_counter())
            else:
                self._failures.append(str(error))

        while True:
            try:
                self._producer.produce(
                    self._topic, RECORD, partition=partition, on_delivery=acknowledged
                )
                return
            except BufferError:
                time.sleep(0.01)

    def round(self, partitions: Iterable[int]) -> list[float]:
        """Send a record to each of the partitions, and wait: the moments of acknowledgement."""
        moments: list[float] = []
        for each in partitions:
            self.send(each, moments.append)
        self.flush()
        return moments

    def flush(self) -> None:
        """Wait until all records are acknowledged. Raises RuntimeError if one is not."""
        left = self._producer.flush(SECONDS_MAX)
        if left or self._failures:
            raise RuntimeError(f"{left} records are not acknowledged; {self._failures[:1]}")

    def _poll(self) -> None:
        while not self._ends.is_set():
            self._producer.poll(0.05)


def percentiles(values: Iterable[float]) -> dict[str, Any]:
    """The median, the 99th percentile and the largest of the values, and their number."""
    ordered = sorted(values)
    return {
        "p50": percentile(ordered, 0.50),
        "p99": percentile(ordered, 0.99),
        "largest": ordered[-1],
        "count": len(ordered),
    }
