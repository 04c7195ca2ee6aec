"""Logs rebuilt around lost slots: the remaining records keep their places and their meaning."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.properties.wal.batches import EPOCH_0, incarnation, topic_partition
from tidelog.errors import MissingObject
from tidelog.identifiers import LeaderEpoch
from tidelog.records.batch import CONTROL_FLAG, TRANSACTIONAL_FLAG, batch_positions, headers_of
from tidelog.records.control import MarkerType, parse_marker
from tidelog.wal.format.slot_index import SlotIndex, check_body
from tidelog.wal.log.entries import COMMIT_FLAG, NO_ORDINAL, EntryKind, IndexEntry
from tidelog.wal.log.extents import Extent, Extents
from tidelog.wal.log.image import PartitionImage
from tidelog.wal.recover.filler import Filler
from tidelog.wal.recover.salvage import END_OFFSETS, Event, Found, filled_offsets, patch, salvage

PLACE = topic_partition(0)
KEY = "wal/7-1/00000000000000000000.wal"
EMPTY = PartitionImage.empty(PLACE, EPOCH_0)


def filler() -> Filler:
    return Filler(incarnation(9), 0, 5_000, bytes(16))


@dataclass
class History:
    """A partition's entries as they were written, one a slot."""

    entries: list[IndexEntry] = field(default_factory=list)
    open: dict[int, int] = field(default_factory=dict)
    """The ordinals of open transactions."""
    ordinals: dict[int, int] = field(default_factory=dict)
    leader_epoch: LeaderEpoch = EPOCH_0

    @property
    def next_offset(self) -> int:
        return self.entries[-1].last_offset + 1 if self.entries else 0

    def batch(self, records: int, producer: int = -1) -> None:
        ordinal = NO_ORDINAL
        if producer >= 0:
            if producer not in self.open:
                self.ordinals[producer] = self.ordinals.get(producer, 0) + 1
                self.open[producer] = self.ordinals[producer]
            ordinal = self.open[producer]
        self._add(records, producer, ordinal, TRANSACTIONAL_FLAG if producer >= 0 else 0)

    def marker(self, producer: int, commit: bool) -> None:
        if producer in self.open:
            flags = TRANSACTIONAL_FLAG | CONTROL_FLAG | (COMMIT_FLAG if commit else 0)
            self._add(1, producer, self.open.pop(producer), flags)

    def _add(self, records: int, producer: int, ordinal: int, flags: int) -> None:
        base = self.next_offset
        self.entries.append(
            IndexEntry(
                kind=EntryKind.BATCH,
                topic_id=PLACE.topic_id,
                partition=PLACE.partition,
                leader_epoch=self.leader_epoch,
                base_offset=base,
                last_offset=base + records - 1,
                record_count=records,
                producer_id=producer,
                producer_epoch=0 if producer >= 0 else -1,
                ordinal=ordinal,
                first_sequence=-1,
                last_sequence=0 if flags & CONTROL_FLAG else -1,
                flags=flags,
                first_timestamp=1_000,
                max_timestamp=1_000,
                key=KEY,
                position=100 * base,
                length=100 * records,
            )
        )

    def events(self, lost: set[int]) -> list[Event]:
        return [
            MissingObject(f"slot {place}", "it is missing")
            if place in lost
            else Found(entry, 1_000)
            for place, entry in enumerate(self.entries)
        ]


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("batch"), st.integers(1, 5), st.sampled_from([-1, 1, 2, 3])),
        st.tuples(st.just("marker"), st.sampled_from([1, 2, 3]), st.booleans()),
    ),
    min_size=1,
    max_size=40,
)


def history(steps: list[tuple[str, int, int]]) -> History:
    found = History()
    for kind, first, second in steps:
        if kind == "batch":
            found.batch(first, second)
        else:
            found.marker(first, bool(second))
    return found


@settings(deadline=None)
@given(STEPS, st.sets(st.integers(0, 39)))
def test_remaining_records_keep_their_offsets_and_their_meaning(
    steps: list[tuple[str, int, int]], lost: set[int]
) -> None:
    written = history(steps)
    lost &= set(range(len(written.entries)))
    filled = filler()
    image, aborted = salvage(EMPTY, written.events(lost), filled)
    assert image.fault() is None
    left = [entry for place, entry in enumerate(written.entries) if place not in lost]
    for entry in left:
        extent = image.extents.find(entry.base_offset)
        assert extent is not None
        assert extent.key == KEY
        assert extent.position <= entry.position
    # Exactly the lost offsets were filled, up to the last entry that is left.
    end = left[-1].last_offset + 1 if left else 0
    gone = {
        offset
        for place in lost
        for offset in range(
            written.entries[place].base_offset, written.entries[place].last_offset + 1
        )
    }
    ranges = filled_offsets(image, filled)
    within = {at for first, last in ranges for at in range(first, min(last, end - 1) + 1)}
    assert within == {offset for offset in gone if offset < end}
    if gone and max(gone) >= end:
        assert image.next_offset >= end + END_OFFSETS
        assert image.next_offset > max(gone)
    check_transactions(written, lost, image, {each.producer_id for each in aborted})


