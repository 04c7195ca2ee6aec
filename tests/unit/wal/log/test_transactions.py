"""Transactions in one partition: markers, the last stable offset, the aborted index."""

from __future__ import annotations

import pytest

from tests.properties.wal.batches import EPOCH_0, batch, topic_partition
from tidelog.wal.format.image_codec import Images, encode_images
from tidelog.wal.log.entries import NO_ORDINAL
from tidelog.wal.log.extents import Extent, SlotEffect
from tidelog.wal.log.image import PartitionImage
from tidelog.wal.log.partition_log import AppendedBatch, PartitionLog
from tidelog.wal.log.producer_state import AppendRefused

PARTITION = topic_partition(0)
A, B = 5, 6


class Partition:
    """A partition log, and shorthands for the requests of producers and coordinators."""

    def __init__(self) -> None:
        self.log = PartitionLog.from_image(PartitionImage.empty(PARTITION, EPOCH_0))
        self.sequences: dict[tuple[int, int], int] = {}

    def plain(self) -> int:
        _, head = batch()
        return self.log.append(head, 0).base_offset

    def send(self, producer: int, ordinal: int = NO_ORDINAL, epoch: int = 0) -> int:
        """Append one transactional record."""
        return self.try_to_send(producer, ordinal, epoch, transactional=True).base_offset

    def try_to_send(
        self, producer: int, ordinal: int, epoch: int, transactional: bool
    ) -> AppendedBatch:
        sequence = self.sequences.get((producer, epoch), 0)
        _, head = batch(
            producer=producer, epoch=epoch, sequence=sequence, transactional=transactional
        )
        appended = self.log.append(head, 0, ordinal=ordinal)
        self.sequences[producer, epoch] = sequence + 1
        return appended

    def end(
        self,
        producer: int,
        ordinal: int = NO_ORDINAL,
        *,
        commit: bool = True,
        epoch: int = 0,
        coordinator: int = 1,
        version: int = 0,
    ) -> AppendedBatch:
        return self.log.append_marker(
            producer,
            epoch,
            commit=commit,
            coordinator_epoch=coordinator,
            ordinal=ordinal,
            now_ms=0,
            transaction_version=version,
        )

    def durable(self, upto: int | None = None) -> None:
        """Make all entries below an offset durable, or all entries."""
        log, end = self.log, self.log.next_offset if upto is None else upto
        extent = Extent(log.high_watermark, end - 1, 0, "object", 64, 1)
        log.advance(SlotEffect(PARTITION, EPOCH_0, (extent,), None))


def code(found: pytest.ExceptionInfo[AppendRefused]) -> int:
    return found.value.error_code


def test_a_first_batch_needs_the_coordinators_word() -> None:
    partition = Partition()
    with pytest.raises(AppendRefused) as found:
        partition.send(A)
    assert code(found) == 48
    assert partition.send(A, ordinal=1) == 0
    assert partition.send(A) == 1


def test_a_plain_batch_of_the_producer_must_not_come_in_between() -> None:
    partition = Partition()
    partition.send(A, ordinal=1)
    with pytest.raises(AppendRefused) as found:
        partition.try_to_send(A, NO_ORDINAL, 0, transactional=False)
    assert code(found) == 48
    partition.end(A, 1)
    assert partition.try_to_send(A, NO_ORDINAL, 0, transactional=False).base_offset == 2


def test_a_verification_that_comes_too_late_admits_nothing() -> None:
    """The transaction of the verification has been decided meanwhile."""
    partition = Partition()
    partition.send(A, ordinal=1)
    partition.end(A, 1)
    with pytest.raises(AppendRefused) as found:
        partition.send(A, ordinal=1)
    assert code(found) == 48
    assert partition.send(A, ordinal=2) == 2


def test_a_verification_of_another_transaction_than_the_open_one_admits_nothing() -> None:
    partition = Partition()
    partition.send(A, ordinal=2)
    for ordinal in (1, 3):
        with pytest.raises(AppendRefused) as found:
            partition.send(A, ordinal=ordinal)
        assert code(found) == 48


