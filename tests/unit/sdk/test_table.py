"""A table reads the same messages as a consumer, from the bucket alone."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import pytest

from tidelog.bucket.views.reading import NoSuchTopic
from tidelog.errors import InvalidConfiguration
from tidelog.sdk.messages import Message
from tidelog.sdk.producer import Producer
from tidelog.sdk.table import Table
from tidelog.testing.broker import Broker

BEGIN_MS = 1_700_000_000_000


@contextmanager
def written(broker: Broker, topic: str) -> Iterator[list[Message]]:
    """Committed, aborted and open messages in two partitions. Returns the messages that a consumer
    reads."""
    with Producer(broker.bootstrap) as plain:
        for number in range(40):
            time = BEGIN_MS + (number * 7) % 40
            plain.send(topic, b"%d" % number, partition=number % 2, timestamp=time)
    with Producer(broker.bootstrap, transactional_id="table") as producer:
        with producer.transaction():
            producer.send(topic, "committed", partition=0, timestamp=BEGIN_MS + 100)
        transaction = producer.transaction()
        transaction.__enter__()
        producer.send(topic, "aborted", partition=0, timestamp=BEGIN_MS)
        producer.flush(30)
        transaction.__exit__(KeyError, KeyError(), None)
        with producer.transaction():
            producer.send(topic, "committed too", partition=1, timestamp=BEGIN_MS + 100)
        transaction = producer.transaction()
        transaction.__enter__()
        producer.send(topic, "open", partition=1, timestamp=BEGIN_MS)
        producer.flush(30)
        yield broker.read(topic)
        transaction.__exit__(KeyError, KeyError(), None)


def rows(table: Table, **selection: Any) -> list[tuple[int, int, bytes]]:
    found = table.to_arrow(columns=["partition", "offset", "value"], **selection).to_pylist()
    return [(each["partition"], each["offset"], each["value"]) for each in found]


def expected(messages: list[Message]) -> list[tuple[int, int, bytes]]:
    return [(each.partition, each.offset, each.value) for each in messages]


def test_a_table_has_the_rows_that_a_consumer_reads(shared: Broker) -> None:
    topic = shared.topic(2)
    table = Table(shared.store, topic)
    with written(shared, topic) as messages:
        assert rows(table) == expected(messages)
        assert rows(table, offsets=(5, 12)) == expected(
            [each for each in messages if 5 <= each.offset < 12]
        )
        assert rows(table, offsets={1: (None, 3)}) == expected(
            [each for each in messages if each.partition == 1 and each.offset < 3]
        )
        assert rows(table, partitions=[0]) == expected(
            [each for each in messages if each.partition == 0]
        )
        since, until = BEGIN_MS + 10, BEGIN_MS + 25
        wanted = expected([each for each in messages if since <= (each.timestamp or 0) < until])
        assert wanted
        assert rows(table, since=since, until=until) == wanted
        times = {
            "since": datetime.fromtimestamp(since / 1000, UTC),
            "until": datetime.fromtimestamp(until / 1000, UTC),
        }
        assert rows(table, **times) == wanted


def test_pandas_polars_and_duckdb_get_the_same_rows_without_a_broker(broker: Broker) -> None:
    topic = broker.topic()
    broker.produce(topic, [b"%d" % number for number in range(5)])
    table = Table(broker.store, topic)
    broker.kill()
    values = [b"%d" % number for number in range(5)]
    assert table.to_pandas()["value"].tolist() == values
    assert table.to_polars()["value"].to_list() == values
    assert [row[0] for row in table.to_duckdb(columns=["value"]).fetchall()] == values


def test_offsets_of_no_partition_select_nothing(shared: Broker) -> None:
    """As a reader gives them that goes on where it was, and finds nothing new."""
    topic = shared.topic(2)
    shared.produce(topic, ["a", "b"])
    table = Table(shared.store, topic)
    assert table.to_arrow(offsets={}).num_rows == 0
    assert table.to_arrow(offsets={0: (None, None), 1: (None, None)}).num_rows == 2


def test_wrong_selections_are_told(shared: Broker) -> None:
    table = Table(shared.store, shared.topic())
    for selection, words in [
        ({"columns": ["values"]}, "'values'"),
        ({"columns": []}, "at least one"),
        ({"partitions": [3]}, "no partition 3"),
        ({"offsets": (5, 3)}, "5 is above 3"),
        ({"since": datetime(2024, 1, 1)}, "time zone"),  # noqa: DTZ001
        ({"offset": (1, 2)}, "offset selects nothing"),
    ]:
        with pytest.raises(InvalidConfiguration, match=words):
            table.to_arrow(**selection)
    with pytest.raises(NoSuchTopic, match="nothing") as raised:
        Table(shared.store, "nothing").to_arrow()
    assert raised.value.__context__ is None, "no other error is told beside this one"


def test_a_missing_extra_is_named(shared: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "polars", None)
    with pytest.raises(InvalidConfiguration, match=r"tidelog\[polars\]"):
        Table(shared.store, "any").to_polars()
