"""The options of the sources: names, precedence and rules of Spark's Kafka connector. Pure.

Parsing reports errors before any request to the store. `for_batch` and `for_stream` apply the rules
of batches and streams: a source learns its use only later. No message repeats a value that may be a
credential.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, Final, TypeAlias, TypeVar

from tidelog.coordinator.patterns import InvalidPattern, check_pattern, matches
from tidelog.errors import InvalidConfiguration
from tidelog.spark_source.options.brokers import BOOTSTRAP, addresses, security_properties
from tidelog.spark_source.options.option_names import (
    CHOICES,
    READ_OPTIONS,
    WRITE_OPTIONS,
    check_names,
    lowered,
)

T = TypeVar("T")

EARLIEST: Final = -2
LATEST: Final = -1
"""Kafka's connector uses these numbers for the edges of the log in maps of offsets."""

PerPartition: TypeAlias = Mapping[str, Mapping[int, int]]
"""Topic, partition, then offset or milliseconds."""

_IGNORED = frozenset(
    name.lower()
    for name in (
        *("groupIdPrefix", "kafkaConsumer.pollTimeoutMs", "pollTimeoutMs"),
        *("fetchOffset.numRetries", "fetchOffset.retryIntervalMs"),
    )
)
_ISOLATION_LEVEL = "kafka.isolation.level"
_DURATION = re.compile(r"(\d+)\s*(ms|s|m|min|h|d)?")
_UNIT_MS = {"ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
_LONG_MAX = 2**63 - 1


class Edge(Enum):
    """An end of a log."""

    EARLIEST = "earliest"
    LATEST = "latest"


@dataclass(frozen=True, slots=True)
class Offsets:
    """An offset for each partition; EARLIEST and LATEST mean the edges."""

    option: str
    by_partition: PerPartition


@dataclass(frozen=True, slots=True)
class Timestamps:
    """The first offset at or after a time, for each partition, or one time for all."""

    option: str
    by_partition: PerPartition | int


Bound: TypeAlias = Edge | Offsets | Timestamps


@dataclass(frozen=True, slots=True)
class Assigned:
    """Partitions by number."""

    partitions: Mapping[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Subscribed:
    """Topics by name."""

    topics: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Pattern:
    """All topics whose whole name matches an expression, except internal ones."""

    expression: str

    def matches(self, topic: str) -> bool:
        return matches(self.expression, topic)


Choice: TypeAlias = Assigned | Subscribed | Pattern


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """The parsed options of a source."""

    store_url: str = field(repr=False)
    """The store's URL, with the credentials from the options."""
    choice: Choice
    starting: Bound | None
    """None: the default, which differs between batches and streams."""
    ending: Bound | None
    is_latest_without_match: bool
    """If no record is at or after the starting time: start at the end instead of failing."""
    fail_on_data_loss: bool
    is_atomic: bool
    include_tail: bool
    include_headers: bool
    include_producer: bool
    partitions_min: int | None
    partitions_max: int | None
    """Input partitions of a batch."""
    records_max: int | None
    """Offsets in one input partition."""
    trigger_offsets_max: int | None
    trigger_offsets_min: int | None
    trigger_delay_max_ms: int
    publish_group: str | None
    """The consumer group under which a stream publishes its committed offsets."""
    bootstrap: tuple[tuple[str, int], ...]
    """Broker addresses; empty unless the stream publishes offsets."""
    security: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Properties of the connections to brokers; their values may refer to others."""

    def for_batch(self) -> ReadOptions:
        """The options with a batch's defaults. InvalidConfiguration for a stream's options."""
        starting = self.starting or Edge.EARLIEST
        ending = self.ending or Edge.LATEST
        _refuse(starting, Edge.LATEST, LATEST, "startingOffsets", "a batch cannot start at latest")
        _refuse(ending, Edge.EARLIEST, EARLIEST, "endingOffsets", "a batch cannot end at earliest")
        if self.is_atomic and self.ending not in (None, Edge.LATEST):
            raise InvalidConfiguration(
                "snapshot=atomic chooses the ends itself: it goes with endingOffsets=latest only;"
                " use snapshot=lso"
            )
        if self.is_atomic and not self.include_tail:
            raise InvalidConfiguration(
                "snapshot=atomic needs the tail: a transaction may be in the table of one topic and"
                " still in the tail of another; leave out includeTail=false, or use snapshot=lso"
            )
        for name, value in (
            ("maxOffsetsPerTrigger", self.trigger_offsets_max),
            ("minOffsetsPerTrigger", self.trigger_offsets_min),
        ):
            if value is not None:
                raise InvalidConfiguration(f"{name} is for streams; leave it out of a batch")
        if self.publish_group is not None:
            raise InvalidConfiguration(
                "publishGroupId is for streams: a batch has no progress; leave it out"
            )
        return replace(self, starting=starting, ending=ending)

    def for_stream(self) -> ReadOptions:
        """The options with a stream's defaults. InvalidConfiguration for a batch's options."""
        if self.ending is not None:
            option = "endingOffsets" if isinstance(self.ending, Edge) else self.ending.option
            raise InvalidConfiguration(f"{option} is for batches: a stream has no end")
        if self.partitions_max is not None:
            raise InvalidConfiguration("maxPartitions is for batches; leave it out of a stream")
        if self.is_atomic:
            raise InvalidConfiguration(
                "snapshot=atomic is for batches with latest ends; a stream reads each partition up"
                " to its last stable offset (snapshot=lso)"
            )
        return replace(self, starting=self.starting or Edge.LATEST)


def is_read(options: Mapping[str, str]) -> bool:
    """True if the options select topics to read."""
    return not lowered(options).keys().isdisjoint(name.lower() for name in CHOICES)


def parse_read_options(options: Mapping[str, str], store_url: str) -> ReadOptions:
    """The options of a read. InvalidConfiguration names the option and the remedy."""
    given = lowered(options)
    # Settings of Kafka's clients have no effect on a read without brokers.
    named = {
        name: value
        for name, value in given.items()
        if name not in _IGNORED and not name.startswith("kafka.")
    }
    check_names(named, READ_OPTIONS, WRITE_OPTIONS)
    isolation = given.get(_ISOLATION_LEVEL, "read_committed")
    if isolation != "read_committed":
        raise InvalidConfiguration(
            f"{_ISOLATION_LEVEL}={isolation}: only what is committed is read; leave it out"
        )
    snapshot = given.get("snapshot", "lso").lower()
    if snapshot not in {"lso", "atomic"}:
        raise InvalidConfiguration(f"snapshot is lso or atomic, not {snapshot!r}")
    strategy = given.get("startingoffsetsbytimestampstrategy", "error").lower()
    if strategy not in {"error", "latest"}:
        raise InvalidConfiguration(
            f"startingOffsetsByTimestampStrategy is error or latest, not {strategy!r}"
        )
    found = ReadOptions(
        store_url=store_url,
        choice=_choice(given),
        starting=_bound(given, "starting"),
        ending=_bound(given, "ending"),
        is_latest_without_match=strategy == "latest",
        fail_on_data_loss=boolean(given, "failOnDataLoss", True),
        is_atomic=snapshot == "atomic",
        include_tail=boolean(given, "includeTail", True),
        include_headers=boolean(given, "includeHeaders", False),
        include_producer=boolean(given, "includeProducer", False),
        partitions_min=_positive(given, "minPartitions"),
        partitions_max=_positive(given, "maxPartitions"),
        records_max=_positive(given, "maxRecordsPerPartition"),
        trigger_offsets_max=_positive(given, "maxOffsetsPerTrigger"),
        trigger_offsets_min=_positive(given, "minOffsetsPerTrigger"),
        trigger_delay_max_ms=_duration_ms(given, "maxTriggerDelay", "15m"),
        publish_group=_group(given),
        bootstrap=_bootstrap(given),
        security=security_properties(given),
    )
    most, least = found.trigger_offsets_max, found.trigger_offsets_min
    if most is not None and least is not None and least > most:
        raise InvalidConfiguration(
            f"minOffsetsPerTrigger {least} is more than maxOffsetsPerTrigger {most}"
        )
    most, least = found.partitions_max, found.partitions_min
    if most is not None and least is not None and least > most:
        raise InvalidConfiguration(f"minPartitions {least} is more than maxPartitions {most}")
    return found


def _group(given: Mapping[str, str]) -> str | None:
    text = given.get("publishgroupid")
    if text is None:
        return None
    if not text.strip():
        raise InvalidConfiguration(
            "publishGroupId is empty; it names the consumer group whose offsets are to say what the"
            " query has committed"
        )
    return text.strip()


def _bootstrap(given: Mapping[str, str]) -> tuple[tuple[str, int], ...]:
    if "publishgroupid" not in given:
        # Kafka's connector always has this option; a read needs no broker.
        return ()
    text = given.get(BOOTSTRAP, "").strip()
    if not text:
        raise InvalidConfiguration(
            f"publishGroupId needs {BOOTSTRAP}: HOST:PORT of some brokers, which keep the group's"
            " offsets"
        )
    return addresses(text)


def _choice(given: Mapping[str, str]) -> Choice:
    chosen = [name for name in CHOICES if name.lower() in given]
    if len(chosen) != 1:
        what = " and ".join(chosen) if chosen else "none"
        raise InvalidConfiguration(f"give exactly one of {', '.join(CHOICES)}, not {what}")
    name, text = chosen[0], given[chosen[0].lower()]
    if not text.strip():
        raise InvalidConfiguration(f"{name} is empty")
    match name:
        case "assign":
            return Assigned(_assignment(text))
        case "subscribe":
            topics = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
            if not topics:
                raise InvalidConfiguration("subscribe names no topic")
            return Subscribed(topics)
    try:
        check_pattern(text)
    except InvalidPattern as error:
        raise InvalidConfiguration(f"subscribePattern: {error}") from error
    return Pattern(text)


def _assignment(text: str) -> dict[str, tuple[int, ...]]:
    example = '{"topic":[0,1]}'
    found = _json_object("assign", text, example)
    assigned = {}
    for topic, numbers in found.items():
        if (
            not isinstance(numbers, list)
            or not numbers
            or not all(type(number) is int and number >= 0 for number in numbers)
        ):
            raise InvalidConfiguration(
                f"assign: the partitions of {topic} are a list of numbers, as in {example}"
            )
        assigned[topic] = tuple(sorted(set(numbers)))
    return assigned


def _bound(given: Mapping[str, str], which: str) -> Bound | None:
    """The bound by Kafka's precedence: one time for all, times, offsets."""
    option = f"{which}Timestamp"
    text = given.get(option.lower())
    if text is not None:
        return Timestamps(option, number(option, text, 0))
    option = f"{which}OffsetsByTimestamp"
    text = given.get(option.lower())
    if text is not None:
        return Timestamps(option, _numbers(option, text, '{"topic":{"0":1609459200000}}', 0))
    option = f"{which}Offsets"
    text = given.get(option.lower())
    if text is None:
        return None
    if text.strip().lower() in {edge.value for edge in Edge}:
        return Edge(text.strip().lower())
    example = '{"topic":{"0":23,"1":-2}}'
    if not text.strip().startswith("{"):
        raise InvalidConfiguration(f"{option} is earliest, latest or JSON as {example}")
    return Offsets(option, _numbers(option, text, example, EARLIEST))


def _numbers(option: str, text: str, example: str, least: int) -> PerPartition:
    found: dict[str, dict[int, int]] = {}
    for topic, values in _json_object(option, text, example).items():
        if not isinstance(values, dict) or not values:
            raise InvalidConfiguration(f"{option}: {topic} has no numbers as in {example}")
        for partition, value in values.items():
            if not partition.isdecimal() or type(value) is not int:
                raise InvalidConfiguration(
                    f"{option}: {topic} has {json.dumps(partition)}: {json.dumps(value)}, which is"
                    f" no partition and number, as in {example}"
                )
            if not least <= value <= _LONG_MAX:
                wrong = "small" if value < least else "large"
                raise InvalidConfiguration(
                    f"{option}: {value} of {topic}-{partition} is too {wrong}"
                )
            found.setdefault(topic, {})[int(partition)] = value
    return found


def _json_object(option: str, text: str, example: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise InvalidConfiguration(
            f"{option} is not JSON ({error}); it looks like {example}"
        ) from None
    if not isinstance(found, dict) or not found:
        raise InvalidConfiguration(f"{option} is not a JSON object; it looks like {example}")
    return found


def number(option: str, text: str, least: int) -> int:
    if not text.strip().isdecimal() or not least <= int(text) <= _LONG_MAX:
        raise InvalidConfiguration(f"{option} is a whole number from {least} on, not {text!r}")
    return int(text)


def _positive(given: Mapping[str, str], option: str) -> int | None:
    return _given(given, option, lambda text: number(option, text, 1))


def _given(given: Mapping[str, str], option: str, parse: Callable[[str], T]) -> T | None:
    text = given.get(option.lower())
    return None if text is None else parse(text)


def boolean(given: Mapping[str, str], option: str, default: bool) -> bool:
    text = given.get(option.lower(), str(default)).strip().lower()
    if text not in {"true", "false"}:
        raise InvalidConfiguration(f"{option} is true or false, not {text!r}")
    return text == "true"


def _duration_ms(given: Mapping[str, str], option: str, default: str) -> int:
    text = given.get(option.lower(), default).strip().lower()
    match = _DURATION.fullmatch(text)
    if match is None:
        raise InvalidConfiguration(
            f"{option} is a duration such as 15m, 30s or 500ms, not {text!r}"
        )
    return int(match[1]) * _UNIT_MS[match[2] or "ms"]


def _refuse(bound: Bound, edge: Edge, number: int, option: str, why: str) -> None:
    """Refuse an edge, also for a single partition."""
    if bound is edge:
        raise InvalidConfiguration(f"{option}={edge.value}: {why}")
    if isinstance(bound, Offsets):
        for topic, offsets in bound.by_partition.items():
            for partition, offset in offsets.items():
                if offset == number:
                    raise InvalidConfiguration(f"{option}: {number} for {topic}-{partition}: {why}")
