"""Tables of a catalog: `CREATE TABLE ... USING tidelog OPTIONS (...)`.

Spark hands a Python source the options of a table when the table is created, and no longer when it
is read or written: then only the options of the statement come, and the table's schema. So the
schema carries the table's options, as metadata of its first column. Catalogs keep it.

A column keeps its metadata in the rows of a query. So the schema of a write may be that of another
table, from which its rows were read: with `save`, in streams, and if an INSERT's columns have the
names and types of its table's. So the options do not count for a statement that names a store, nor
for a stream's write. An INSERT of rows with offsets is refused (`sink_rows.py`).

All that see the schema see the options. So they may not have credentials.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from tidelog.errors import InvalidConfiguration
from tidelog.references import has_reference
from tidelog.spark_source.columns import default_columns
from tidelog.spark_source.options.option_names import PROVIDER, is_table, lowered
from tidelog.spark_source.options.store_address import has_store

_METADATA: Final = "tidelog.options"
_OPTION: Final = "option."
"""At a table's creation Spark repeats its options behind this; other names are of its properties.
"""
_SECRETS: Final = ("access_key_id", "secret_access_key", "session_token")
_BROKER_SECRETS: Final = (
    *("kafka.sasl.password", "kafka.sasl.jaas.config", "kafka.sasl.oauthbearer.token"),
    *("kafka.ssl.key.password", "kafka.ssl.keystore.password", "kafka.ssl.truststore.password"),
)
_TYPES: Final[Mapping[str, DataType]] = {
    "binary": BinaryType(),
    "string": StringType(),
    "int": IntegerType(),
    "bigint": LongType(),
    "timestamp": TimestampType(),
    "array<struct<key:string,value:binary>>": ArrayType(
        StructType([StructField("key", StringType()), StructField("value", BinaryType())])
    ),
}


def created_options(options: Mapping[str, str]) -> dict[str, str] | None:
    """The options of a table that is being created; None if none is. InvalidConfiguration."""
    given = lowered(options)
    if not is_table(given):
        return None
    found = {
        name.removeprefix(_OPTION): value
        for name, value in given.items()
        if name.startswith(_OPTION)
    }
    for secret in _SECRETS:
        if f"store.{secret}" in found or f"{secret}=" in found.get("store", ""):
            raise InvalidConfiguration(
                f"store.{secret}: a catalog's table shows its options to all that see its schema;"
                " leave credentials to AWS's usual chain, or give them with each statement, by WITH"
                f" (`store.{secret}`=...)"
            )
    for name in _BROKER_SECRETS:
        if name in found and not has_reference(found[name]):
            raise InvalidConfiguration(
                f"{name}: a catalog's table shows its options to all that see its schema; write"
                f" where the value lies, as ${{env:NAME}} or ${{file:PATH:KEY}}, or give it with"
                f" each statement, by WITH (`{name}`=...)"
            )
    return found | {PROVIDER: given[PROVIDER]}


def table_schema(options: Mapping[str, str], *, headers: bool, producer: bool) -> StructType:
    """The schema of a table that is being created, with its options."""
    columns = default_columns(headers=headers, producer=producer)
    metadata = [{_METADATA: json.dumps(dict(options))}, *({} for _ in columns[1:])]
    return StructType(
        [
            StructField(column.name, _TYPES[column.spark_type], metadata=each)
            for column, each in zip(columns, metadata, strict=True)
        ]
    )


def with_table_options(options: Mapping[str, str], schema: StructType) -> dict[str, str]:
    """The options of a read or write: the statement's, and the table's if the schema has some.

    A statement that names a store is of no table, even if its rows or its schema are.
    """
    if has_store(options):
        return dict(options)
    kept = [field.metadata[_METADATA] for field in schema.fields if _METADATA in field.metadata]
    table: dict[str, str] = json.loads(kept[0]) if kept else {}
    return table | lowered(options)