def check_transactions(
    written: History, lost: set[int], image: PartitionImage, aborted: set[int]
) -> None:
    """A transaction with a remaining marker ended as the marker says. A transaction whose marker is
    lost is aborted."""
    ends: dict[tuple[int, int], int] = {}
    for place, entry in enumerate(written.entries):
        if entry.flags & CONTROL_FLAG:
            ends[entry.producer_id, entry.ordinal] = place
    opened = {p.producer_id: p.transaction_first_offset for p in image.producers}
    for place, entry in enumerate(written.entries):
        if place in lost or entry.producer_id < 0 or entry.flags & CONTROL_FLAG:
            continue
        is_hidden = any(
            each.producer_id == entry.producer_id
            and each.first_offset <= entry.base_offset <= each.last_offset
            for each in image.aborted
        )
        end = ends.get((entry.producer_id, entry.ordinal))
        if end is not None and end not in lost:
            commits = bool(written.entries[end].flags & COMMIT_FLAG)
            assert is_hidden != commits, entry
        elif end is not None:
            assert is_hidden
            assert entry.producer_id in aborted
        else:
            first = opened.get(entry.producer_id, -1)
            assert is_hidden or -1 < first <= entry.base_offset


def test_a_filler_is_an_object_like_other_objects() -> None:
    written = history([("batch", 3, 1), ("batch", 2, -1), ("batch", 4, 2), ("batch", 1, -1)])
    filled = filler()
    image, aborted = salvage(EMPTY, written.events({1, 2}), filled)
    assert [each.producer_id for each in aborted] == [1]
    data = filled.data()
    index = check_body(filled.key, data)
    assert isinstance(index, SlotIndex)
    extents = [extent for extent in image.extents if extent.key == filled.key]
    headers = headers_of(data[: index.layout.index_position], index.columns["position"])
    assert headers["record_count"].tolist() == [0, 1]
    assert [(extent.base_offset, extent.last_offset) for extent in extents] == [(3, 8), (10, 10)]
    for extent in extents:
        held = data[extent.position : extent.position + extent.length]
        extent.check_crcs(headers_of(held, batch_positions(held))["crc"].tobytes())
    marker = parse_marker(data, extents[1].position)
    assert marker is not None
    assert marker.type is MarkerType.ABORT


def batch_positions_in(data: bytes) -> list[int]:
    index = check_body(filler().key, data)
    positions: list[int] = index.columns["position"].tolist()
    return positions


def test_unreadable_batches_are_filled_and_markers_come_back() -> None:
    written = history([("batch", 3, 1), ("batch", 2, -1), ("marker", 1, False), ("batch", 2, -1)])
    image, _ = salvage(EMPTY, written.events(set()), filler())
    parts = [
        Extent(0, 2, 1_000, KEY, 0, 300),
        Extent(3, 5, 1_000, "merged/7-1/00000000000000000000.merged", 0, 300),
        Extent(6, 7, 1_000, KEY, 600, 200),
    ]
    image = replace(image, extents=Extents(parts))
    filled = filler()
    patched = patch(image, {parts[1]}, 0, filled)
    assert patched.fault() is None
    assert filled_offsets(patched, filled) == [(3, 5)]
    data = filled.data()
    (at,) = [at for at in batch_positions_in(data) if headers_of(data, [at])["attributes"][0]]
    marker = parse_marker(data, at)
    assert marker is not None
    assert marker.type is MarkerType.ABORT


def test_offsets_lost_by_a_table_are_filled_before_the_tail() -> None:
    written = history([("batch", 5, -1), ("batch", 5, -1)])
    image, _ = salvage(EMPTY, written.events(set()), filler())
    filled = filler()
    tail = patch(image, (), 0, filled)
    assert filled.is_empty
    assert tail == image
    behind = patch(image, (), 20, filled)
    assert (behind.next_offset, len(behind.extents)) == (20, 0)
    assert behind.fault() is None
