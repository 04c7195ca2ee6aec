"""The leader epoch under which each batch was written (KIP-101)."""

from __future__ import annotations

import pytest

from tidelog.identifiers import LeaderEpoch
from tidelog.wal.log.leader_epochs import EpochStart, LeaderEpochs


def epochs(*starts: tuple[int, int]) -> LeaderEpochs:
    return LeaderEpochs(EpochStart(LeaderEpoch(epoch), start) for epoch, start in starts)


@pytest.mark.parametrize(
    ("asked", "answer"),
    [(0, (0, 10)), (2, (2, 30)), (3, (2, 30)), (5, (5, 42)), (6, (-1, -1))],
)
def test_the_end_of_an_epoch_is_where_the_next_begins(asked: int, answer: tuple[int, int]) -> None:
    known = epochs((0, 0), (2, 10), (5, 30))
    assert known.end_offset_for(LeaderEpoch(asked), high_watermark=42) == answer


def test_an_epoch_before_all_that_are_known_ends_where_they_begin() -> None:
    assert epochs((4, 10), (5, 30)).end_offset_for(LeaderEpoch(2), 42) == (2, 10)


def test_a_log_without_epochs_knows_nothing() -> None:
    assert epochs().end_offset_for(LeaderEpoch(0), 0) == (-1, -1)


def test_an_epoch_that_wrote_nothing_is_forgotten() -> None:
    known = epochs((0, 0))
    known.begin(LeaderEpoch(1), 7)
    known.begin(LeaderEpoch(2), 7)
    assert known.starts == ((0, 0), (2, 7))
    with pytest.raises(ValueError, match="does not follow"):
        known.begin(LeaderEpoch(2), 9)


def test_epochs_below_the_log_start_are_dropped() -> None:
    known = epochs((0, 0), (2, 10), (5, 30))
    known.drop_below(12)
    assert known.starts == ((2, 12), (5, 30))
    known.drop_below(30)
    assert known.starts[0] == (5, 30)
    assert len(known.starts) == 1


def test_the_epoch_of_an_offset() -> None:
    known = epochs((1, 5), (4, 10))
    assert [known.epoch_at(offset) for offset in (4, 5, 9, 10, 99)] == [-1, 1, 1, 4, 4]
