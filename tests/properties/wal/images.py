"""Partition images of every shape."""

from __future__ import annotations

from hypothesis import strategies as st

from tests.properties.wal.batches import topic_partition
from tidelog.identifiers import LeaderEpoch
from tidelog.wal.log.extents import Extent, Extents
from tidelog.wal.log.image import PartitionImage
from tidelog.wal.log.leader_epochs import EpochStart
from tidelog.wal.log.producer_state import ProducerState, RememberedBatch
from tidelog.wal.log.transactions import AbortedIndexEntry

INT64 = st.integers(-(2**63), 2**63 - 1)
INT32 = st.integers(-(2**31), 2**31 - 1)
OFFSETS = st.integers(0, 2**62)
# An "@" in a reference separates the key from the adoption, and no key contains one.
KEYS = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="@"), min_size=1, max_size=20
)

remembered = st.builds(RememberedBatch, INT32, INT32, INT64, INT64, INT64)


@st.composite
def producers(draw: st.DrawFn, next_offset: int) -> tuple[ProducerState, ...]:
    ids = sorted(draw(st.sets(st.integers(0, 2**62), max_size=4)))
    open_from = st.integers(-1, next_offset - 1)
    return tuple(
        ProducerState(
            producer_id,
            draw(st.integers(-1, 2**15 - 1)),
            draw(INT32),
            tuple(draw(st.lists(remembered, max_size=5))),
            draw(INT64),
            draw(open_from),
            draw(INT64),
        )
        for producer_id in ids
    )


@st.composite
def images(draw: st.DrawFn, number: int = 0) -> PartitionImage:
    """An image that breaks no rule."""
    lengths = draw(st.lists(st.integers(1, 1000), max_size=6))
    begin = draw(OFFSETS)
    extents, next_offset = Extents(), begin
    keys = draw(st.lists(KEYS, min_size=1, max_size=3))
    for length in lengths:
        key = draw(st.sampled_from(keys))
        place = draw(st.tuples(INT64, INT64, INT64))
        last = next_offset + length - 1
        extents.append(Extent(next_offset, last, place[0], key, place[1], place[2]))
        next_offset += length
    starts = sorted(draw(st.sets(st.integers(0, next_offset), max_size=4)))
    epochs = sorted(
        draw(st.sets(st.integers(0, 2**31 - 1), min_size=len(starts), max_size=len(starts)))
    )
    log_start = draw(st.integers(0, next_offset))
    table_next = draw(st.integers(begin, next_offset))
    return PartitionImage(
        partition=topic_partition(number),
        leader_epoch=LeaderEpoch(epochs[-1] if epochs else draw(st.integers(0, 2**31 - 1))),
        next_offset=next_offset,
        log_start=log_start,
        table_next=table_next,
        leader_epochs=tuple(
            EpochStart(LeaderEpoch(epoch), start)
            for epoch, start in zip(epochs, starts, strict=True)
        ),
        producers=draw(producers(next_offset)),
        has_forgotten_producers=draw(st.booleans()),
        aborted=tuple(
            draw(st.lists(st.builds(AbortedIndexEntry, INT64, INT64, INT64, INT64), max_size=3))
        ),
        extents=extents,
    )


@st.composite
def many_images(draw: st.DrawFn) -> list[PartitionImage]:
    """Images of different partitions."""
    return [draw(images(number)) for number in range(draw(st.integers(0, 4)))]
