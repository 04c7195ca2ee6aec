"""Three checks of the topics that the Spark demo's pipeline has written.

- Atomic snapshots, while it is running and its drivers are killed.
- A read_committed consumer, record by record, after its end.
- Spark without a broker, which reads the topic of rows as a table.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from confluent_kafka import Consumer, KafkaError, Message, TopicPartition
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from scripts.spark_demo.changes import Change, Row, board_after, operations_of
from scripts.spark_demo.driver import AUDIT, BOARD

PARTITIONS = 4
HEADER = "change"
LOOKS = 3
"""One look after each kill, and one at the end."""
READ_SECONDS_MAX = 240.0


@dataclass(frozen=True, slots=True)
class Look:
    """The records of both topics at one moment, by an atomic snapshot."""

    changes: int
    alone: int
    """Changes in only one of the topics."""
    repeated: int


@dataclass(slots=True)
class Pipelined:
    """The observations of the changes."""

    changes: Sequence[Change]
    aborted_transactions: int = 0
    committed_transactions: int = 0
    batches: int = 0
    kills: int = 0
    repeated_batches: int = 0
    """Batches that Spark repeated although they were in both topics."""
    looks: list[Look] = field(default_factory=list)
    copies: dict[str, Counter[int]] = field(
        default_factory=lambda: {AUDIT: Counter(), BOARD: Counter()}
    )
    altered: int = 0
    out_of_order: int = 0
    board: dict[str, Row] = field(default_factory=dict)
    """The last record of each key in the topic of rows, read without a broker."""
    seconds: float = 0.0

    @property
    def lost(self) -> int:
        numbers = {change.number for change in self.changes}
        return sum(len(numbers - copies.keys()) for copies in self.copies.values())

    @property
    def duplicated(self) -> int:
        return sum(copies.total() - len(copies) for copies in self.copies.values())

    @property
    def alone(self) -> int:
        return sum(look.alone for look in self.looks)

    @property
    def right(self) -> bool:
        wrong = self.lost + self.duplicated + self.alone + self.altered + self.out_of_order
        wrong += sum(look.repeated for look in self.looks)
        is_whole = len(self.looks) == LOOKS == self.kills + 1
        return wrong == 0 and is_whole and self.board == board_after(self.changes)


def look(spark: SparkSession, store: str) -> Look:
    """Compare both topics at one moment: each change must be in both or in neither."""
    frame = (
        spark.read.format("tidelog")
        .schema("topic string, headers array<struct<key:string,value:binary>>")
        .options(store=store, subscribe=f"{AUDIT},{BOARD}", snapshot="atomic")
        .load()
    )
    number = f.filter("headers", lambda header: header["key"] == HEADER)[0]["value"]
    each = (
        frame.groupBy(number)
        .agg(
            f.count_if(f.col("topic") == AUDIT).alias("audit"),
            f.count_if(f.col("topic") == BOARD).alias("board"),
        )
        .agg(
            f.count("*"),
            f.count_if(f.expr("audit = 0 or board = 0")),
            f.count_if(f.expr("audit > 1 or board > 1")),
        )
    )
    [row] = each.collect()
    return Look(*row)


def check(reader: Consumer, found: Pipelined) -> None:
    """Read both topics as a read_committed consumer, and compare them with the log."""
    places = [TopicPartition(t, p, 0) for t in (AUDIT, BOARD) for p in range(PARTITIONS)]
    reader.assign(places)
    left = {(place.topic, place.partition) for place in places}
    newest: dict[tuple[str, bytes], int] = {}
    deadline = time.monotonic() + READ_SECONDS_MAX
    while left and time.monotonic() < deadline:
        for message in reader.consume(10_000, timeout=0.5):
            if message.error() is None:
                _compare(message, newest, found)
            elif message.error().code() == KafkaError._PARTITION_EOF:
                left.discard((message.topic(), message.partition()))


def _compare(message: Message, newest: dict[tuple[str, bytes], int], found: Pipelined) -> None:
    topic = message.topic()
    number = int(dict(message.headers())[HEADER])
    change = found.changes[number]
    found.copies[topic][number] += 1
    found.out_of_order += number < newest.get((topic, message.key()), -1)
    newest[topic, message.key()] = number
    value = None if message.value() is None else json.loads(message.value())
    if topic == AUDIT:
        expected: object = {"change": number, "operation": change.operation}
    else:
        expected = change.after
    found.altered += (message.key().decode(), value) != (change.key, expected)


def read_board(spark: SparkSession, store: str, found: Pipelined) -> None:
    """Read the board from the topic of its rows: each key's last record, except deletions."""
    rows = (
        spark.read.format("tidelog")
        .schema("key binary, value binary, offset bigint")
        .options(store=store, subscribe=BOARD)
        .load()
        .groupBy(f.col("key").cast("string"))
        # A row's records are all in one partition. A struct is not null if its value is null.
        .agg(f.max_by(f.struct("value"), "offset")["value"].cast("string").alias("value"))
        .where("value is not null")
    )
    found.board = {key: json.loads(value) for key, value in rows.collect()}


def report(found: Pipelined) -> None:
    """Print the findings."""
    print("\nA database's changes through Spark into two topics, exactly once")
    operations = operations_of(found.changes)
    made = ", ".join(f"{count:,} {operation}s" for operation, count in operations.items())
    print(f"  changes {len(found.changes):,}: {made}")
    print(
        f"  transactions of the database {found.committed_transactions}, and"
        f" {found.aborted_transactions} aborted and written again"
    )
    print(
        f"  batches {found.batches}, drivers killed {found.kills}, batches run again though they"
        f" were in both topics {found.repeated_batches}"
    )
    for topic, copies in found.copies.items():
        print(f"  {topic}: {copies.total():,} records seen by read_committed")
    print(f"  lost {found.lost}, duplicated {found.duplicated}, altered {found.altered}")
    print(f"  out of order within their key {found.out_of_order}")
    print(f"  in one topic alone, at {len(found.looks)} looks, {found.alone}")
    is_same = found.board == board_after(found.changes)
    print(
        f"  the board from its topic, with no broker there: {len(found.board):,} rows,"
        f" {'as in the database' if is_same else 'NOT as in the database'}"
    )
    print(f"  took {found.seconds:.1f} s")
