"""The records of fetched batches that a read_committed consumer is shown."""

from __future__ import annotations

from typing import NamedTuple

from tidelog.client.committed import visible_batches
from tidelog.protocol.schemas.fetch import AbortedTransaction
from tidelog.records.control import MarkerType, control_batch
from tidelog.records.records import NewRecord, decode_batch, encode_batch

OURS, OTHERS = 11, 12


class Log(NamedTuple):
    """Batches one behind the other."""

    data: bytearray

    def record(self, offset: int, producer: int, *, is_transactional: bool = True) -> None:
        batch = encode_batch(
            [NewRecord(b"%d" % offset, None, timestamp=1)],
            producer_id=producer,
            producer_epoch=0,
            base_sequence=0,
            is_transactional=is_transactional,
        )
        self._append(offset, batch)

    def marker(self, offset: int, producer: int, kind: MarkerType) -> None:
        batch = control_batch(
            kind, producer_id=producer, producer_epoch=0, coordinator_epoch=0, timestamp=1
        )
        self._append(offset, batch)

    def _append(self, offset: int, batch: bytearray) -> None:
        batch[:8] = offset.to_bytes(8, "big")
        self.data.extend(batch)

    def shown(self, *aborted: tuple[int, int]) -> list[int]:
        """Offsets that an application gets, given the aborted transactions as (producer, first
        offset)."""
        entries = [AbortedTransaction(producer_id=p, first_offset=first) for p, first in aborted]
        return [
            record.offset
            for header, batch in visible_batches(bytes(self.data), entries)
            for record in decode_batch(batch, 0, header)
        ]


def log() -> Log:
    return Log(bytearray())


def test_the_worked_example() -> None:
    """From offset 2 to 5 the transactional records of producer 11 are dropped. Other records
    stay."""
    found = log()
    found.record(1, OURS)
    found.record(2, OURS)
    found.record(3, OTHERS)
    found.record(4, OURS)
    found.marker(5, OURS, MarkerType.ABORT)
    found.record(6, OURS)
    # The record at offset 1 belongs to an earlier transaction, which was committed.
    assert found.shown((OURS, 2)) == [1, 3, 6]
    assert found.shown() == [1, 2, 3, 4, 6]


def test_plain_records_of_the_same_producer_stay() -> None:
    found = log()
    found.record(0, OURS)
    found.record(1, OURS, is_transactional=False)
    found.marker(2, OURS, MarkerType.ABORT)
    assert found.shown((OURS, 0)) == [1]


def test_two_aborted_transactions_of_one_producer_and_a_committed_one_between() -> None:
    found = log()
    for offset, kind in ((0, MarkerType.ABORT), (2, MarkerType.COMMIT), (4, MarkerType.ABORT)):
        found.record(offset, OURS)
        found.marker(offset + 1, OURS, kind)
    assert found.shown((OURS, 4), (OURS, 0)) == [2]


def test_the_commit_of_another_transaction_ends_no_aborted_transaction() -> None:
    found = log()
    found.record(0, OURS)
    found.record(1, OTHERS)
    found.marker(2, OTHERS, MarkerType.COMMIT)
    found.record(3, OURS)
    found.marker(4, OURS, MarkerType.ABORT)
    assert found.shown((OURS, 0)) == [1]


def test_markers_are_never_shown_and_an_aborted_transaction_may_begin_before_the_fetch() -> None:
    found = log()
    found.record(7, OURS)
    found.marker(8, OURS, MarkerType.ABORT)
    found.marker(9, OTHERS, MarkerType.COMMIT)
    assert found.shown((OURS, 2)) == []
