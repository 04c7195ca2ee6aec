"""A stream's offsets: checkpoint form, batch ranges and data loss. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias
from uuid import UUID

from tidelog.errors import InvalidConfiguration
from tidelog.identifiers import TopicId, TopicPartition
from tidelog.spark_source.ranges import DataLost, ReadableOffsets, ReadRange

Checkpoint: TypeAlias = dict[str, Any]
"""Spark's checkpoint form: `{topic: {"id": topic id, "offsets": {partition: next offset}}}`."""

_ID: Final = "id"
_OFFSETS: Final = "offsets"


@dataclass(frozen=True, slots=True)
class StreamOffsets:
    """The next offset of each partition. Topic ids detect a topic that was created again."""

    topics: Mapping[str, TopicId]
    offsets: Mapping[TopicPartition, int]

    def checkpoint(self) -> Checkpoint:
        """The offsets in Spark's checkpoint form."""
        found: Checkpoint = {}
        for name, topic_id in sorted(self.topics.items()):
            numbers = sorted(
                (each.partition, offset)
                for each, offset in self.offsets.items()
                if each.topic_id == topic_id
            )
            offsets = {str(number): offset for number, offset in numbers}
            found[name] = {_ID: str(topic_id), _OFFSETS: offsets}
        return found

    @classmethod
    def of(cls, checkpoint: Checkpoint) -> StreamOffsets:
        """The offsets in a checkpoint. InvalidConfiguration for another source's checkpoint."""
        topics: dict[str, TopicId] = {}
        offsets: dict[TopicPartition, int] = {}
        try:
            for name, held in checkpoint.items():
                topic_id = UUID(held[_ID])
                topics[name] = topic_id
                for number, offset in held[_OFFSETS].items():
                    offsets[TopicPartition(topic_id, int(number))] = int(offset)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise InvalidConfiguration(
                f"the checkpoint has offsets of another source: {checkpoint!r} ({error!r}); use a"
                " new checkpointLocation"
            ) from None
        return cls(topics, offsets)


def progress_at(
    limits: Iterable[ReadableOffsets], offsets: Mapping[TopicPartition, int]
) -> StreamOffsets:
    topics = {each.topic: each.partition.topic_id for each in limits}
    return StreamOffsets(topics, offsets)


def pending(
    start: StreamOffsets, limits: Iterable[ReadableOffsets], *, fail_on_data_loss: bool
) -> list[ReadRange]:
    """The readable range after a progress in each partition; an empty range if there is none.

    Partitions that the progress does not name are new, and start at their log start. DataLost if
    offsets are lost and `fail_on_data_loss` is set.
    """
    found = []
    for each in limits:
        begin = start.offsets.get(each.partition)
        if begin is None:
            _check_topic(start, each, fail_on_data_loss=fail_on_data_loss)
            begin = each.log_start
        elif begin > each.log_end and fail_on_data_loss:
            raise DataLost(
                f"the stream was at offset {begin} of {each}, which can be read up to"
                f" {each.log_end} only: has the bucket been restored from a copy? With"
                " failOnDataLoss=false the stream goes on when the log reaches there"
            )
        found.append(ReadRange(each, begin, max(begin, each.end)))
    if fail_on_data_loss:
        _check_all_there(start, found)
    return found


def limited(ranges: list[ReadRange], offsets_max: int) -> dict[TopicPartition, int]:
    """The end offsets of a batch of at most `offsets_max` offsets, in proportion to each range.

    As in Kafka's connector, each partition with records advances by one offset at least.
    """
    total = sum(each.end - each.start for each in ranges)
    ends = {}
    for each in ranges:
        size = each.end - each.start
        share = size if total <= offsets_max else max(1, size * offsets_max // total)
        ends[each.limits.partition] = each.start + min(size, share)
    return ends


def between(
    start: StreamOffsets,
    end: StreamOffsets,
    limits: Mapping[TopicPartition, ReadableOffsets],
    *,
    fail_on_data_loss: bool,
) -> list[ReadRange]:
    """The ranges of a batch. Partitions that only `end` names start at their log start.

    DataLost if offsets are lost and `fail_on_data_loss` is set.
    """
    found = []
    names = {topic_id: name for name, topic_id in end.topics.items()}
    for partition, following in sorted(end.offsets.items()):
        known = limits.get(partition)
        begin = start.offsets.get(partition)
        if begin is None and known is not None:
            begin = known.log_start
        if begin is not None and begin >= following:
            continue
        name = f"{names[partition.topic_id]}-{partition.partition}"
        if known is None or known.log_end < following:
            if fail_on_data_loss:
                there = (
                    "it is not there any more" if known is None else f"it ends at {known.log_end}"
                )
                raise DataLost(
                    f"a batch was to read {name} up to offset {following}, but {there}; with"
                    " failOnDataLoss=false what is lost is passed over"
                )
            if known is None:
                continue
            following = known.log_end
        if begin is not None and begin < following:
            found.append(ReadRange(known, begin, following))
    return found


def _check_topic(start: StreamOffsets, new: ReadableOffsets, *, fail_on_data_loss: bool) -> None:
    known = start.topics.get(new.topic)
    if known is not None and known != new.partition.topic_id and fail_on_data_loss:
        raise DataLost(
            f"topic {new.topic} was deleted and created again: offsets of the former one are lost;"
            " with failOnDataLoss=false the new one is read from its beginning"
        )


def _check_all_there(start: StreamOffsets, found: Iterable[ReadRange]) -> None:
    gone = start.offsets.keys() - {each.limits.partition for each in found}
    names = {topic_id: name for name, topic_id in start.topics.items()}
    for partition in sorted(gone):
        name = names.get(partition.topic_id, str(partition.topic_id))
        raise DataLost(
            f"{name}-{partition.partition}, of which the stream was at offset"
            f" {start.offsets[partition]}, is deleted or left out by the options; with"
            " failOnDataLoss=false it is passed over"
        )
