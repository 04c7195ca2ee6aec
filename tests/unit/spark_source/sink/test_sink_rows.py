"""Rows become records: partitions are chosen as Kafka chooses them, the order is kept, and errors
name the wrong row."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.records.partitioner import partition_of
from tidelog.spark_source.sink.sink_rows import RefusedRow, by_partition, sink_rows

TIME_MS = 1_700_000_000_123
COUNTS = {"a": 3, "b": 2}
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
SCHEMA = pa.schema(
    [
        *(("key", pa.binary()), ("value", pa.binary()), ("headers", HEADERS)),
        *(("topic", pa.string()), ("partition", pa.int32()), ("more", pa.int64())),
    ]
)
rows_given = st.lists(
    st.fixed_dictionaries(
        {
            "key": st.none() | st.binary(max_size=9),
            "value": st.binary(max_size=3),
            "headers": st.none()
            | st.lists(
                st.fixed_dictionaries({"key": st.text(max_size=2), "value": st.just(b"v")}),
                max_size=2,
            ),
            "topic": st.sampled_from(["a", "b"]),
            "partition": st.none() | st.integers(0, 1),
        }
    ),
    max_size=20,
)


def batch(*rows: dict[str, Any]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(list(rows), schema=SCHEMA)


def routed(found: pa.RecordBatch, topic: str | None = None, turn: int = 0) -> list[Any]:
    given = sink_rows(found, topic, TIME_MS, include_headers=True)
    return [
        (topic, partition, rows.to_pylist())
        for topic, partition, rows in by_partition(given, COUNTS, turn)
    ]


@given(rows_given)
def test_each_row_goes_to_its_partition_in_order(rows: list[dict[str, Any]]) -> None:
    placed = routed(batch(*rows))
    assert len({(topic, partition) for topic, partition, _ in placed}) == len(placed)
    assert sum(len(found) for *_, found in placed) == len(rows)
    for topic, partition, found in placed:
        expected = []
        for number, row in enumerate(rows):
            chosen = row["partition"]
            if chosen is None and row["key"] is None:
                chosen = number % COUNTS[topic]
            elif chosen is None:
                chosen = partition_of(row["key"], COUNTS[topic])
            if (row["topic"], chosen) == (topic, partition):
                expected.append((row["key"], row["value"], row["headers"]))
        assert [(row["key"], row["value"], row["headers"]) for row in found] == expected
        assert {row["timestamp"].timestamp() for row in found} == {TIME_MS / 1000}


def test_the_options_topic_outranks_the_column() -> None:
    placed = routed(batch({"value": b"v", "topic": "nowhere", "key": b"k"}), "a")
    assert [topic for topic, *_ in placed] == ["a"]


def test_rows_without_a_key_take_turns_from_where_they_are_told() -> None:
    rows = [{"value": b"%d" % n, "topic": "a"} for n in range(4)]
    placed = {partition: found for _, partition, found in routed(batch(*rows), turn=2)}
    assert {n: [row["value"] for row in found] for n, found in placed.items()} == {
        2: [b"0", b"3"],
        0: [b"1"],
        1: [b"2"],
    }


def test_strings_are_written_as_utf_8_and_columns_may_be_missing() -> None:
    found = pa.RecordBatch.from_pydict({"value": ["é"], "key": ["k"]})
    ((_, _, (row,)),) = routed(found, "b")
    assert (row["key"], row["value"], row["headers"]) == (b"k", "é".encode(), None)


def test_headers_are_left_out_on_request() -> None:
    found = batch({"value": b"v", "headers": [{"key": "h", "value": b"x"}]})
    rows = sink_rows(found, "a", TIME_MS, include_headers=False).rows
    assert rows.column("headers").to_pylist() == [None]


@pytest.mark.parametrize("start", [0, 1, 2])
def test_a_part_of_a_batch_has_its_own_headers(start: int) -> None:
    """A task cuts a large batch. Some rows have no headers."""
    headers = [{"key": "h", "value": b"x"}]
    whole = batch(
        {"value": b"0", "headers": headers},
        {"value": b"1", "headers": None},
        {"value": b"2", "headers": [*headers, *headers]},
        {"value": b"3", "headers": None},
    )
    found = sink_rows(whole.slice(start, 2), "a", TIME_MS, include_headers=True).rows
    assert found.column("value").to_pylist() == [b"%d" % start, b"%d" % (start + 1)]
    assert found.column("headers").to_pylist() == whole.column("headers").to_pylist()[start:][:2]


def test_a_tombstone_has_a_key_and_no_value() -> None:
    ((*_, (row,)),) = routed(batch({"key": b"k", "topic": "a"}))
    assert (row["key"], row["value"]) == (b"k", None)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"topic": "a"}, "a row has no value: only a row with a key may do without"),
        ({"value": b"v"}, "a row has no topic: fill in column topic, or give the option topic"),
        ({"value": b"v", "topic": "a", "partition": -1}, "a row names a partition below 0"),
        ({"value": b"v", "topic": "b", "partition": 2}, "partition 2 of topic b, which has 2 part"),
        (
            {"value": b"v", "topic": "a", "headers": [{"key": None, "value": b"x"}]},
            "a row has a header without a key",
        ),
    ],
)
def test_a_row_that_cannot_be_written_is_refused(row: dict[str, Any], message: str) -> None:
    with pytest.raises(RefusedRow, match=message):
        routed(batch({"value": b"fine", "topic": "a"}, row))
