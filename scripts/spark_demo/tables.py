"""The Spark demo's first half: questions on the demo's topics, answered without a broker.

Each answer must be what pandas says of the source table.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

import pandas as pd
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from scripts.demo_worker import CARRIERS, DELAYS

Answer: TypeAlias = dict[tuple[object, ...], tuple[int, ...]]
"""Numbers by their keys."""

LATE_MINUTES = 15
SHOWN_ROWS = 3


@dataclass(frozen=True, slots=True)
class Question:
    """A question for both Spark and pandas."""

    name: str
    heading: str
    ask: Callable[[Topics], DataFrame]
    of_pandas: Callable[[pd.DataFrame], pd.DataFrame]
    keys: int
    """The number of key columns."""


@dataclass(slots=True)
class Found:
    """The result of a question."""

    question: Question
    answer: Answer
    wrong: int
    """Rows that differ from pandas' rows, exist only there, or are missing there."""
    seconds: float


@dataclass(slots=True)
class Answers:
    """The results of all questions."""

    found: list[Found] = field(default_factory=list)

    @property
    def right(self) -> bool:
        return bool(self.found) and all(each.answer and not each.wrong for each in self.found)


@dataclass(frozen=True, slots=True)
class Topics:
    """The demo's topics as frames."""

    spark: SparkSession
    store: str
    flights: Sequence[str]

    def read(self, topics: Sequence[str], columns: str, **options: str) -> DataFrame:
        """Some topics, with only these columns."""
        reader = self.spark.read.format("tidelog").schema(columns).options(**options)
        return reader.options(store=self.store, subscribe=",".join(topics)).load()

    def fields(self, *names: str) -> DataFrame:
        """Fields of all flights."""
        frame = self.read(self.flights, "value binary")
        schema = ", ".join(f"{name} string" for name in names)
        return frame.select(f.from_json(f.col("value").cast("string"), schema).alias("v")).select(
            "v.*"
        )


def ask_all(
    spark: SparkSession, store: str, flights: Sequence[str], table: pd.DataFrame
) -> Answers:
    """Ask all questions of Spark and of pandas."""
    answers = Answers()
    topics = Topics(spark, store, flights)
    for question in QUESTIONS:
        begun = time.monotonic()
        keys = question.keys
        rows = [tuple(row) for row in question.ask(topics).collect()]
        answer = {row[:keys]: row[keys:] for row in rows}
        seconds = time.monotonic() - begun
        expected = {
            tuple(row[:keys]): tuple(int(each) for each in row[keys:])
            for row in question.of_pandas(table).itertuples(index=False)
        }
        wrong = sum(
            answer.get(key) != expected.get(key) for key in answer.keys() | expected.keys()
        ) + (len(rows) - len(answer))
        answers.found.append(Found(question, answer, wrong, seconds))
    return answers


def report(answers: Answers) -> None:
    """Print the findings."""
    print("\nThe demo's topics in Spark, with no broker there")
    for found in answers.found:
        question = found.question
        verdict = "equal to pandas" if not found.wrong else f"{found.wrong} WRONG"
        print(f"  {question.name}: {len(found.answer)} rows, {verdict}; {found.seconds:.1f} s")
        print(f"    {question.heading}")
        biggest = sorted(found.answer.items(), key=lambda each: -each[1][0])[:SHOWN_ROWS]
        for key, numbers in biggest:
            words = [*map(str, key), *(f"{number:,}" for number in numbers)]
            print("    " + ", ".join(words))


def source_table(path: Path, rows: int | None) -> pd.DataFrame:
    """The flights as a table of pandas."""
    return pd.read_csv(path, nrows=rows)


def _per_carrier(topics: Topics) -> DataFrame:
    return topics.fields("carrier").groupBy("carrier").agg(f.count("*"))


def _per_carrier_in_pandas(table: pd.DataFrame) -> pd.DataFrame:
    return table.groupby("carrier").size().reset_index()


def _by_hour(topics: Topics) -> DataFrame:
    delay = f.expr("try_cast(dep_delay as int)")
    return (
        topics.fields("hour", "dep_delay")
        .groupBy(f.col("hour").cast("int"))
        .agg(
            f.count("*"),
            f.count(delay),
            f.coalesce(f.sum(delay), f.lit(0)),
            f.count_if(delay > LATE_MINUTES),
        )
    )


def _by_hour_in_pandas(table: pd.DataFrame) -> pd.DataFrame:
    late = table.assign(late=table.dep_delay > LATE_MINUTES)
    return (
        late.groupby("hour")
        .agg(
            flights=("year", "size"),
            departed=("dep_delay", "count"),
            minutes=("dep_delay", "sum"),
            late=("late", "sum"),
        )
        .reset_index()
    )


def _joined(topics: Topics) -> DataFrame:
    """A join of two topics: one has a flight's delay, another its month and distance.

    Both have the number of its row. One frame shows one moment of both.
    """
    both = topics.read(
        (DELAYS, CARRIERS),
        "topic string, value binary, headers array<struct<key:string,value:binary>>",
        snapshot="atomic",
    )
    row = f.filter("headers", lambda header: header["key"] == "row")[0]["value"].cast("string")
    value = f.col("value").cast("string")

    def of(topic: str, schema: str) -> DataFrame:
        found = both.where(f.col("topic") == topic)
        return found.select(row.alias("row"), f.from_json(value, schema).alias("v")).select(
            "row", "v.*"
        )

    delays = of(DELAYS, "origin string, arr_delay string")
    distances = of(CARRIERS, "month string, distance string")
    return (
        delays.join(distances, "row")
        .groupBy(f.col("month").cast("int"), "origin")
        .agg(
            f.count("*"),
            f.coalesce(f.expr("sum(try_cast(arr_delay as int))"), f.lit(0)),
            f.sum(f.col("distance").cast("int")),
        )
    )


def _joined_in_pandas(table: pd.DataFrame) -> pd.DataFrame:
    return (
        table.groupby(["month", "origin"])
        .agg(flights=("year", "size"), minutes=("arr_delay", "sum"), miles=("distance", "sum"))
        .reset_index()
    )


QUESTIONS = (
    Question(
        "Flights per carrier", "carrier, flights", _per_carrier, _per_carrier_in_pandas, keys=1
    ),
    Question(
        "Delays by hour",
        "hour, flights, departed, minutes late in all, more than a quarter of an hour late",
        _by_hour,
        _by_hour_in_pandas,
        keys=1,
    ),
    Question(
        f"{DELAYS} joined with {CARRIERS}",
        "month, origin, flights, minutes late at arrival, miles",
        _joined,
        _joined_in_pandas,
        keys=2,
    ),
)
