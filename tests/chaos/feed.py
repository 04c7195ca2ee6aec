"""The input of the ETL: numbered records, from a separate thread or on demand."""

from __future__ import annotations

import threading

from confluent_kafka import KafkaError, Message, Producer

from tests.chaos.etl import SOURCE
from tests.spark.history import PARTITIONS

BURST, BURST_SECONDS = 20, 0.5
FLUSH_SECONDS_MAX = 300.0


class Feed:
    """An idempotent producer that survives its broker."""

    def __init__(self, bootstrap: str) -> None:
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "linger.ms": 2,
                "message.timeout.ms": 300_000,
                "reconnect.backoff.max.ms": 200,
                "log_level": 0,
            }
        )
        self.sent = 0
        self.acknowledged = 0
        self._failed: list[str] = []
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def send(self, count: int) -> None:
        """Send this many more, to the partitions in turn, and wait until they are durable."""
        self._send(count)
        self._flush()

    def start(self) -> None:
        """Send bursts again and again, even while the broker is away."""
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def stop(self) -> None:
        """Stop sending, and wait until all sent records are durable."""
        if self._thread is not None:
            self._over.set()
            self._thread.join()
            self._thread = None
            self._flush()

    def rest(self, seconds: float) -> None:
        """Let the feed go on for a while."""
        self._over.wait(seconds)

    def give_up(self) -> None:
        """Stop without waiting for sent records: the test has failed."""
        if self._thread is not None:
            self._over.set()
            self._thread.join()

    def _run(self) -> None:
        while not self._over.wait(BURST_SECONDS):
            self._send(BURST)
            self._producer.poll(0)

    def _send(self, count: int) -> None:
        for number in range(self.sent, self.sent + count):
            self._producer.produce(
                SOURCE,
                b"%d" % number,
                b"k%d" % (number % 100),
                partition=number % PARTITIONS,
                on_delivery=self._remember,
            )
        self.sent += count

    def _flush(self) -> None:
        left = self._producer.flush(FLUSH_SECONDS_MAX)
        assert left == 0, f"{left} records were not acknowledged"
        assert self._failed == []
        assert self.acknowledged == self.sent

    def _remember(self, error: KafkaError | None, _message: Message) -> None:
        if error is None:
            self.acknowledged += 1
        else:
            self._failed.append(str(error))
