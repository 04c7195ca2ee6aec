"""The leader epoch of each offset range (KIP-101)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from tidelog.identifiers import LeaderEpoch

UNDEFINED_EPOCH = LeaderEpoch(-1)
UNDEFINED_OFFSET = -1


class EpochStart(NamedTuple):
    """The first offset that a leader epoch wrote, or will write."""

    leader_epoch: LeaderEpoch
    start_offset: int


class LeaderEpochs:
    """Epochs in ascending order, with ascending start offsets.

    Epochs without records are left out, so the list never exceeds the number of records.
    """

    __slots__ = ("_starts",)

    def __init__(self, starts: Iterable[EpochStart] = ()) -> None:
        self._starts = list(starts)

    @property
    def starts(self) -> tuple[EpochStart, ...]:
        return tuple(self._starts)

    def begin(self, leader_epoch: LeaderEpoch, start_offset: int) -> None:
        """Begin a newer epoch at `start_offset`."""
        if self._starts and leader_epoch <= self._starts[-1].leader_epoch:
            raise ValueError(f"leader epoch {leader_epoch} does not follow {self._starts[-1]}")
        while self._starts and self._starts[-1].start_offset >= start_offset:
            self._starts.pop()
        self._starts.append(EpochStart(leader_epoch, start_offset))

    def drop_below(self, log_start: int) -> None:
        """Forget the epochs' offsets below the log start."""
        while len(self._starts) > 1 and self._starts[1].start_offset <= log_start:
            del self._starts[0]
        if self._starts and self._starts[0].start_offset < log_start:
            self._starts[0] = EpochStart(self._starts[0].leader_epoch, log_start)

    def epoch_at(self, offset: int) -> LeaderEpoch:
        """The epoch that wrote this offset, undefined (-1) if none did.

        For the log end offset it is the last epoch that wrote a record.
        """
        for start in reversed(self._starts):
            if start.start_offset <= offset:
                return start.leader_epoch
        return UNDEFINED_EPOCH

    def end_offset_for(
        self, leader_epoch: LeaderEpoch, high_watermark: int
    ) -> tuple[LeaderEpoch, int]:
        """The answer to OffsetForLeaderEpoch.

        It is the largest epoch up to `leader_epoch`, and the offset after its last record. It is
        undefined (-1, -1) for an epoch newer than all known epochs, and for -1.
        """
        if not self._starts or not 0 <= leader_epoch <= self._starts[-1].leader_epoch:
            return UNDEFINED_EPOCH, UNDEFINED_OFFSET
        following = high_watermark
        for start in reversed(self._starts):
            if start.leader_epoch <= leader_epoch:
                return start.leader_epoch, following
            # The newest epoch may have begun at offsets that are not durable yet.
            following = min(start.start_offset, high_watermark)
        return leader_epoch, following
