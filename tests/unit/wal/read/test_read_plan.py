"""The size of a read follows from the bytes that readers want and wanted before."""

from __future__ import annotations

from tidelog.storage.object_store import StoredObject
from tidelog.wal.log.extents import Extent
from tidelog.wal.read.read_plan import GAP_BYTES_MAX, Demand, PlannedRead, plan_reads

KIB = 1024
MIB = KIB * KIB
KEY = "wal/0-1/7"
SLICE = 512 * KIB
OBJECT = 8 * MIB + 1000


def extent(number: int, key: str = KEY, size: int = SLICE) -> Extent:
    """The extent of partition `number`. All partitions have extents of the same size."""
    return Extent(0, 9, 0, key, 100 + number * size, size)


class Reader:
    """Makes the planned reads at once, from objects of one size."""

    def __init__(self, size: int = OBJECT) -> None:
        self.demand = Demand()
        self.size = size
        self.held: dict[str, list[tuple[int, int]]] = {}
        self.planned: list[PlannedRead] = []

    def read(self, *extents: Extent, widened_max: int = 16 * MIB) -> list[PlannedRead]:
        key = extents[0].key
        for each in extents:
            self.demand.want(each)
        held = self.held.setdefault(key, [])
        missing = [
            each
            for each in extents
            if not any(s <= each.position and each.position + each.length <= e for s, e in held)
        ]
        if not missing:
            return []
        made = plan_reads(key, missing, self.demand, sorted(held), widened_max)
        for _, start, end in made:
            self.demand.begin(key, end - start)
            got = max(0, min(end, self.size) - start)
            self.demand.finish(key, end - start, StoredObject(bytes(got), self.size, ""))
            held.append((start, start + got))
        self.planned += made
        return made

    @property
    def bytes_read(self) -> int:
        return sum(e - s for ranges in self.held.values() for s, e in ranges)


def test_the_first_reader_of_an_object_reads_its_extent_alone() -> None:
    assert Reader().read(extent(3)) == [PlannedRead(KEY, 100 + 3 * SLICE, 100 + 4 * SLICE)]


def test_neighbours_are_read_together_and_distant_ones_apart() -> None:
    near = Extent(0, 9, 0, KEY, 100, 1000)
    next_to_it = Extent(0, 9, 0, KEY, 1100 + GAP_BYTES_MAX, 1000)
    far = Extent(0, 9, 0, KEY, 4 * MIB, 1000)
    assert Reader().read(far, near, next_to_it) == [
        PlannedRead(KEY, 100, 2100 + GAP_BYTES_MAX),
        PlannedRead(KEY, 4 * MIB, 4 * MIB + 1000),
    ]


def test_successive_readers_of_an_object_double_their_reads() -> None:
    reader = Reader()
    for number in range(16):
        reader.read(extent(number))
    assert len(reader.planned) <= 5
    assert reader.bytes_read <= OBJECT


def test_readers_in_any_order_need_few_reads_of_an_object() -> None:
    reader = Reader()
    for number in (9, 2, 14, 0, 5, 12, 7, 1, 15, 3, 11, 4, 8, 6, 13, 10):
        reader.read(extent(number))
    assert len(reader.planned) <= 10
    assert reader.bytes_read <= 1.2 * OBJECT


def test_unused_bytes_stay_below_wanted_bytes() -> None:
    for wanted in ([5], [5, 9], [0, 15], [3, 4, 5]):
        reader = Reader()
        for number in wanted:
            reader.read(extent(number))
        assert reader.bytes_read <= 2 * len(wanted) * SLICE


def test_a_repeated_read_gets_no_read_ahead() -> None:
    reader = Reader()
    for _ in range(5):
        reader.held.clear()
        assert reader.read(extent(3)) == [PlannedRead(KEY, 100 + 3 * SLICE, 100 + 4 * SLICE)]


def test_the_object_after_a_half_wanted_object_is_read_whole() -> None:
    reader = Reader()
    reader.read(*(extent(number, "wal/0-1/3") for number in range(9)))
    (planned,) = reader.read(extent(3, "wal/0-1/5"))
    assert (planned.start, planned.end) == (0, OBJECT)
    reader.read(*(extent(number, "wal/0-1/5") for number in range(16)))
    assert len(reader.planned) == 2


def test_an_object_after_little_wanted_objects_is_not_read_whole() -> None:
    reader = Reader()
    reader.read(*(extent(number, "wal/0-1/0") for number in range(16)))
    for slot in range(1, 9):
        reader.read(extent(3, f"wal/0-1/{slot}"))
    # After four reads the plan follows the change.
    assert [read.end - read.start for read in reader.planned[-4:]] == [SLICE] * 4


def test_reads_of_another_wal_do_not_widen_a_read() -> None:
    reader = Reader()
    reader.read(*(extent(number, "wal/0-1/3") for number in range(16)))
    (planned,) = reader.read(extent(3, "wal/0-2/4"))
    assert planned.end - planned.start == SLICE


def test_widening_keeps_to_its_limit_and_off_held_bytes() -> None:
    reader = Reader()
    reader.read(*(extent(number, "wal/0-1/3") for number in range(16)))
    (planned,) = reader.read(extent(3, "wal/0-1/4"), widened_max=MIB)
    assert planned.start <= 100 + 3 * SLICE
    assert planned.end - planned.start == MIB
    (planned,) = reader.read(extent(9, "wal/0-1/4"))
    assert reader.held["wal/0-1/4"][0][1] <= planned.start
    (planned,) = reader.read(extent(3, "wal/0-1/5"), widened_max=0)
    assert planned.end - planned.start == SLICE


def test_an_extent_that_is_larger_than_any_limit_is_read_as_it_is() -> None:
    large = Extent(0, 9, 0, KEY, 100, 40 * MIB)
    after = Extent(0, 9, 0, KEY, 100 + 40 * MIB, 1000)
    assert [read.end - read.start for read in Reader(50 * MIB).read(large, after)] == [
        40 * MIB,
        1000,
    ]


def test_objects_that_were_wanted_longest_ago_are_forgotten() -> None:
    demand = Demand(extents_max=10)
    for slot in range(100):
        for number in range(3):
            demand.want(extent(number, f"wal/0-1/{slot:03d}"))
    assert len(demand) == 3


def test_an_object_dropped_unused_is_not_read_whole_again() -> None:
    reader = Reader()
    for number in range(16):
        reader.read(extent(number, key="wal/0-1/6"))
    (whole,) = reader.read(extent(0))
    assert whole.end - whole.start > OBJECT // 2

    reader.held.clear()
    again = [reader.read(extent(number)) for number in (5, 9, 3)]

    assert [(made.start, made.end) for (made,) in again] == [
        (100 + number * SLICE, 100 + (number + 1) * SLICE) for number in (5, 9, 3)
    ]


def test_ranges_in_memory_do_not_count_as_unused() -> None:
    """An object that is too large for one range is read in two, the second as wide as the first."""
    slices = 48
    reader = Reader(slices * SLICE + 1000)
    reader.read(*(extent(number, key="wal/0-1/6") for number in range(slices)))

    for number in (0, slices - 1, *range(slices)):
        reader.read(extent(number))

    assert len([planned for planned in reader.planned if planned.key == KEY]) == 2
