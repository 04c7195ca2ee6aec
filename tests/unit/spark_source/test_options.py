"""Options of the sources: the error of each wrong one, and the precedence among several."""

from __future__ import annotations

import re

import pytest

from tidelog.errors import InvalidConfiguration
from tidelog.spark_source.columns import check_schema, default_schema, row_columns
from tidelog.spark_source.options.options import (
    Assigned,
    Edge,
    Offsets,
    Pattern,
    ReadOptions,
    Subscribed,
    Timestamps,
    is_read,
    parse_read_options,
)
from tidelog.spark_source.options.store_address import only_store_url_of, store_url_of


def parsed(**options: str) -> ReadOptions:
    return parse_read_options({"subscribe": "t", **options}, "memory://m")


def named(options: dict[str, str]) -> ReadOptions:
    return parse_read_options(options, "memory://m")


def test_defaults_differ_between_batches_and_streams() -> None:
    options = parsed()
    batch, stream = options.for_batch(), options.for_stream()
    assert (batch.starting, batch.ending) == (Edge.EARLIEST, Edge.LATEST)
    assert (stream.starting, stream.ending) == (Edge.LATEST, None)
    assert (batch.include_tail, batch.include_headers, batch.is_atomic) == (True, False, False)
    assert (batch.fail_on_data_loss, batch.trigger_delay_max_ms) == (True, 900_000)


def test_names_have_no_case_and_names_of_kafkas_clients_are_ignored() -> None:
    found = named(
        {
            "SUBSCRIBE": "a, b,a",
            "KAFKA.bootstrap.servers": "nowhere:1",
            "kafka.group.id": "g",
            "groupidprefix": "p",
            "kafkaConsumer.pollTimeoutMs": "5",
            "fetchOffset.numRetries": "9",
            "kafka.isolation.level": "read_committed",
            "MINPARTITIONS": "7",
        }
    )
    assert found.choice == Subscribed(("a", "b"))
    assert found.partitions_min == 7


def test_one_of_three_ways_to_choose() -> None:
    assert named({"assign": '{"t":[2,0,2]}'}).choice == Assigned({"t": (0, 2)})
    pattern = named({"subscribePattern": "fl.*"}).choice
    assert isinstance(pattern, Pattern)
    assert pattern.matches("flights")
    assert not pattern.matches("my flights")


def test_times_for_all_count_before_times_for_each_and_these_before_offsets() -> None:
    three = {
        "startingTimestamp": "5",
        "startingOffsetsByTimestamp": '{"t":{"0":6}}',
        "startingOffsets": '{"t":{"0":23,"1":-2}}',
    }
    assert parsed(**three).starting == Timestamps("startingTimestamp", 5)
    del three["startingTimestamp"]
    expected = Timestamps("startingOffsetsByTimestamp", {"t": {0: 6}})
    assert parsed(**three).starting == expected
    del three["startingOffsetsByTimestamp"]
    assert parsed(**three).starting == Offsets("startingOffsets", {"t": {0: 23, 1: -2}})
    assert parsed(startingOffsets=" Earliest ").starting is Edge.EARLIEST


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "give exactly one of assign, subscribe, subscribePattern, not none"),
        ({"assign": "{}", "subscribe": "t"}, "not assign and subscribe"),
        ({"subscribe": " "}, "subscribe is empty"),
        ({"subscribe": ","}, "subscribe names no topic"),
        ({"subscribePattern": "("}, "subscribePattern: '(' is not a regular expression"),
        ({"assign": "t"}, "assign is not JSON"),
        ({"assign": "[]"}, 'assign is not a JSON object; it looks like {"topic":[0,1]}'),
        ({"assign": '{"t":[true]}'}, "assign: the partitions of t are a list of numbers"),
        ({"subscribe": "t", "startingOffsets": "first"}, "startingOffsets is earliest, latest or"),
        ({"subscribe": "t", "startingOffsets": '{"t":'}, "startingOffsets is not JSON"),
        ({"subscribe": "t", "startingOffsets": '{"t":{"0":-3}}'}, "-3 of t-0 is too small"),
        ({"subscribe": "t", "startingOffsets": f'{{"t":{{"0":{2**63}}}}}'}, "is too large"),
        ({"subscribe": "t", "startingOffsets": '{"t":{"x":1}}'}, 't has "x": 1, which is no part'),
        ({"subscribe": "t", "startingOffsets": '{"t":{}}'}, "t has no numbers as in"),
        ({"subscribe": "t", "endingOffsetsByTimestamp": '{"t":{"0":-1}}'}, "is too small"),
        ({"subscribe": "t", "startingTimestamp": "now"}, "is a whole number from 0 on, not 'now'"),
        ({"subscribe": "t", "minPartitions": "0"}, "minPartitions is a whole number from 1 on"),
        (
            {"subscribe": "t", "minPartitions": "3", "maxPartitions": "2"},
            "minPartitions 3 is more than maxPartitions 2",
        ),
        ({"subscribe": "t", "includeTail": "yes"}, "includeTail is true or false, not 'yes'"),
        ({"subscribe": "t", "maxTriggerDelay": "soon"}, "maxTriggerDelay is a duration such as"),
        ({"subscribe": "t", "snapshot": "now"}, "snapshot is lso or atomic, not 'now'"),
        ({"subscribe": "t", "filterPushdown": "once"}, "unknown option filterpushdown"),
        (
            {"subscribe": "t", "startingOffsetsByTimestampStrategy": "guess"},
            "startingOffsetsByTimestampStrategy is error or latest",
        ),
        (
            {"subscribe": "t", "kafka.isolation.level": "read_uncommitted"},
            "kafka.isolation.level=read_uncommitted: only what is committed is read",
        ),
        ({"subscribe": "t", "startingOffset": "1"}, "did you mean startingOffsets?"),
        ({"subscribe": "t", "path": "x"}, "unknown option path; known are store, assign"),
        (
            {"subscribe": "t", "minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "5"},
            "minOffsetsPerTrigger 9 is more than maxOffsetsPerTrigger 5",
        ),
    ],
)
def test_wrong_options_are_named(options: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidConfiguration, match=re.escape(message)):
        named(options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"startingOffsets": "latest"}, "startingOffsets=latest: a batch cannot start at latest"),
        ({"startingOffsets": '{"t":{"1":-1}}'}, "startingOffsets: -1 for t-1"),
        ({"endingOffsets": "earliest"}, "endingOffsets=earliest: a batch cannot end at earliest"),
        ({"endingOffsets": '{"t":{"0":-2}}'}, "endingOffsets: -2 for t-0"),
        ({"snapshot": "atomic", "endingTimestamp": "5"}, "it goes with endingOffsets=latest only"),
        ({"snapshot": "atomic", "includeTail": "false"}, "snapshot=atomic needs the tail"),
        ({"maxOffsetsPerTrigger": "5"}, "maxOffsetsPerTrigger is for streams"),
    ],
)
def test_a_batch_refuses_options_that_it_cannot_meet(options: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidConfiguration, match=re.escape(message)):
        parsed(**options).for_batch()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"endingOffsets": "latest"}, "endingOffsets is for batches: a stream has no end"),
        ({"endingTimestamp": "5"}, "endingTimestamp is for batches"),
        ({"maxPartitions": "2"}, "maxPartitions is for batches; leave it out of a stream"),
        ({"snapshot": "atomic"}, "snapshot=atomic is for batches with latest ends"),
    ],
)
def test_a_stream_refuses_options_that_it_cannot_meet(
    options: dict[str, str], message: str
) -> None:
    with pytest.raises(InvalidConfiguration, match=re.escape(message)):
        parsed(**options).for_stream()


