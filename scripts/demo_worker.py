"""The demo's worker: consume, transform, produce, exactly once.

Reads flights in a consumer group and writes two records for each, to two topics, in one transaction
with its input offsets. It aborts every third transaction on purpose and repeats it. Ends when it
has read all input. The parent may kill it at any moment and start another one.
Prints a line for each transaction: `committed N` or `aborted N`, with the number of its flights.
"""

from __future__ import annotations

import json
import sys

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer

GROUP = "derive"
TRANSACTIONAL_ID = "derive"
DELAYS, CARRIERS = "flights.delays", "flights.carriers"
IDLE_SECONDS = 2.0
SEND_OFFSETS_SECONDS = 10.0


def derive(value: bytes) -> tuple[bytes, bytes, bytes]:
    """The key of both derived records of a flight, and their values."""
    row = json.loads(value)
    carrier = row["carrier"]
    delay = {name: row[name] for name in ("origin", "dest", "dep_delay", "arr_delay")}
    distance = {name: row[name] for name in ("month", "day", "flight", "distance")}
    return carrier.encode(), json.dumps(delay).encode(), json.dumps(distance).encode()


class Worker:
    """A worker. A later one with the same ids fences it."""

    def __init__(self, bootstrap: str, batch: int, topics: list[str]) -> None:
        """`batch`: the maximum of flights in one transaction."""
        self.batch = batch
        self.consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": GROUP,
                # A new process replaces a killed one without a rebalance.
                "group.instance.id": "worker",
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "enable.partition.eof": True,
                "reconnect.backoff.max.ms": 200,
                "log_level": 0,
            }
        )
        self.producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "transactional.id": TRANSACTIONAL_ID,
                "linger.ms": 20,
                "compression.type": "lz4",
                # librdkafka waits without end to send a transaction's offsets to a coordinator that
                # has died. It looks for the new one when another connection ends.
                "connections.max.idle.ms": 2000,
                "reconnect.backoff.max.ms": 200,
                "log_level": 0,
            }
        )
        self.consumer.subscribe(topics)
        self.at_end: set[tuple[str, int]] = set()
        self.transactions = 0

    def run(self) -> None:
        """Run until all input is read."""
        self.producer.init_transactions()
        while True:
            messages = self._poll()
            if messages:
                self._transact(messages)
            elif self._is_done():
                break
        self.consumer.close()

    def _poll(self) -> list[Message]:
        found = []
        for message in self.consumer.consume(self.batch, timeout=IDLE_SECONDS):
            place = (message.topic(), message.partition())
            if message.error() is None:
                self.at_end.discard(place)
                found.append(message)
            elif message.error().code() == KafkaError._PARTITION_EOF:
                self.at_end.add(place)
        return found

    def _is_done(self) -> bool:
        assigned = {(each.topic, each.partition) for each in self.consumer.assignment()}
        return bool(assigned) and assigned <= self.at_end

    def _transact(self, messages: list[Message]) -> None:
        self.transactions += 1
        self.producer.begin_transaction()
        try:
            for message in messages:
                key, delay, distance = derive(message.value())
                self._produce(DELAYS, key, delay, message.headers())
                self._produce(CARRIERS, key, distance, message.headers())
            self.producer.send_offsets_to_transaction(
                self.consumer.position(self.consumer.assignment()),
                self.consumer.consumer_group_metadata(),
                SEND_OFFSETS_SECONDS,
            )
            if self.transactions % 3 == 0:
                self._abort(len(messages))
            else:
                self._end(self.producer.commit_transaction)
                print(f"committed {len(messages)}", flush=True)
        except KafkaException as error:
            # A retriable error is that of the offsets: their transaction is aborted and repeated.
            # Behind a failed message librdkafka takes no more: _STATE.
            cause = error.args[0]
            is_closed = cause.code() == KafkaError._STATE
            if not (is_closed or cause.txn_requires_abort() or cause.retriable()):
                raise
            self._abort(len(messages))

    def _produce(
        self, topic: str, key: bytes, value: bytes, headers: list[tuple[str, bytes]] | None
    ) -> None:
        while True:
            try:
                self.producer.produce(topic, value, key, headers=headers)
                return
            except BufferError:
                self.producer.poll(0.05)

    def _abort(self, count: int) -> None:
        """Abort, and read the same records again."""
        self._end(self.producer.abort_transaction)
        for place in self.consumer.committed(self.consumer.assignment(), timeout=60):
            place.offset = max(place.offset, 0)
            self.consumer.seek(place)
            self.at_end.discard((place.topic, place.partition))
        print(f"aborted {count}", flush=True)

    @staticmethod
    def _end(end: object) -> None:
        """Commit or abort, and retry until the outcome is known."""
        while True:
            try:
                end(60)  # type: ignore[operator]
            except KafkaException as error:
                if not error.args[0].retriable():
                    raise
            else:
                return


if __name__ == "__main__":
    Worker(sys.argv[1], int(sys.argv[2]), sys.argv[3:]).run()
