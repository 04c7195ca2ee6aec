"""fsck compares the extents of tails with the indexes of the objects that hold them."""

from __future__ import annotations

from uuid import UUID

import pytest

from tidelog.bucket.fsck.wal_checks import check_extents, check_slot
from tidelog.errors import CorruptObject
from tidelog.identifiers import FIRST_LEADER_EPOCH, BrokerId, Epoch, Incarnation, TopicPartition
from tidelog.wal.format.slot_index import SlotIndex
from tidelog.wal.log.extents import Extent
from tidelog.wal.recover.filler import Filler

PLACE = TopicPartition(UUID(int=7), 0)


def test_a_repair_s_object_may_fill_the_same_offsets_twice() -> None:
    """It fills a hole of the log, and then what the table lacks too. The later batches count."""
    filler = Filler(Incarnation(BrokerId(0), Epoch(5)), 0, 0, bytes(16))
    filled = [
        entry
        for last in (70, 72)
        for entry in filler.empty_batches(PLACE, FIRST_LEADER_EPOCH, 0, last)
    ]
    index = check_slot(filler.key, filler.data())
    assert isinstance(index, SlotIndex)
    extents = [Extent.of(entry) for entry in filled]
    for extent in extents:
        check_extents(filler.key, index, PLACE, [extent])
    first, second = extents
    for wrong in (
        first._replace(last_offset=second.last_offset),
        first._replace(position=second.position),
        first._replace(length=first.length + second.length),
        first._replace(base_offset=1),
    ):
        with pytest.raises(CorruptObject, match="its index has no batches of offsets"):
            check_extents(filler.key, index, PLACE, [wrong])