def test_the_last_stable_offset_stops_before_the_first_open_transaction() -> None:
    partition = Partition()
    partition.plain()
    partition.send(A, ordinal=1)
    partition.send(B, ordinal=1)
    partition.durable()
    assert partition.log.last_stable_offset == 1
    partition.end(A, 1)
    partition.durable()
    assert partition.log.last_stable_offset == 2
    partition.end(B, 1)
    partition.durable()
    assert partition.log.last_stable_offset == partition.log.next_offset == 5


def test_a_marker_counts_when_it_is_durable() -> None:
    partition = Partition()
    partition.send(A, ordinal=1)
    partition.durable()
    partition.end(A, 1)
    assert partition.log.last_stable_offset == 0
    assert partition.log.high_watermark == 1
    partition.durable()
    assert partition.log.last_stable_offset == 2


def test_data_is_not_stable_before_the_marker_behind_it_is_durable() -> None:
    partition = Partition()
    partition.send(A, ordinal=1)
    partition.end(A, 1)
    partition.durable(upto=1)
    assert partition.log.high_watermark == 1
    assert partition.log.last_stable_offset == 0


def test_a_plain_producer_is_not_held_up_by_others_transactions() -> None:
    partition = Partition()
    partition.send(A, ordinal=1)
    assert partition.plain() == 1
    partition.durable()
    assert partition.log.high_watermark == 2
    assert partition.log.last_stable_offset == 0


def test_an_offset_that_is_not_durable_is_not_stable() -> None:
    partition = Partition()
    partition.plain()
    partition.plain()
    partition.durable(upto=1)
    assert partition.log.last_stable_offset == partition.log.high_watermark == 1


def test_aborted_transactions_are_listed_where_they_touch_the_fetched_range() -> None:
    partition = Partition()
    partition.send(A, ordinal=1)  # 0
    partition.send(B, ordinal=1)  # 1
    partition.end(A, 1, commit=False)  # 2
    partition.end(B, 1, commit=True)  # 3
    partition.send(A, ordinal=2)  # 4
    partition.end(A, 2, commit=False)  # 5
    partition.durable()

    def aborted(start: int, upper: int) -> list[tuple[int, ...]]:
        return [tuple(a) for a in partition.log.aborted_between(start, upper)]

    first, second = (A, 0, 2, 1), (A, 4, 5, 6)
    assert aborted(0, 6) == [first, second]
    assert aborted(0, 4) == [first]
    assert aborted(2, 4) == [first]
    assert aborted(3, 6) == [second]
    assert aborted(3, 4) == []


def test_the_search_for_aborted_transactions_goes_on_as_long_as_one_may_follow() -> None:
    partition = Partition()
    partition.send(A, ordinal=1)  # 0
    partition.send(B, ordinal=1)  # 1
    partition.end(A, 1, commit=False)  # 2
    partition.end(B, 1, commit=False)  # 3
    partition.durable()
    assert [a.producer_id for a in partition.log.aborted_between(0, 2)] == [A, B]
    assert [a.producer_id for a in partition.log.aborted_between(0, 1)] == [A]


def test_a_marker_without_data_leaves_no_trace_in_the_index_but_moves_the_epoch() -> None:
    partition = Partition()
    partition.end(A, 1, commit=False, epoch=4)
    partition.durable()
    assert partition.log.aborted_between(0, 10) == []
    assert partition.log.next_offset == 1
    with pytest.raises(AppendRefused) as found:
        partition.send(A, ordinal=2, epoch=3)
    assert code(found) == 47


def test_a_marker_at_a_higher_epoch_forgets_the_sequences() -> None:
    partition = Partition()
    partition.send(A, ordinal=1)
    partition.end(A, 1, epoch=1, version=2)
    assert partition.send(A, ordinal=2, epoch=1) == 2


