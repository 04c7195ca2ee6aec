"""A catalog's table: Spark hands its options over when it is created, and never again."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql.types import StructType

from tests.unit.broker.one_broker import TOPIC
from tests.unit.spark_source.spark_world import (
    COMMITTED,
    DEFAULT,
    SparkWorld,
    created,
    history,
    pickled,
    read_part,
    schema_of,
    spark_world,
    values,
)
from tidelog.errors import InvalidConfiguration
from tidelog.spark_source.source import TidelogSource

__all__ = ["spark_world"]


def rows(schema: StructType, **statement: Any) -> list[dict[str, Any]]:
    source = pickled(TidelogSource({name: str(value) for name, value in statement.items()}))
    reader = source.reader(schema)
    return [row for part in reader.partitions() for row in read_part(reader, part)]


def test_a_table_is_read_by_its_schema(spark_world: SparkWorld) -> None:
    spark_world.tell(history)
    options = spark_world.options(subscribe=TOPIC, transactionalId="t", topic=TOPIC)
    schema = created(options)
    assert schema.names == [*DEFAULT]
    assert [each.dataType for each in schema] == [each.dataType for each in schema_of(*DEFAULT)]
    assert values(rows(schema)) == COMMITTED
    ending = f'{{"{TOPIC}":{{"0":1}}}}'
    assert values(rows(schema, endingOffsets=ending)) == COMMITTED[:1]
    more = created({**options, "includeHeaders": "true", "includeProducer": "true"})
    assert {"headers", "producerId"} <= {*more.names}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"subscribe": "nowhere"}, "there is no topic nowhere"),
        ({"subscribe": TOPIC, "startingOffset": "earliest"}, "did you mean startingOffsets?"),
        ({}, "give exactly one of assign, subscribe, subscribePattern"),
        (
            {"store": "s3://bucket", "subscribe": TOPIC, "store.session_token": "secret"},
            "store.session_token: a catalog's table shows its options",
        ),
        (
            {"store": "s3://bucket?secret_access_key=secret", "subscribe": TOPIC},
            "store.secret_access_key: a catalog's table shows its options",
        ),
        (
            {"subscribe": TOPIC, "kafka.sasl.password": "x=secret"},
            "kafka.sasl.password: a catalog's table shows its options",
        ),
        (
            {"subscribe": TOPIC, "kafka.ssl.key.password": "x=secret"},
            "kafka.ssl.key.password: a catalog's table shows its options",
        ),
    ],
)
def test_a_wrong_table_is_not_created(
    spark_world: SparkWorld, given: dict[str, str], message: str
) -> None:
    spark_world.tell(history)
    with pytest.raises(InvalidConfiguration, match=message) as told:
        created({**spark_world.options(), **given})
    assert "=secret" not in str(told.value)


def test_a_read_that_names_a_store_takes_nothing_from_the_schema_of_a_table(
    spark_world: SparkWorld,
) -> None:
    spark_world.tell(history)
    ending = f'{{"{TOPIC}":{{"0":1}}}}'
    schema = created(spark_world.options(subscribe=TOPIC, endingOffsets=ending))
    assert values(rows(schema)) == COMMITTED[:1]
    assert values(rows(schema, **spark_world.options(subscribe=TOPIC))) == COMMITTED


def test_a_table_keeps_where_a_password_lies(spark_world: SparkWorld) -> None:
    spark_world.tell(history)
    login = {"kafka.sasl.password": "${env:SINK_PASSWORD}"}
    schema = created(spark_world.options(subscribe=TOPIC, **login))
    assert "${env:SINK_PASSWORD}" in schema.json()


def test_a_table_with_columns_of_its_own_has_lost_its_options(spark_world: SparkWorld) -> None:
    with pytest.raises(InvalidConfiguration, match="names no columns"):
        rows(schema_of("value"))


def test_without_a_table_a_read_refuses_the_options_of_writes(spark_world: SparkWorld) -> None:
    spark_world.tell(history)
    with pytest.raises(InvalidConfiguration, match="unknown option transactionalid"):
        spark_world.source(subscribe=TOPIC, transactionalId="t")
