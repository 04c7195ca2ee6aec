"""Extents: the places of offsets."""

from __future__ import annotations

import struct

import pytest
from awscrt.checksums import crc32c

from tidelog.errors import CorruptObject
from tidelog.identifiers import LeaderEpoch
from tidelog.wal.log.adoption import Adoption
from tidelog.wal.log.extents import NO_CRC, Extent, Extents, crc_of_batch


def extent(base: int, last: int, timestamp: int = 0, key: str = "a", position: int = 64) -> Extent:
    return Extent(base, last, timestamp, key, position, 10 * (last - base + 1))


THREE = (extent(5, 9, 30), extent(10, 10, 50, "b"), extent(11, 20, 40, "c"))


def test_an_offset_is_found_in_its_extent() -> None:
    extents = Extents(THREE)
    assert [extents.find(offset) for offset in (5, 9, 10, 20)] == [
        THREE[0],
        THREE[0],
        THREE[1],
        THREE[2],
    ]
    assert extents.find(4) is None
    assert extents.find(21) is None
    assert Extents().find(0) is None


def test_readers_go_on_from_an_offset() -> None:
    extents = Extents(THREE)
    assert list(extents.from_offset(0)) == list(THREE)
    assert list(extents.from_offset(9)) == list(THREE)
    assert list(extents.from_offset(10)) == list(THREE[1:])
    assert list(extents.from_offset(21)) == []


def test_a_time_is_looked_for_in_all_extents_that_may_have_the_time() -> None:
    extents = Extents(THREE)
    assert list(extents.since_timestamp(31)) == list(THREE[1:])
    assert list(extents.since_timestamp(51)) == []
    assert [each.max_timestamp for each in extents.by_max_timestamp()] == sorted(
        (each.max_timestamp for each in THREE), reverse=True
    )
    assert list(Extents().by_max_timestamp()) == []


def test_extents_with_equal_times_come_in_offset_order() -> None:
    two = [extent(0, 0, 5), extent(1, 1, 5)]
    assert list(Extents(two).by_max_timestamp()) == two
    one = [extent(offset, offset, time) for offset, time in enumerate((-1, 5, 7, 5, -1))]
    assert [each.base_offset for each in Extents(one).by_max_timestamp()] == [2, 1, 3, 0, 4]


def test_extents_grow_during_an_iteration() -> None:
    extents = Extents(THREE)
    found = extents.since_timestamp(0)
    assert next(found) == THREE[0]
    extents.append(extent(21, 21))
    assert list(found) == list(THREE[1:])


def test_a_hole_is_refused() -> None:
    extents = Extents(THREE)
    for wrong in (extent(22, 23), extent(20, 23), extent(21, 20)):
        with pytest.raises(ValueError, match="extent from"):
            extents.append(wrong)
    assert list(extents) == list(THREE)


def test_batches_side_by_side_share_an_extent() -> None:
    extents = Extents()
    for crc, extent_of_batch in enumerate(
        (
            Extent(0, 1, 7, "a", 64, 100, crc_of_batch(0)),
            Extent(2, 2, 5, "a", 164, 50, crc_of_batch(1)),
            Extent(3, 3, 9, "a", 300, 50, crc_of_batch(2)),
            Extent(4, 4, 9, "b", 350, 50, crc_of_batch(3)),
        )
    ):
        extents.append_batch(extent_of_batch, crc)
    assert list(extents) == [
        Extent(0, 2, 7, "a", 64, 150, crc32c(bytes([0, 0, 0, 0, 0, 0, 0, 1]))),
        Extent(3, 3, 9, "a", 300, 50, crc_of_batch(2)),
        Extent(4, 4, 9, "b", 350, 50, crc_of_batch(3)),
    ]
    assert extents.total_bytes == 250


def test_an_extent_tells_its_batches_from_foreign_batches() -> None:
    extents = Extents()
    for number, crc in enumerate((7, 8, 9)):
        place = Extent(number, number, 0, "a", 100 * number, 100, crc_of_batch(crc))
        extents.append_batch(place, crc)
    (found,) = extents
    found.check_crcs(struct.pack(">3I", 7, 8, 9))
    for wrong in ((7, 8), (8, 7, 9), (7, 8, 10)):
        with pytest.raises(CorruptObject, match="but others"):
            found.check_crcs(struct.pack(f">{len(wrong)}I", *wrong))