def test_sequences_go_on_after_a_marker_at_the_same_epoch() -> None:
    partition = Partition()
    partition.send(A, ordinal=1)
    partition.end(A, 1)
    partition.send(A, ordinal=2)
    assert partition.log.image().producers[0].last_sequence == 1


def test_a_repeated_marker_changes_nothing() -> None:
    partition = Partition()
    partition.send(A, ordinal=1)
    partition.end(A, 1)
    before = partition.log.image()
    assert partition.end(A, 1).duplicate
    assert partition.log.image() is before


def test_a_late_marker_does_not_end_the_next_transaction() -> None:
    """Under TV1 both transactions have the same epoch. The ordinal tells them apart (H1)."""
    partition = Partition()
    partition.send(A, ordinal=1)
    partition.end(A, 1)
    partition.send(A, ordinal=2)
    assert partition.end(A, 1, commit=False).duplicate
    partition.durable()
    assert partition.log.last_stable_offset == 2


def test_a_marker_of_a_transaction_that_comes_after_the_open_one_is_refused() -> None:
    partition = Partition()
    partition.send(A, ordinal=1)
    with pytest.raises(AppendRefused) as found:
        partition.end(A, 2)
    assert code(found) == 48


def test_a_marker_of_an_older_coordinator_is_refused() -> None:
    partition = Partition()
    partition.send(A, ordinal=1)
    partition.end(A, 1, coordinator=4)
    partition.send(A, ordinal=2)
    with pytest.raises(AppendRefused) as found:
        partition.end(A, 2, coordinator=3)
    assert code(found) == 52


@pytest.mark.parametrize(
    ("epoch", "version", "is_open", "error"),
    [
        (2, 0, True, 47),
        (3, 0, True, None),
        (3, 2, True, 47),
        (4, 2, True, None),
        (3, 2, False, None),
    ],
)
def test_the_epoch_of_a_marker_without_an_ordinal(
    epoch: int, version: int, is_open: bool, error: int | None
) -> None:
    """A marker of TV1 has the same epoch, and one of TV2 a higher epoch, except in a retry after
    the end."""
    partition = Partition()
    partition.send(A, ordinal=1, epoch=3)
    if not is_open:
        partition.end(A, 1, epoch=3)
    if error is None:
        assert not partition.end(A, epoch=epoch, version=version).duplicate
        return
    with pytest.raises(AppendRefused) as found:
        partition.end(A, epoch=epoch, version=version)
    assert code(found) == error


def test_a_producer_with_an_open_transaction_is_never_forgotten() -> None:
    partition = Partition()
    partition.send(A, ordinal=1)
    partition.send(B, ordinal=1)
    partition.end(B, 1)
    assert partition.log.expire_producers(now_ms=10**9, expiration_ms=1) == 1
    assert [state.producer_id for state in partition.log.producers] == [A]


def test_open_transactions_and_the_aborted_index_survive_a_change_of_owner() -> None:
    partition = Partition()
    partition.send(A, ordinal=1)
    partition.end(A, 1, commit=False)
    partition.send(B, ordinal=7)
    partition.durable()
    stored = encode_images([partition.log.image()])
    partition.log = PartitionLog.from_image(Images("image", stored).image(0))
    assert partition.log.last_stable_offset == 2
    assert [a.producer_id for a in partition.log.aborted_between(0, 2)] == [A]
    assert partition.end(B, 7).ordinal == 7
    partition.durable()
    assert partition.log.last_stable_offset == 4


def test_the_aborted_index_forgets_transactions_of_the_table() -> None:
    partition = Partition()
    partition.send(A, ordinal=1)
    partition.end(A, 1, commit=False)
    partition.send(A, ordinal=2)
    partition.end(A, 2, commit=False)
    partition.durable()
    partition.log.advance_table(2)
    assert [a.first_offset for a in partition.log.aborted_between(0, 4)] == [2]