def test_durations_have_units() -> None:
    given = {"15m": 900_000, "30s": 30_000, "250": 250, "1 h": 3_600_000, "10 MS": 10}
    for text, expected in given.items():
        assert parsed(maxTriggerDelay=text).trigger_delay_max_ms == expected


def test_the_store_has_its_own_options_and_no_message_repeats_a_credential() -> None:
    assert store_url_of({"Store": " file:///x "}) == "file:///x"
    url = store_url_of(
        {
            "store": "s3://b/p?region=eu-west-1",
            "store.endpoint": "http://127.0.0.1:9000",
            "store.secret_access_key": "a/b&c",
        }
    )
    assert url == (
        "s3://b/p?region=eu-west-1&endpoint=http%3A%2F%2F127.0.0.1%3A9000"
        "&secret_access_key=a%2Fb%26c"
    )
    wrong = [
        ({}, "the option store is missing"),
        ({"store": "file:///x", "store.secret_access_key": "SECRET"}, "only a store at s3://"),
        ({"store": "s3://b", "store.secret": "SECRET"}, "unknown option store.secret; known are"),
    ]
    for options, message in wrong:
        with pytest.raises(InvalidConfiguration, match=message) as raised:
            store_url_of(options)
        assert "SECRET" not in str(raised.value)
    with pytest.raises(InvalidConfiguration, match="unknown option subscribe; known are store"):
        only_store_url_of({"store": "file:///x", "subscribe": "t"})
    assert "SECRET" not in repr(parse_read_options({"subscribe": "t"}, "s3://b?x=SECRET"))


def test_a_read_is_known_by_its_topics() -> None:
    assert is_read({"Assign": "x"})
    assert not is_read({"store": "file:///x", "topic": "t"})


def test_columns_are_those_of_kafkas_connector() -> None:
    assert default_schema(headers=True, producer=False) == (
        "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp,"
        " timestampType int, headers array<struct<key:string,value:binary>>"
    )
    assert "producerId bigint" in default_schema(headers=False, producer=True)
    assert "headers" not in default_schema(headers=False, producer=True)
    check_schema([("value", "binary"), ("transaction", "bigint")])
    with pytest.raises(InvalidConfiguration, match="asks for a column Value; there are key, "):
        check_schema([("Value", "binary")])
    with pytest.raises(InvalidConfiguration, match="column value as string; it is binary: cast"):
        check_schema([("value", "string")])
    assert row_columns(["topic", "value", "timestampType"]) == [
        *("offset", "value", "timestamp_type"),
    ]


def test_progress_is_published_to_a_group_of_named_brokers_and_by_streams_alone() -> None:
    found = parsed(publishGroupId=" dashboard ", **{"kafka.bootstrap.servers": "a:1,[::1]:2"})
    assert found.for_stream().publish_group == "dashboard"
    assert found.bootstrap == (("a", 1), ("::1", 2))
    with pytest.raises(InvalidConfiguration, match="publishGroupId is for streams"):
        found.for_batch()
    with pytest.raises(InvalidConfiguration, match="publishGroupId needs kafka"):
        parsed(publishGroupId="dashboard")
    with pytest.raises(InvalidConfiguration, match="publishGroupId is empty"):
        parsed(publishGroupId=" ", **{"kafka.bootstrap.servers": "a:1"})
    with pytest.raises(InvalidConfiguration, match="is HOST:PORT, several separated by commas"):
        parsed(publishGroupId="dashboard", **{"kafka.bootstrap.servers": "nowhere"})
    assert parsed(**{"kafka.bootstrap.servers": "not looked at"}).bootstrap == ()
