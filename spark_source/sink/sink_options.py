"""The sink's options and columns: those of Spark's Kafka connector, and the sink's name. Pure.

Errors come before any row is staged. No message repeats a value that may be a credential.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from tidelog.errors import InvalidConfiguration
from tidelog.spark_source.options.brokers import (
    BOOTSTRAP,
    addresses,
    is_security,
    security_properties,
)
from tidelog.spark_source.options.option_names import (
    READ_OPTIONS,
    WRITE_OPTIONS,
    check_names,
    is_table,
    lowered,
)
from tidelog.spark_source.options.options import boolean, number

BATCH_QUERY_ID: Final = "batch"
"""The query id of all batch writes, which belong to no query."""
_HEADERS = "array<struct<key:string,value:binary>>"
_TYPES = {
    "key": ("binary", "string"),
    "value": ("binary", "string"),
    "headers": (_HEADERS,),
    "topic": ("string",),
    "partition": ("int",),
}


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """The parsed options of a write."""

    store_url: str
    bootstrap: tuple[tuple[str, int], ...]
    transactional_id: str
    topic: str | None
    """The topic of all rows; it overrides the column."""
    include_headers: bool
    batch_id: int | None
    is_of_table: bool = False
    """True if the options are those of a catalog's table."""
    security: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Properties of the connections to brokers; their values may refer to others."""

    def for_batch(self, *, overwrite: bool) -> tuple[str, int]:
        """Query id and number of a batch write. InvalidConfiguration."""
        if overwrite:
            raise InvalidConfiguration('a log is only appended to: use mode("append")')
        if self.batch_id is None:
            raise InvalidConfiguration(
                "the option batchId is missing: the number of this write among those of its"
                " transactionalId, by which it is recognised when it is repeated. It rises from"
                " write to write"
            )
        return BATCH_QUERY_ID, self.batch_id

    def check_stream(self, *, overwrite: bool) -> None:
        """InvalidConfiguration for a batch write's options."""
        if overwrite:
            raise InvalidConfiguration('a log is only appended to: use outputMode("append")')
        if self.batch_id is not None:
            raise InvalidConfiguration(
                "batchId is for batch writes: a stream's batches have numbers; leave it out"
            )


def parse_write_options(options: Mapping[str, str], store_url: str) -> WriteOptions:
    """The options of a write. InvalidConfiguration names the option and the remedy."""
    given = lowered(options)
    _check_kafka_names(given)
    named = {name: value for name, value in given.items() if not is_security(name)}
    check_names(named, WRITE_OPTIONS, READ_OPTIONS)
    return WriteOptions(
        store_url=store_url,
        bootstrap=addresses(_required(given, BOOTSTRAP, "HOST:PORT of some brokers")),
        transactional_id=_required(
            given,
            "transactionalId",
            "a name of this query's own that outlives its checkpoint, by which its batches are"
            " recognised when they are repeated",
        ),
        topic=_topic(given.get("topic")),
        include_headers=boolean(given, "includeHeaders", True),
        batch_id=number("batchId", given["batchid"], 0) if "batchid" in given else None,
        is_of_table=is_table(given),
        security=security_properties(given),
    )


def check_columns(fields: Iterable[tuple[str, str]], options: WriteOptions) -> None:
    """Check columns: names, and types as Spark's simple strings. InvalidConfiguration.

    Columns that the sink does not know are ignored.
    """
    given = dict(fields)
    for name, kinds in _TYPES.items():
        kind = given.get(name)
        if kind is not None and kind not in kinds:
            raise InvalidConfiguration(
                f"column {name} is {kind}; the sink takes {' or '.join(kinds)}: cast it"
            )
    if "value" not in given:
        raise InvalidConfiguration(
            f"there is no column value among {', '.join(given)}: the sink writes value, and key,"
            " headers, topic and partition where they are there"
        )
    if options.topic is None and "topic" not in given:
        raise InvalidConfiguration("rows have no topic: give the option topic, or a column topic")


def _check_kafka_names(given: Mapping[str, str]) -> None:
    for name in given:
        if name.startswith("kafka.") and name != BOOTSTRAP and not is_security(name):
            raise InvalidConfiguration(
                f"option {name}: the sink uses no producer of Kafka's, so of kafka.* it knows"
                f" {BOOTSTRAP} and security only; leave it out"
            )


def _required(given: Mapping[str, str], option: str, what: str) -> str:
    found = given.get(option.lower(), "").strip()
    if not found:
        raise InvalidConfiguration(f"the option {option} is missing: {what}")
    return found


def _topic(given: str | None) -> str | None:
    if given is not None and not given.strip():
        raise InvalidConfiguration("the option topic is empty")
    return given