def test_extents_of_the_first_release_are_compared_with_nothing() -> None:
    extents = Extents()
    extents.append_batch(Extent(0, 0, 0, "a", 0, 100), NO_CRC)
    extents.append_batch(Extent(1, 1, 0, "a", 100, 100, crc_of_batch(5)), 5)
    (found,) = extents
    assert found.crc == NO_CRC
    found.check_crcs(b"anything")


def test_extents_wholly_below_an_offset_are_dropped() -> None:
    extents = Extents(THREE)
    extents.drop_below(10)
    assert list(extents) == list(THREE[1:])
    extents.drop_below(15)
    assert list(extents) == [THREE[2]]
    assert extents.total_bytes == THREE[2].length
    extents.drop_below(21)
    assert (len(extents), extents.base_offset, extents.next_offset) == (0, None, None)
    extents.append(extent(100, 101))
    assert extents.next_offset == 102


def test_a_copy_does_not_grow_with_the_original() -> None:
    extents = Extents(THREE)
    copied, cut = extents.copy(), extents.copy(11)
    extents.drop_below(10)
    extents.append(extent(21, 22))
    assert list(copied) == list(THREE)
    assert list(cut) == list(THREE[:2])
    assert cut.total_bytes == sum(e.length for e in THREE[:2])
    assert copied != extents


def test_extents_that_are_moved_together_become_one_extent() -> None:
    extents = Extents((*THREE, extent(21, 22, 10, "d")))
    moved = Extent(10, 20, 50, "m", 64, 99)
    assert extents.relocate(moved)
    assert list(extents) == [THREE[0], moved, extent(21, 22, 10, "d")]
    assert extents.total_bytes == 50 + 99 + 20
    assert extents == Extents([THREE[0], moved, extent(21, 22, 10, "d")])


def test_extents_are_relocated_although_some_are_dropped_already() -> None:
    moved = Extent(5, 20, 50, "m", 64, 99)
    extents = Extents(THREE)
    extents.drop_below(10)
    assert extents.relocate(moved)
    assert list(extents) == [moved]
    gone = Extents([extent(21, 22)])
    assert not gone.relocate(moved)
    assert list(gone) == [extent(21, 22)]
    assert not Extents().relocate(moved)


@pytest.mark.parametrize(("base", "last"), [(6, 20), (5, 15), (10, 21), (7, 8)])
def test_an_extent_is_not_moved_in_part(base: int, last: int) -> None:
    extents = Extents(THREE)
    with pytest.raises(ValueError, match="would be cut"):
        extents.relocate(Extent(base, last, 0, "m", 64, 1))
    assert list(extents) == list(THREE)


def adopted(base: int, ordinal: int, key: str = "staged/a") -> Extent:
    return extent(base, base, key=key)._replace(adoption=Adoption(7, 0, ordinal, LeaderEpoch(3)))


def test_an_adoption_stays_with_its_extent() -> None:
    """The same staged batch, adopted again after the transaction was aborted."""
    extents = Extents([extent(0, 4), adopted(5, 1), adopted(6, 2), extent(7, 9, key="b")])
    assert list(extents.adopted()) == [adopted(5, 1), adopted(6, 2)]
    assert adopted(5, 1).place != adopted(6, 2).place
    assert [each.adoption is None for each in extents] == [True, False, False, True]
    assert extents.find(6) == adopted(6, 2)
    assert extents.keys == ["a", "staged/a", "staged/a", "b"]
    assert extents.references == ["a", "staged/a@7.0.1.3", "staged/a@7.0.2.3", "b"]


def test_adoptions_are_forgotten_and_copied_with_their_extents() -> None:
    extents = Extents([adopted(0, 1), adopted(1, 2), extent(2, 4)])
    cut = extents.copy(1)
    assert list(cut.adopted()) == [adopted(0, 1)]
    extents.drop_below(1)
    assert list(extents.adopted()) == [adopted(1, 2)]
    assert list(cut) == [adopted(0, 1)]
    assert extents != Extents([extent(1, 1, key="staged/a"), extent(2, 4)])
    assert extents.relocate(extent(1, 4, key="m"))
    assert list(extents.adopted()) == []
