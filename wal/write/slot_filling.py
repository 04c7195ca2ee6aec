"""The open slot, and the decision when to close and upload it.

A full slot is uploaded at once. Any other slot is uploaded when its linger has passed. If no upload
is in flight, it is uploaded earlier: at once, or after a short delay. It also waits for the PUT
budget, and takes more entries meanwhile. `group_commit` decides both.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from tidelog.clock import Clock
from tidelog.concurrency import OfOneLoop
from tidelog.identifiers import Slot
from tidelog.wal.settings import WalSettings
from tidelog.wal.write.buffer import SlotBuffer
from tidelog.wal.write.group_commit import CommitDelay, PutBudget


class _Closed(NamedTuple):
    """A closed slot, which waits for its upload."""

    slot: Slot
    buffer: SlotBuffer
    is_full: bool


class SlotFilling(OfOneLoop):
    """The open slot of one WAL, and its closed slots that wait for their upload."""

    def __init__(self, settings: WalSettings, clock: Clock, wake: Callable[[], None]) -> None:
        """`wake` is called when a slot may be ready for its upload."""
        self._clock = clock
        self._linger_seconds = settings.linger_ms / 1000
        self._object_bytes_max = settings.object_bytes_max
        self._wake = wake
        self._slot = Slot(0)
        self._buffer = SlotBuffer()
        self._closed: deque[_Closed] = deque()
        self._is_due = False
        self._linger: asyncio.TimerHandle | None = None
        self._delay = CommitDelay(self._linger_seconds)
        self._delay_end: asyncio.TimerHandle | None = None
        self._budget = PutBudget(settings.puts_a_second_max)
        self._budget_wait: asyncio.TimerHandle | None = None

    @property
    def slot(self) -> Slot:
        """The open slot."""
        return self._slot

    @property
    def is_empty(self) -> bool:
        """True if the open slot has no entry."""
        return self._buffer.is_empty

    def buffer_for(self, size_bytes: int, *, is_idle: bool) -> SlotBuffer:
        """The buffer for the next `size_bytes`; the caller adds to it, then calls `added`.

        `is_idle`: no upload is in flight.
        """
        is_empty = self._buffer.is_empty
        if not is_empty and self._buffer.size_bytes + size_bytes > self._object_bytes_max:
            self.close(is_full=True)
            is_empty = True
        if is_empty and is_idle:
            # The uploading task runs after all ready tasks, so this turn's additions share a slot.
            self._wake()
        elif is_empty:
            self._start_linger()
        return self._buffer

    def added(self) -> Slot:
        """Finish an addition to the buffer; the slot that holds it."""
        slot = self._slot
        if self._buffer.size_bytes >= self._object_bytes_max:
            self.close(is_full=True)
        elif self._delay.is_active:
            self._wake()
        return slot

    def producer_waits(self, waiting: int) -> None:
        """Note that one more producer waits for a slot: `waiting` wait for the open one."""
        if self._delay.is_active and not self._is_held(waiting):
            self._wake()

    def close(self, *, is_full: bool = False) -> None:
        """Close the open slot and open the next one; the closed one may be uploaded."""
        self._close(is_full)
        self._wake()

    def _close(self, is_full: bool) -> None:
        self._closed.append(_Closed(self._slot, self._buffer, is_full))
        self._slot = Slot(self._slot + 1)
        self._buffer = SlotBuffer()
        self._is_due = False
        if self._linger is not None:
            self._linger.cancel()
            self._linger = None
        self._end_delay()

    def may_go(self, waiting: int, *, is_idle: bool) -> bool:
        """True if a slot may be uploaded now.

        `waiting`: the number of producers that wait for the open slot.
        """
        if self._closed:
            return self._closed[0].is_full or self._is_affordable()
        buffer = self._buffer
        if buffer.is_empty:
            return False
        if not self._is_due and (not is_idle or self._is_held(waiting)):
            return False
        return self._is_affordable()

    def take(self) -> tuple[Slot, SlotBuffer]:
        """The next slot to upload, closed if it was open. Its PUT begins now."""
        if not self._closed:
            self._close(is_full=False)
        self._budget.spend(self._clock.monotonic())
        slot, buffer, _ = self._closed.popleft()
        if not (self._buffer.is_empty or self._is_due or self._linger):
            # It was begun while no upload was in flight.
            self._start_linger()
        return slot, buffer

    def delay(self, answered: int, waiting: int, put_seconds: float) -> None:
        """Let the open slot wait for answered producers, since no upload is in flight."""
        self._end_delay()
        seconds = self._delay.begin(answered, waiting, put_seconds)
        if seconds:
            self._delay_end = self.loop.call_later(seconds, self._delay_passed)

    def end(self) -> None:
        """Cancel all timers, since no more slots will be uploaded."""
        if self._linger is not None:
            self._linger.cancel()
        if self._budget_wait is not None:
            self._budget_wait.cancel()
        self._end_delay()

    def _is_held(self, waiting: int) -> bool:
        buffer = self._buffer
        return self._delay.holds(buffer.batches, waiting, buffer.size_bytes)

    def _is_affordable(self) -> bool:
        """True if the budget allows a PUT now; otherwise `wake` is called when it does."""
        seconds = self._budget.seconds_to_wait(self._clock.monotonic())
        if seconds > 0 and self._budget_wait is None:
            self._budget_wait = self.loop.call_later(seconds, self._budget_has_come)
        return seconds == 0

    def _budget_has_come(self) -> None:
        self._budget_wait = None
        self._wake()

    def _start_linger(self) -> None:
        """Count the time of a slot that other uploads delay."""
        if self._linger_seconds == 0:
            self._linger_passed()
        else:
            self._linger = self.loop.call_later(self._linger_seconds, self._linger_passed)

    def _linger_passed(self) -> None:
        self._linger = None
        self._is_due = True
        self._wake()

    def _delay_passed(self) -> None:
        self._end_delay()
        if not self._buffer.is_empty:
            self._wake()

    def _end_delay(self) -> None:
        if self._delay_end is not None:
            self._delay.end()
            self._delay_end.cancel()
            self._delay_end = None
