"""Idempotent producers: each row of Kafka's table for one partition."""

from __future__ import annotations

import pytest

from tests.properties.wal.batches import EPOCH_0, batch, topic_partition
from tidelog.wal.log.image import PartitionImage
from tidelog.wal.log.partition_log import AppendedBatch, PartitionLog
from tidelog.wal.log.producer_state import AppendRefused

PARTITION = topic_partition(0)
PRODUCER = 9
SEQUENCE_MAX = 2**31 - 1


def new_log() -> PartitionLog:
    return PartitionLog.from_image(PartitionImage.empty(PARTITION, EPOCH_0))


def send(
    log: PartitionLog,
    sequence: int,
    records: int = 1,
    epoch: int = 0,
    version: int = 0,
    now_ms: int = 0,
) -> AppendedBatch:
    _, head = batch(records, producer=PRODUCER, epoch=epoch, sequence=sequence)
    return log.append(head, now_ms, transaction_version=version)


def refused(log: PartitionLog, sequence: int, records: int = 1, **how: int) -> int:
    """The error code of a refused batch. The log must not have changed."""
    before = log.image()
    with pytest.raises(AppendRefused, match="nothing was appended") as found:
        send(log, sequence, records, **how)
    assert log.image() is before
    return found.value.error_code


def test_batches_in_sequence_get_the_next_offsets() -> None:
    log = new_log()
    assert send(log, 0, records=3)[:3] == (0, 2, False)
    assert send(log, 3, records=2)[:3] == (3, 4, False)
    assert log.next_offset == 5


@pytest.mark.parametrize("back", range(5))
def test_one_of_the_last_five_batches_is_recognised_when_repeated(back: int) -> None:
    log = new_log()
    for sequence in range(0, 18, 3):
        send(log, sequence, records=3)
    repeated = 15 - 3 * back
    again = send(log, repeated, records=3)
    assert again[:3] == (repeated, repeated + 2, True)
    assert log.next_offset == 18


def test_a_duplicate_has_the_time_of_the_original() -> None:
    log = new_log()
    _, head = batch(producer=PRODUCER, epoch=0, sequence=0, timestamp=77)
    log.append(head, 0)
    _, later = batch(producer=PRODUCER, epoch=0, sequence=0, timestamp=99)
    assert log.append(later, 5).max_timestamp == 77


def test_a_duplicate_older_than_five_batches_is_out_of_order() -> None:
    log = new_log()
    for sequence in range(6):
        send(log, sequence)
    assert refused(log, 0) == 45


def test_half_of_a_batch_is_no_duplicate_of_the_batch() -> None:
    log = new_log()
    send(log, 0, records=4)
    assert refused(log, 0, records=2) == 45
    assert refused(log, 2, records=2) == 45


def test_a_gap_is_out_of_order() -> None:
    log = new_log()
    send(log, 0)
    assert refused(log, 2) == 45


def test_an_older_epoch_is_fenced_before_its_sequence_is_looked_at() -> None:
    log = new_log()
    send(log, 0, epoch=3)
    assert refused(log, 1, epoch=2) == 47
    assert refused(log, 7, epoch=2) == 47


def test_a_new_epoch_begins_at_zero() -> None:
    log = new_log()
    send(log, 0)
    assert refused(log, 1, epoch=1) == 45
    assert send(log, 0, epoch=1).duplicate is False
    assert refused(log, 0, epoch=0) == 47


def test_zero_follows_the_largest_sequence() -> None:
    log = new_log()
    send(log, 0)
    image = log.image()
    state = image.producers[0]
    last = state.batches[0]._replace(first_sequence=SEQUENCE_MAX, last_sequence=SEQUENCE_MAX)
    log._producers[PRODUCER] = state._replace(batches=(last,))
    assert send(log, 0).duplicate is False
    assert send(log, 1).duplicate is False


def test_a_batch_may_run_over_the_largest_sequence() -> None:
    log = new_log()
    send(log, 0)
    state = log.image().producers[0]
    last = state.batches[0]._replace(last_sequence=SEQUENCE_MAX - 1)
    log._producers[PRODUCER] = state._replace(batches=(last,))
    send(log, SEQUENCE_MAX, records=3)
    assert send(log, SEQUENCE_MAX, records=3).duplicate
    assert send(log, 2).duplicate is False


def test_a_fresh_partition_takes_no_later_batch_before_the_first() -> None:
    """Otherwise the first batch, refused a moment ago and sent again, would come behind the later
    one, or never."""
    log = new_log()
    assert refused(log, 4) == 45
    assert send(log, 0).base_offset == 0


def test_a_partition_that_has_forgotten_producers_takes_any_sequence() -> None:
    log = new_log()
    send(log, 0, now_ms=1_000)
    assert log.expire_producers(now_ms=2_000, expiration_ms=1_001) == 0
    assert log.expire_producers(now_ms=2_000, expiration_ms=1_000) == 1
    assert send(log, 5).duplicate is False


def test_under_transactions_v2_an_unknown_producer_always_begins_at_zero() -> None:
    log = new_log()
    send(log, 0)
    log.expire_producers(now_ms=1, expiration_ms=1)
    assert refused(log, 5, version=2) == 45
    assert send(log, 0, version=2).duplicate is False


def test_a_successor_knows_that_producers_were_forgotten() -> None:
    log = new_log()
    send(log, 0)
    log.expire_producers(now_ms=1, expiration_ms=1)
    successor = PartitionLog.from_image(log.image())
    assert send(successor, 5).duplicate is False


def test_a_new_owner_knows_the_last_batches() -> None:
    log = new_log()
    send(log, 0)
    send(log, 1)
    successor = PartitionLog.from_image(log.image())
    assert send(successor, 1).duplicate
    assert refused(successor, 3) == 45


def test_producers_without_an_id_are_not_remembered() -> None:
    log = new_log()
    for _ in range(2):
        _, head = batch()
        assert log.append(head, 0).duplicate is False
    assert not list(log.producers)
