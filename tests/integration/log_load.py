"""Threads that write to topics and read them continuously. They record acknowledgements and read
records."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    IsolationLevel,
    KafkaError,
    Message,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, OffsetSpec

from tests.integration.log_judge import COMMITTED, Fate, Ledger, LogStarts, Place, Sent, Walk

SECONDS_MAX = 90
"""The limit of every wait that should be short."""
VALUE_BYTES = 500
KEYS = 300


@dataclass(slots=True)
class Crew:
    """Threads that go on until they are told to stop, or until one of them fails."""

    stopping: threading.Event = field(default_factory=threading.Event)
    failures: list[Exception] = field(default_factory=list)
    _threads: list[threading.Thread] = field(default_factory=list)

    def start(self, work: Callable[[], None], name: str) -> None:
        """Begin a piece of work, which looks at `stopping`."""

        def run() -> None:
            try:
                work()
            except Exception as error:  # noqa: BLE001 - it fails the test, in `check`
                error.add_note(f"in {name}")
                self.failures.append(error)
                self.stopping.set()

        thread = threading.Thread(target=run, name=name)
        self._threads.append(thread)
        thread.start()

    def stop(self) -> None:
        """End all threads and wait for them. Raises the error of a thread that has failed."""
        self.stopping.set()
        for thread in self._threads:
            thread.join(2 * SECONDS_MAX)
            assert not thread.is_alive(), f"{thread.name} does not end"
        self.check()

    def check(self) -> None:
        """Raise the error of a thread that has failed."""
        if self.failures:
            raise self.failures[0]


class Sender:
    """A producer that notes its acknowledgements in the ledger."""

    def __init__(
        self, bootstrap: str, places: list[Place], ledger: Ledger, name: str, **more: object
    ) -> None:
        self.name = name
        self._places = places
        self._ledger = ledger
        self._chance = random.Random(name)
        self._number = 0
        self.producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "linger.ms": 20,
                "compression.type": self._chance.choice(("none", "lz4", "zstd")),
                "delivery.timeout.ms": SECONDS_MAX * 1000,
                "log_level": 0,
                **more,
            }
        )

    def send(self, count: int, fate: Fate) -> None:
        """Send some records, including tombstones, to each place."""
        for place in self._places * count:
            self._number += 1
            key = b"%d" % self._chance.randrange(KEYS)
            value: bytes | None = f"{self.name} {self._number} ".encode().ljust(VALUE_BYTES, b".")
            if self._number % 13 == 0:
                value = None
            sent = Sent(key, value, time.monotonic(), fate)
            self.producer.produce(
                place.topic, value, key, place.partition, on_delivery=self._note(place, sent)
            )
            self.producer.poll(0)

    def flush(self) -> None:
        """Wait until all records are acknowledged."""
        assert self.producer.flush(SECONDS_MAX) == 0, f"{self.name} is not answered"

    def _note(self, place: Place, sent: Sent) -> Callable[[KafkaError | None, Message], None]:
        def told(error: KafkaError | None, message: Message) -> None:
            assert error is None, f"{self.name}: {error}"
            offset = message.offset()
            assert offset is not None
            self._ledger.note(place, offset, sent)

        return told


def write_plainly(sender: Sender, crew: Crew, pause_seconds: float) -> None:
    """Send records outside of transactions."""
    while not crew.stopping.wait(pause_seconds):
        sender.send(4, COMMITTED)
    sender.flush()


def write_in_transactions(sender: Sender, crew: Crew, pause_seconds: float) -> None:
    """Run transactions over all places. Some stay open for a while, and every third is aborted."""
    chance, number = random.Random(sender.name), 0
    sender.producer.init_transactions(SECONDS_MAX)
    while not crew.stopping.wait(pause_seconds):
        number += 1
        fate = Fate()
        sender.producer.begin_transaction()
        for _ in range(2):
            sender.send(3, fate)
            # The transaction stays open, with records of other producers behind it.
            crew.stopping.wait(chance.choice((0, 0, 0.5)))
        sender.flush()
        if number % 3:
            sender.producer.commit_transaction(SECONDS_MAX)
        else:
            sender.producer.abort_transaction(SECONDS_MAX)
        fate.is_committed = number % 3 != 0


class Reader:
    """A consumer that reads places from their beginnings."""

    def __init__(
        self, bootstrap: str, places: Iterable[Place], ledger: Ledger, isolation: str
    ) -> None:
        committed_only = isolation == "read_committed"
        self.walks = {place: Walk(place, ledger, committed_only) for place in places}
        self.ended: set[Place] = set()
        """The partitions whose end the reader has met."""
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "readers",
                "isolation.level": isolation,
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "auto.offset.reset": "earliest",
                "fetch.wait.max.ms": 100,
                "log_level": 0,
            }
        )
        self._consumer.assign([TopicPartition(*place, OFFSET_BEGINNING) for place in self.walks])

    def read(self, seconds: float = 0.2) -> None:
        """Read for a moment."""
        for message in self._consumer.consume(1000, timeout=seconds):
            self._take(message, time.monotonic())

    def read_to_ends(self) -> None:
        """Read on until the ends of all places were met."""
        self._read_until(lambda: self.ended == self.walks.keys())

    def read_to(self, ends: dict[Place, int]) -> None:
        """Read on until these offsets are reached."""
        self._read_until(lambda: all(self.walks[place].next >= end for place, end in ends.items()))

    def _read_until(self, is_done: Callable[[], bool]) -> None:
        deadline = time.monotonic() + SECONDS_MAX
        while not is_done():
            self.read()
            assert time.monotonic() < deadline, f"not at the ends: {self.walks}"

    def close(self) -> None:
        self._consumer.close()

    def _take(self, message: Message, now: float) -> None:
        topic, partition, offset = message.topic(), message.partition(), message.offset()
        assert topic is not None
        assert partition is not None
        assert offset is not None
        place, error = Place(topic, partition), message.error()
        if error is None:
            key, value = message.key(), message.value()
            assert isinstance(key, bytes)
            assert value is None or isinstance(value, bytes)
            self.walks[place].take(offset, key, value, now)
        else:
            assert error.code() == KafkaError._PARTITION_EOF, error
            self.walks[place].reach(offset, now)
            self.ended.add(place)


def ask_ends(admin: AdminClient, places: Iterable[Place], isolation: str) -> dict[Place, int]:
    """The high watermarks, or the last stable offsets."""
    level = IsolationLevel[isolation.upper()]
    return _ask(admin, places, OffsetSpec.latest(), level)


def follow_log_starts(
    admin: AdminClient, places: list[Place], starts: LogStarts, crew: Crew
) -> None:
    """Ask for the log starts again and again."""
    while not crew.stopping.wait(0.2):
        note_log_starts(admin, places, starts)


def note_log_starts(admin: AdminClient, places: list[Place], starts: LogStarts) -> None:
    """Ask once."""
    asked_at = time.monotonic()
    level = IsolationLevel.READ_UNCOMMITTED
    starts.note(asked_at, _ask(admin, places, OffsetSpec.earliest(), level))


def _ask(
    admin: AdminClient, places: Iterable[Place], spec: OffsetSpec, level: IsolationLevel
) -> dict[Place, int]:
    asked = {TopicPartition(*place): spec for place in places}
    found = admin.list_offsets(asked, isolation_level=level, request_timeout=SECONDS_MAX)
    return {
        Place(each.topic, each.partition): answer.result().offset for each, answer in found.items()
    }
