"""A stream's offsets: the size of a batch, lost records, and the progress that Spark keeps."""

from __future__ import annotations

import json
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.errors import InvalidConfiguration
from tidelog.identifiers import TopicPartition
from tidelog.spark_source.ranges import DataLost, ReadableOffsets, ReadRange
from tidelog.spark_source.stream.progress import (
    StreamOffsets,
    between,
    limited,
    pending,
    progress_at,
)

ID, OTHER = UUID(int=5), UUID(int=6)


def limits(partition: int, end: int, log_start: int = 0, topic_id: UUID = ID) -> ReadableOffsets:
    return ReadableOffsets("t", TopicPartition(topic_id, partition), log_start, 0, end, end)


def at(**offsets: int) -> StreamOffsets:
    """`p3=5`: partition 3 is at offset 5."""
    found = {TopicPartition(ID, int(name[1:])): offset for name, offset in offsets.items()}
    return StreamOffsets({"t": ID}, found)


def test_spark_keeps_names_ids_and_offsets_as_json() -> None:
    progress = at(p0=3, p10=4, p2=5)
    kept = progress.checkpoint()
    assert kept == {"t": {"id": str(ID), "offsets": {"0": 3, "2": 5, "10": 4}}}
    assert StreamOffsets.of(json.loads(json.dumps(kept))) == progress
    for foreign in ({"t": {"0": 5}}, {"t": 5}, {"t": {"id": "x", "offsets": {}}}):
        with pytest.raises(InvalidConfiguration, match="use a new checkpointLocation"):
            StreamOffsets.of(foreign)


def test_new_partitions_begin_with_their_log() -> None:
    found = pending(at(p0=3), [limits(0, 9), limits(1, 9, log_start=4)], fail_on_data_loss=True)
    assert [(each.start, each.end) for each in found] == [(3, 9), (4, 9)]


def test_lost_partitions_and_offsets_are_named() -> None:
    cases = [
        (at(p0=3, p1=5), [limits(0, 9)], "t-1, of which the stream was at offset 5, is deleted or"),
        (at(p0=30), [limits(0, 9)], "was at offset 30 of t-0, which can be read up to 9 only"),
        (at(p0=3), [limits(0, 9, topic_id=OTHER)], "topic t was deleted and created again"),
    ]
    for start, there, message in cases:
        with pytest.raises(DataLost, match=message):
            pending(start, there, fail_on_data_loss=True)
        for each in pending(start, there, fail_on_data_loss=False):
            assert each.start <= each.end


def test_a_batch_that_cannot_be_read_to_its_end_is_named() -> None:
    known = {each.partition: each for each in [limits(0, 9)]}
    for end, message in [
        (at(p0=12), "up to offset 12, but it ends at 9"),
        (at(p1=5), "up to offset 5, but it is not there any more"),
    ]:
        with pytest.raises(DataLost, match=message):
            between(at(), end, known, fail_on_data_loss=True)
    assert between(at(p0=2), at(p0=12, p1=5), known, fail_on_data_loss=False) == [
        ReadRange(limits(0, 9), 2, 9)
    ]
    # The first batch is repeated, and latest is another offset by now.
    assert between(at(p0=9), at(p0=4), known, fail_on_data_loss=True) == []


@given(
    st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)), min_size=1, max_size=6),
    st.integers(1, 60),
)
def test_batches_of_bounded_size_reach_the_end(sizes: list[tuple[int, int]], most: int) -> None:
    there = [limits(number, start + size) for number, (start, size) in enumerate(sizes)]
    progress = progress_at(
        there, {each.partition: start for each, (start, _) in zip(there, sizes, strict=True)}
    )
    for _ in range(400):
        ranges = pending(progress, there, fail_on_data_loss=True)
        left = sum(each.end - each.start for each in ranges)
        if not left:
            break
        ends = limited(ranges, most)
        taken = sum(ends.values()) - sum(progress.offsets.values())
        # Each partition with new records advances by one at least.
        assert min(left, 1) <= taken <= most + len(there)
        progress = progress_at(there, ends)
    assert progress.offsets == {each.partition: each.end for each in there}
