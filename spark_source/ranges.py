"""The partitions and offset ranges of a read. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches

from tidelog.bucket.views.partition_view import PartitionView
from tidelog.coordinator.cluster.records.topics import Topic
from tidelog.coordinator.cluster.state.state import ClusterState
from tidelog.errors import InvalidConfiguration, TidelogError, some_of
from tidelog.identifiers import TopicPartition, TransactionName
from tidelog.spark_source.options.options import (
    EARLIEST,
    LATEST,
    Assigned,
    Bound,
    Choice,
    Edge,
    Offsets,
    Pattern,
    ReadOptions,
    Timestamps,
)


class DataLost(TidelogError):
    """Offsets of the read no longer exist."""


@dataclass(frozen=True, slots=True)
class ReadableOffsets:
    """The readable offsets of a partition at one moment."""

    topic: str
    partition: TopicPartition
    log_start: int
    table_next: int
    end: int
    """Exclusive. The last stable offset; without tails the table's end; in an atomic snapshot the
    high watermark.
    """
    log_end: int
    """The end with tails. A stream that read them before stands above `end`, and has lost nothing.
    """

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition.partition}"


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The contents of one DataFrame, fixed at its creation."""

    partitions: tuple[ReadableOffsets, ...]
    excluded: frozenset[TransactionName] | None = None
    """For an atomic snapshot: its undecided and aborted transactions, which it excludes. It
    includes all others, even above the last stable offset.
    """
    starts: Mapping[TopicPartition, int | None] = field(default_factory=dict)
    ends: Mapping[TopicPartition, int | None] = field(default_factory=dict)
    """The offsets of time bounds, None if no record is so late. Later searches would miss records
    that were deleted since, and begin or end elsewhere.
    """


@dataclass(frozen=True, slots=True)
class ReadRange:
    """Offsets [start, end) of a partition."""

    limits: ReadableOffsets
    start: int
    end: int


def limits_of(
    view: PartitionView, *, include_tail: bool, is_atomic: bool = False
) -> ReadableOffsets:
    """The readable offsets of a partition."""
    end = log_end = view.high_watermark if is_atomic else view.last_stable_offset
    if not include_tail:
        # Records may have been deleted before any table held them.
        end = max(view.log_start, min(end, view.table_next))
    start, table_next = view.log_start, view.table_next
    return ReadableOffsets(view.topic, view.partition, start, table_next, end, log_end)


def chosen_topics(choice: Choice, state: ClusterState) -> list[Topic]:
    """The topics of a read. InvalidConfiguration."""
    if isinstance(choice, Pattern):
        found = [
            topic
            for topic in state.topics.values()
            if not topic.internal and choice.matches(topic.name)
        ]
        return sorted(found, key=lambda topic: topic.name)
    names = choice.partitions if isinstance(choice, Assigned) else choice.topics
    return [_topic(state, name) for name in names]


def chosen_partitions(choice: Choice, topics: Iterable[Topic]) -> list[TopicPartition]:
    """The partitions of a read in these topics. InvalidConfiguration."""
    found = []
    for topic in topics:
        numbers: Iterable[int] = range(topic.partition_count)
        if isinstance(choice, Assigned):
            numbers = choice.partitions[topic.name]
            if missing := [each for each in numbers if each >= topic.partition_count]:
                raise InvalidConfiguration(
                    f"assign: {topic.name} has no partition {missing[0]}, only"
                    f" {topic.partition_count} from 0 on"
                )
        found += [TopicPartition(topic.topic_id, number) for number in numbers]
    return found


def check_named(bound: Bound | None, of: Iterable[ReadableOffsets]) -> None:
    """Raise InvalidConfiguration unless a bound's map names exactly the partitions of the read."""
    if not isinstance(bound, (Offsets, Timestamps)) or isinstance(bound.by_partition, int):
        return
    option, named = bound.option, bound.by_partition
    given = {(topic, number) for topic, values in named.items() for number in values}
    read = {(limits.topic, limits.partition.partition) for limits in of}
    if given == read:
        return
    missing = ", ".join(f"{topic}-{number}" for topic, number in sorted(read - given))
    added = ", ".join(f"{topic}-{number}" for topic, number in sorted(given - read))
    raise InvalidConfiguration(
        f"{option} must name exactly the partitions that are read:"
        + (f" it lacks {missing};" if missing else "")
        + (f" it adds {added};" if added else "")
        + f" {EARLIEST} stands for earliest, {LATEST} for latest"
    )


def offset_at(
    bound: Bound,
    limits: ReadableOffsets,
    since: Mapping[TopicPartition, int | None],
    *,
    is_latest: bool,
) -> int:
    """The offset of a bound. InvalidConfiguration for an offset above the end.

    `since` has the offset for each time bound, or None if no record is at or after the time. Then
    `is_latest` selects the end; otherwise InvalidConfiguration.
    """
    match bound:
        case Edge.EARLIEST:
            return limits.log_start
        case Edge.LATEST:
            return limits.end
        case Offsets(option, given):
            offset = given[limits.topic][limits.partition.partition]
            if offset > limits.end:
                raise InvalidConfiguration(
                    f"{option}: {offset} of {limits} is above {limits.end}, to where it can be read"
                )
            return {EARLIEST: limits.log_start, LATEST: limits.end}.get(offset, offset)
        case Timestamps(option=option):
            found = since[limits.partition]
            if found is None and not is_latest:
                raise InvalidConfiguration(
                    f"{option}: {limits} has no record of that time or later; with"
                    " startingOffsetsByTimestampStrategy=latest it is read from its end on"
                )
            return limits.end if found is None else found
    raise AssertionError(bound)


def batch_ranges(options: ReadOptions, snapshot: Snapshot) -> list[ReadRange]:
    """The ranges of a batch. Raises InvalidConfiguration."""
    assert options.starting is not None
    assert options.ending is not None
    found = []
    is_latest = options.is_latest_without_match
    for each in snapshot.partitions:
        start = offset_at(options.starting, each, snapshot.starts, is_latest=is_latest)
        end = offset_at(options.ending, each, snapshot.ends, is_latest=True)
        if start > end and isinstance(options.starting, Offsets):
            raise InvalidConfiguration(f"startingOffsets: {start} of {each} is above its end {end}")
        if start < end:
            found.append(ReadRange(each, start, end))
    return found


def available(wanted: ReadRange, log_start: int, *, fail_on_data_loss: bool) -> ReadRange:
    """The remaining part of a range. DataLost if a part is gone and `fail_on_data_loss` is set."""
    if wanted.start >= log_start:
        return wanted
    if fail_on_data_loss:
        last = min(log_start, wanted.end) - 1
        raise DataLost(
            f"offsets {wanted.start} to {last} of {wanted.limits} are not there any more: its log"
            f" begins at {log_start}. They were deleted by retention or on request; with"
            " failOnDataLoss=false they are passed over"
        )
    return ReadRange(wanted.limits, min(log_start, wanted.end), wanted.end)


def _topic(state: ClusterState, name: str) -> Topic:
    topic = state.topic_named(name)
    if topic is None:
        names = sorted(each.name for each in state.topics.values() if not each.internal)
        close = get_close_matches(name, names, n=1)
        hint = (
            f"did you mean {close[0]}?" if close else f"its topics are {some_of(names) or 'none'}"
        )
        raise InvalidConfiguration(f"there is no topic {name} in this bucket; {hint}")
    if topic.internal:
        raise InvalidConfiguration(
            f"{name} is internal: read it as data with format tidelog.groups or"
            " tidelog.transactions"
        )
    return topic
