"""The sink's options: their meaning, and errors that name the wrong option."""

from __future__ import annotations

import pytest

from tidelog.errors import InvalidConfiguration
from tidelog.spark_source.sink.sink_options import WriteOptions, check_columns, parse_write_options

GIVEN = {"kafka.bootstrap.servers": "one:9092, [::1]:9093", "transactionalId": "pipeline"}
VALUE = [("value", "binary")]


def parsed(**options: str) -> WriteOptions:
    return parse_write_options(GIVEN | options, "memory://sink")


def test_options_have_no_case_and_defaults() -> None:
    found = parsed(TOPIC="orders", BatchId="3", checkpointLocation="somewhere")
    assert found.bootstrap == (("one", 9092), ("::1", 9093))
    assert (found.transactional_id, found.topic, found.include_headers) == (
        "pipeline",
        "orders",
        True,
    )
    assert found.for_batch(overwrite=False) == ("batch", 3)
    parsed().check_stream(overwrite=False)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"transactionalId": " "}, "the option transactionalId is missing: a name of this query"),
        ({"kafka.bootstrap.servers": ""}, "the option kafka.bootstrap.servers is missing"),
        ({"kafka.bootstrap.servers": "one"}, "kafka.bootstrap.servers is HOST:PORT"),
        ({"kafka.bootstrap.servers": "one:99999"}, "kafka.bootstrap.servers is HOST:PORT"),
        ({"kafka.acks": "1"}, "option kafka.acks: the sink uses no producer of Kafka's"),
        ({"transactionId": "x"}, "unknown option transactionid; did you mean transactionalId"),
        ({"topic": ""}, "the option topic is empty"),
        ({"batchId": "-1"}, "batchId is a whole number from 0 on"),
        ({"includeHeaders": "perhaps"}, "includeHeaders is true or false"),
    ],
)
def test_wrong_options_are_named(options: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidConfiguration, match=message):
        parsed(**options)


def test_batches_and_streams_are_told_from_one_another() -> None:
    with pytest.raises(InvalidConfiguration, match="the option batchId is missing"):
        parsed().for_batch(overwrite=False)
    with pytest.raises(InvalidConfiguration, match="batchId is for batch writes"):
        parsed(batchId="1").check_stream(overwrite=False)
    with pytest.raises(InvalidConfiguration, match="a log is only appended to: use mode"):
        parsed(batchId="1").for_batch(overwrite=True)
    with pytest.raises(InvalidConfiguration, match="a log is only appended to: use outputMode"):
        parsed().check_stream(overwrite=True)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ([("key", "binary"), ("topic", "string")], "there is no column value among key, topic"),
        (VALUE, "rows have no topic: give the option topic, or a column topic"),
        ([("value", "int"), ("topic", "string")], "column value is int; the sink takes binary or"),
        ([*VALUE, ("topic", "string"), ("partition", "bigint")], "column partition is bigint"),
        ([*VALUE, ("topic", "string"), ("headers", "map<string,binary>")], "column headers is map"),
    ],
)
def test_columns_that_cannot_be_written_are_named(
    columns: list[tuple[str, str]], message: str
) -> None:
    with pytest.raises(InvalidConfiguration, match=message):
        check_columns(columns, parsed())


def test_more_columns_than_are_written_are_passed_over() -> None:
    check_columns([*VALUE, ("offset", "bigint")], parsed(topic="orders"))
