"""The names of the options of reads, of writes and of a catalog's tables. Pure.

The options of a catalog's table are there for its reads and its writes. So a read ignores a
table's options for writes, and a write those for reads. Without a table they are refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Final

from tidelog.errors import InvalidConfiguration
from tidelog.spark_source.options.brokers import BOOTSTRAP

CHOICES: Final = ("assign", "subscribe", "subscribePattern")
READ_OPTIONS: Final = (
    "store",
    *CHOICES,
    *("startingTimestamp", "startingOffsetsByTimestamp", "startingOffsets"),
    *("endingTimestamp", "endingOffsetsByTimestamp", "endingOffsets"),
    *("startingOffsetsByTimestampStrategy", "failOnDataLoss", "snapshot", "includeTail"),
    *("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay"),
    *("minPartitions", "maxPartitions", "maxRecordsPerPartition"),
    *("includeHeaders", "includeProducer"),
    "publishGroupId",
)
WRITE_OPTIONS: Final = (
    *("store", BOOTSTRAP, "transactionalId", "topic", "includeHeaders", "batchId"),
    # Spark passes its own options too.
    *("checkpointLocation", "queryName"),
)
PROVIDER: Final = "provider"
"""Spark adds the table's format to its options."""


def lowered(options: Mapping[str, str]) -> dict[str, str]:
    """The options under lower-case names: Spark's options are case-insensitive."""
    return {name.lower(): value for name, value in options.items()}


def is_table(given: Mapping[str, str]) -> bool:
    """True for the lowered options of a catalog's table."""
    return PROVIDER in given


def check_names(
    given: Mapping[str, str], options: Iterable[str], of_tables: Iterable[str] = ()
) -> None:
    """Refuse unknown names among lowered options, by InvalidConfiguration.

    `of_tables` are allowed for a catalog's table only.
    """
    known = {name.lower(): name for name in options}
    allowed = {*known}
    if is_table(given):
        allowed |= {PROVIDER, *(name.lower() for name in of_tables)}
    for name in given:
        if name in allowed or name.startswith("store."):
            continue
        similar = get_close_matches(name, known, 1)
        hint = (
            f"did you mean {known[similar[0]]}?"
            if similar
            else f"known are {', '.join(known.values())}"
        )
        raise InvalidConfiguration(f"unknown option {name}; {hint}")
