"""The ranges that tasks read: none twice, none missing, in the requested number and size."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.bucket.views.partition_view import PartitionView
from tidelog.identifiers import LeaderEpoch, TopicPartition
from tidelog.spark_source import planning
from tidelog.spark_source.planning import Piece, Stretch, group, plan, split
from tidelog.spark_source.ranges import ReadableOffsets, ReadRange
from tidelog.storage.segment.segment import Segment, SegmentName
from tidelog.storage.table.table_state import TableSegment
from tidelog.wal.log.extents import Extent, Extents
from tidelog.wal.log.image import PartitionImage

ID = UUID(int=5)
KIB = 1024


def segment(first: int, last: int, partition: int = 0, **facts: Any) -> Segment:
    given = {
        "size_bytes": KIB,
        "row_count": last + 1 - first,
        "first_row": first,
        "last_row": last,
        "undated_rows": 0,
        "raw_bytes": KIB,
        "timestamp_min": first,
        "timestamp_max": last,
        "crc32c": 0,
        "tail_bytes": 100,
    } | facts
    name = SegmentName(partition=partition, base_offset=first, last_offset=last, id=ID)
    return Segment(name=name, **given)


def view(segments: Sequence[tuple[int, int]], tail: int, partition: int = 0) -> PartitionView:
    """A view with segments at these offsets, and a tail of `tail` one-offset extents behind
    them."""
    table_next = segments[-1][1] + 1 if segments else 0
    end = table_next + tail
    extents = Extents(
        Extent(offset, offset, 0, f"wal/{offset}", 0, 10) for offset in range(table_next, end)
    )
    image = PartitionImage(
        TopicPartition(ID, partition),
        LeaderEpoch(1),
        end,
        0,
        table_next,
        (),
        (),
        False,
        (),
        extents,
    )
    stored = [TableSegment(segment(first, last, partition), 0) for first, last in segments]
    return PartitionView("t", image.partition, False, 0, stored, image, end)


def whole(found: PartitionView) -> tuple[ReadRange, PartitionView]:
    end = found.last_stable_offset
    limits = ReadableOffsets(
        "t", found.partition, found.log_start, found.table_next, end, log_end=end
    )
    return ReadRange(limits, 0, limits.end), found


def offsets_read(pieces: Sequence[Piece]) -> list[int]:
    """The offsets that the tasks read: each segment and extent, cut to the piece."""
    found = []
    for piece in pieces:
        held = [range(each.first_row, each.last_row + 1) for each in piece.segments]
        if piece.tail is not None:
            held += [range(each.base_offset, each.last_offset + 1) for each in piece.tail.tail]
        wanted = range(piece.range.start, piece.range.end)
        found += [offset for part in held for offset in part if offset in wanted]
    return found


@given(
    st.lists(st.tuples(st.integers(1, 5), st.integers(0, 3)), max_size=8),
    st.integers(0, 10),
    st.one_of(st.none(), st.integers(1, 40)),
    st.one_of(st.none(), st.integers(1, 10)),
    st.integers(1, 5),
)
def test_every_offset_is_read_once_and_in_order(
    lengths: list[tuple[int, int]],
    tail: int,
    partitions_min: int | None,
    records_max: int | None,
    piece_kib: int,
) -> None:
    segments, position = [], 0
    for rows, gap in lengths:
        segments.append((position, position + rows - 1))
        position += rows + gap
    found = view(segments, tail)
    expected = [
        *(offset for first, last in segments for offset in range(first, last + 1)),
        *range(found.table_next, found.high_watermark),
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(planning, "PIECE_BYTES", piece_kib * KIB)
        pieces = plan(
            [whole(found)],
            partitions_min=partitions_min,
            records_max=records_max,
        )
    assert offsets_read(pieces) == expected
    assert all(a.range.end <= b.range.start for a, b in pairwise(pieces))
    if records_max is not None:
        assert all(each.range.end - each.range.start <= records_max for each in pieces)
    if partitions_min is not None:
        assert len(pieces) >= min(partitions_min, len(expected))


def test_small_segments_are_read_together_up_to_a_size() -> None:
    parts = [Stretch(number, number + 1, 30) for number in range(7)]
    assert list(group(parts, 100)) == [Stretch(0, 3, 90), Stretch(3, 6, 90), Stretch(6, 7, 30)]
    assert list(group([Stretch(0, 9, 500), Stretch(9, 10, 1)], 100)) == [
        Stretch(0, 9, 500),
        Stretch(9, 10, 1),
    ]
    assert [each.offsets for each in split(Stretch(0, 10, 90), 3)] == [3, 3, 4]


def test_more_pieces_than_a_driver_can_bear_are_made_fewer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(planning, "PIECES_MAX", 10)
    found = view([(0, 99)], 0)
    pieces = plan([whole(found)], records_max=1)
    assert len(pieces) == 10
    assert offsets_read(pieces) == list(range(100))


def test_a_task_is_sent_its_part_of_the_tail_and_little_else() -> None:
    found = view([(0, 4)], 10)
    (piece,) = plan([(ReadRange(whole(found)[0].limits, 7, 9), found)])
    assert piece.tail is not None
    assert piece.segments == ()
    assert piece.tail.segments == ()
    assert [each.base_offset for each in piece.tail.tail] == [7, 8]
    (piece,) = plan([(ReadRange(whole(found)[0].limits, 0, 5), found)])
    assert piece.tail is None
