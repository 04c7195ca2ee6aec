"""The same queries of the same records by three readers.

They are Spark's Kafka connector, Tidelog's source, and `read`: Spark's own Parquet reader of the
segments with the source of the tail.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

RANGE_SHARE = 0.01
"""The share of offsets and of time of the partial queries."""
READERS = ("kafka", "tidelog", "read")
QUERIES = {
    "all": "all of it, all columns",
    "by offset": f"{RANGE_SHARE:.0%} of each partition's offsets, as starting and ending options",
    "by time": f"{RANGE_SHARE:.0%} of the time, as starting and ending options",
    "where offset": f"{RANGE_SHARE:.0%} of the offsets, as a filter of the frame",
    "where time": f"{RANGE_SHARE:.0%} of the time, as a filter of the frame",
}


def contenders(
    store: str, bootstrap: str, topic: str, partitions: int, records: int, first_ms: int
) -> dict[str, dict[str, Any]]:
    """Each query by each reader, named by both.

    Timestamps rise by a millisecond for each record, and the partitions take turns.
    """
    start = records // partitions // 2
    offsets = (start, start + max(1, int(records / partitions * RANGE_SHARE)))
    begin_ms = first_ms + records // 2
    times = (begin_ms, begin_ms + max(1, int(records * RANGE_SHARE)))
    by_offset = "offset >= {} and offset < {}".format(*offsets)
    by_time = "timestamp >= timestamp_millis({}) and timestamp < timestamp_millis({})".format(
        *times
    )
    asked = {
        "all": ({}, ""),
        "by offset": (_offset_options(topic, partitions, offsets), by_offset),
        "by time": (_time_options(times), by_time),
        "where offset": ({}, by_offset),
        "where time": ({}, by_time),
    }
    selections = {
        "by offset": {"offsets": offsets},
        "by time": {"since": times[0], "until": times[1]},
    }
    found: dict[str, dict[str, Any]] = {}
    for query, (options, where) in asked.items():
        filtered = {"where": where} if where and not options else {}
        peers = {"kafka.bootstrap.servers": bootstrap, "startingOffsets": "earliest"}
        found[f"kafka {query}"] = {"source": "kafka", "options": peers | options, **filtered}
        found[f"tidelog {query}"] = {
            "source": "tidelog",
            "store": store,
            "options": options,
            **filtered,
        }
        selection = selections.get(query, {})
        found[f"read {query}"] = {
            "source": "read",
            "store": store,
            "selection": selection,
            **filtered,
        }
    return {name: {"topic": topic, **contender} for name, contender in found.items()}


def _offset_options(topic: str, partitions: int, offsets: tuple[int, int]) -> Mapping[str, str]:
    first, last = (
        json.dumps({topic: {str(number): offset for number in range(partitions)}})
        for offset in offsets
    )
    return {"startingOffsets": first, "endingOffsets": last}


def _time_options(times: tuple[int, int]) -> Mapping[str, str]:
    return {"startingTimestamp": str(times[0]), "endingTimestamp": str(times[1])}
