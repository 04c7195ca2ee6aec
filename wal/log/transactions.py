"""A partition's open, ending and aborted transactions."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Iterable
from typing import NamedTuple


class AbortedIndexEntry(NamedTuple):
    """An entry of the aborted index."""

    producer_id: int
    first_offset: int
    last_offset: int
    """The marker's offset."""
    last_stable_offset: int
    """The last stable offset after the marker: the first offset of the earliest open transaction,
    else the next offset. No later entry begins below it."""


class Transactions:
    """Computes the last stable offset and the records that read_committed readers skip."""

    __slots__ = ("_aborted", "_completed", "_open")

    def __init__(
        self, open_transactions: Iterable[tuple[int, int]], aborted: Iterable[AbortedIndexEntry]
    ) -> None:
        """`open_transactions`: (producer id, first offset)."""
        # Offsets only grow, so the dictionary's order is the order of first offsets.
        self._open = dict(sorted(open_transactions, key=lambda opened: opened[1]))
        self._completed: deque[tuple[int, int]] = deque()
        self._aborted = list(aborted)

    @property
    def aborted(self) -> tuple[AbortedIndexEntry, ...]:
        """The aborted index, ascending by the markers' offsets."""
        return tuple(self._aborted)

    def begin(self, producer_id: int, first_offset: int) -> None:
        """Note the append of a transaction's first batch."""
        self._open[producer_id] = first_offset

    def complete(self, producer_id: int, marker_offset: int, commit: bool) -> None:
        """Note the append of a marker. The transaction counts as open until it is durable."""
        first_offset = self._open.pop(producer_id)
        self._completed.append((first_offset, marker_offset))
        if not commit:
            stable = next(iter(self._open.values()), marker_offset + 1)
            self._aborted.append(
                AbortedIndexEntry(producer_id, first_offset, marker_offset, stable)
            )

    def advance(self, high_watermark: int) -> None:
        """Forget completed transactions whose marker is durable."""
        completed = self._completed
        while completed and completed[0][1] < high_watermark:
            completed.popleft()

    def last_stable_offset(self, high_watermark: int) -> int:
        """The minimum of the high watermark and the first offsets of transactions without a
        durable marker."""
        stable = min(high_watermark, next(iter(self._open.values()), high_watermark))
        for first_offset, _ in self._completed:
            stable = min(stable, first_offset)
        return stable

    def aborted_between(self, fetch_offset: int, upper_bound: int) -> list[AbortedIndexEntry]:
        """The aborted transactions that have records in [fetch_offset, upper_bound)."""
        found = []
        first = bisect_left(self._aborted, fetch_offset, key=_marker_offset)
        for index in range(first, len(self._aborted)):
            transaction = self._aborted[index]
            if transaction.first_offset < upper_bound:
                found.append(transaction)
            if transaction.last_stable_offset >= upper_bound:
                break
        return found

    def drop_below(self, offset: int) -> bool:
        """Forget aborted transactions whose marker lies below `offset`; True if there were any."""
        count = bisect_left(self._aborted, offset, key=_marker_offset)
        del self._aborted[:count]
        return count > 0


def _marker_offset(transaction: AbortedIndexEntry) -> int:
    return transaction.last_offset
