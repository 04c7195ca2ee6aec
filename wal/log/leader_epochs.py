"""Which leader epoch wrote which offsets (KIP-101)."""

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
    """Epochs in ascending order, with ascending start offsets; those that wrote nothing are left
    out, so there are never more than records."""

    __slots__ = ("_starts",)

    def __init__(self, starts: Iterable[EpochStart] = ()) -> None:
        self._starts = list(starts)

    @property
    def starts(self) -> tuple[EpochStart, ...]:
        return tuple(self._starts)

    def begin(self, leader_epoch: LeaderEpoch, start_offset: int) -> None:
        """A newer epoch writes from here on."""
        if self._starts and leader_epoch <= self._starts[-1].leader_epoch:
            raise ValueError(f"leader epoch {leader_epoch} does not follow {self._starts[-1]}")
        while self._starts and self._starts[-1].start_offset >= start_offset:
            self._starts.pop()
        self._starts.append(EpochStart(leader_epoch, start_offset))

    def drop_below(self, log_start: int) -> None:
        """Forget what the epochs wrote below the log's start."""
        while len(self._starts) > 1 and self._starts[1].start_offset <= log_start:
            del self._starts[0]
        if self._starts and self._starts[0].start_offset < log_start:
            self._starts[0] = EpochStart(self._starts[0].leader_epoch, log_start)

    def epoch_at(self, offset: int) -> LeaderEpoch:
        """The epoch that wrote this offset, or for the log's end the last that wrote any; undefined
        (-1) where nothing was written."""
        for start in reversed(self._starts):
            if start.start_offset <= offset:
                return start.leader_epoch
        return UNDEFINED_EPOCH

    def end_offset_for(
        self, leader_epoch: LeaderEpoch, high_watermark: int
    ) -> tuple[LeaderEpoch, int]:
        """The largest epoch that is not above the one asked for, and the offset behind its last
        record; what an OffsetForLeaderEpoch answers. Undefined (-1, -1) for an epoch newer than
        those known, and for -1, which is none."""
        if not self._starts or not 0 <= leader_epoch <= self._starts[-1].leader_epoch:
            return UNDEFINED_EPOCH, UNDEFINED_OFFSET
        following = high_watermark
        for start in reversed(self._starts):
            if start.leader_epoch <= leader_epoch:
                return start.leader_epoch, following
            # The newest epoch may have begun at offsets that are not durable yet.
            following = min(start.start_offset, high_watermark)
        return leader_epoch, following
