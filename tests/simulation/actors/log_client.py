"""A workload's Kafka client: single requests, and errors that state the outcome."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from tests.simulation.rules.history import Isolation, Key, StoredBatch


class RequestRefused(Exception):
    """The broker answered with an error. `code` is Kafka's number, `name` its name."""

    def __init__(self, code: int, name: str) -> None:
        super().__init__(f"{name} ({code})")
        self.code = code
        self.name = name


class NoAnswer(Exception):
    """No connection, a broken one, or no answer in time: the outcome is unknown."""


@dataclass(frozen=True, slots=True)
class OutgoingBatch:
    """One batch of values for a partition. Producer id -1 stands for a producer without
    idempotence."""

    key: Key
    values: tuple[str, ...]
    codec: str = "none"
    producer_id: int = -1
    producer_epoch: int = -1
    base_sequence: int = -1
    padding_bytes: int = 0


@dataclass(slots=True)
class Fetched:
    """The result of a fetch for one partition, without records below the position."""

    key: Key
    records: list[tuple[int, str]]
    next_offset: int
    high_watermark: int
    last_stable_offset: int | None = None
    batches: list[StoredBatch] = field(default_factory=list)
    log_start: int | None = None
    out_of_range: bool = False
    """The position has no record: the log begins behind it or ends before it."""
    host: str = ""
    """The host that answered."""


class LogClient(Protocol):
    """One client process's connection to the cluster. The workload repeats requests, the client
    does not.

    Every method may raise RequestRefused or NoAnswer, and no other exception because of a fault.
    """

    offset_host: str
    """The host that gave the last answer to `end_offset` or `log_start`."""

    async def create_topic(self, topic: str, partitions: int, configs: Mapping[str, str]) -> bool:
        """Create a topic. TOPIC_ALREADY_EXISTS is no error. Returns whether this request created
        it."""
        ...

    async def delete_topic(self, topic: str) -> None:
        """Delete a topic. UNKNOWN_TOPIC_OR_PARTITION is no error."""
        ...

    async def replace_topic(self, topic: str, partitions: int) -> bool:
        """Delete a topic if it is there, and create it. The same broker is asked for both. Returns
        whether this request created it."""
        ...

    async def init_producer_id(self) -> tuple[int, int]:
        """A fresh producer id and its epoch."""
        ...

    async def produce(self, batch: OutgoingBatch, acks: int = -1) -> int:
        """Append a batch. Returns the offset of its first record."""
        ...

    async def produce_and_end(self, batch: OutgoingBatch) -> tuple[int, int | None]:
        """Append a batch and, on the same connection before its answer, ask for the log's end.
        Returns the offset of the first record, and the end if the broker told it."""
        ...

    async def fetch(
        self, positions: Mapping[Key, int], isolation: Isolation, wait_seconds: float
    ) -> list[Fetched]:
        """Read from the positions; partitions that answered with an error are left out unless all
        did (then the first error is raised). To be out of range is an answer."""
        ...

    async def end_offset(self, key: Key, isolation: Isolation = "read_committed") -> int:
        """The offset behind the last record that readers are shown."""
        ...

    async def log_start(self, key: Key) -> int:
        """The offset of the log's start."""
        ...

    async def delete_records(self, key: Key, offset: int) -> int:
        """Delete the records below an offset. Returns the new log start."""
        ...

    def forget(self) -> None:
        """Look up the leaders again, at any broker, as clients do now and then."""
        ...

    async def close(self) -> None:
        """Release connections."""
        ...
