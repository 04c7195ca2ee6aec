"""The slot that is being filled, and when it is closed and goes.

A slot goes when it is full. Any other goes when its linger has passed, or when nothing is in
flight: then at once, or a moment later (`gathering`). It also waits for the budget (`put_budget`),
and is filled on meanwhile.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from tidelog.clock import Clock
from tidelog.identifiers import Slot
from tidelog.wal.settings import WalSettings
from tidelog.wal.write.buffer import SlotBuffer
from tidelog.wal.write.group_commit import Gathering
from tidelog.wal.write.put_budget import PutBudget


class _Closed(NamedTuple):
    """A slot that takes no more."""

    slot: Slot
    buffer: SlotBuffer
    is_full: bool


class SlotFilling:
    """One WAL's: the slot being filled, and those that are closed and wait for their upload."""

    def __init__(self, settings: WalSettings, clock: Clock, wake: Callable[[], None]) -> None:
        """`wake`: called when there may be a slot to upload."""
        self._clock = clock
        self._linger_seconds = settings.linger_ms / 1000
        self._object_bytes_max = settings.object_bytes_max
        self._wake = wake
        self._slot = Slot(0)
        self._buffer = SlotBuffer()
        self._closed: deque[_Closed] = deque()
        self._is_due = False
        self._linger: asyncio.TimerHandle | None = None
        self._gathering = Gathering(self._linger_seconds)
        self._gathering_end: asyncio.TimerHandle | None = None
        self._budget = PutBudget(settings.puts_a_second_max)
        self._budget_wait: asyncio.TimerHandle | None = None

    @property
    def slot(self) -> Slot:
        """The slot being filled."""
        return self._slot

    @property
    def is_empty(self) -> bool:
        """Whether nothing is in it."""
        return self._buffer.is_empty

    @property
    def size_bytes(self) -> int:
        """What is in it."""
        return self._buffer.size_bytes

    def buffer_for(self, size_bytes: int, *, is_idle: bool) -> SlotBuffer:
        """Where to add so many bytes; `added` is to be called next. `is_idle`: nothing is in
        flight."""
        buffer = self._buffer
        if not buffer.is_empty and buffer.size_bytes + size_bytes > self._object_bytes_max:
            self.close(is_full=True)
            buffer = self._buffer
        if buffer.is_empty:
            self._start_linger(is_idle)
        return buffer

    def added(self) -> Slot:
        """Something was added; the slot that it is in."""
        slot = self._slot
        if self._buffer.size_bytes >= self._object_bytes_max:
            self.close(is_full=True)
        elif self._gathering.is_active:
            self._wake()
        return slot

    def producer_waits(self) -> None:
        """One more producer waits for a slot."""
        if self._gathering.is_active:
            self._wake()

    def close(self, *, is_full: bool = False) -> None:
        """Close the slot being filled; the next one begins."""
        self._closed.append(_Closed(self._slot, self._buffer, is_full))
        self._slot = Slot(self._slot + 1)
        self._buffer = SlotBuffer()
        self._is_due = False
        if self._linger is not None:
            self._linger.cancel()
            self._linger = None
        self._end_gathering()
        self._wake()

    def may_go(self, waiting: int, *, is_idle: bool) -> bool:
        """Whether there is a slot to upload now. `waiting`: how many producers wait for the slot
        being filled."""
        if self._closed:
            return self._closed[0].is_full or self._is_affordable()
        buffer = self._buffer
        if buffer.is_empty:
            return False
        if not self._is_due and (
            not is_idle or self._gathering.holds(buffer.batches, waiting, buffer.size_bytes)
        ):
            return False
        return self._is_affordable()

    def take(self) -> tuple[Slot, SlotBuffer]:
        """The next slot to upload, closed now if it was not. Its put begins now."""
        if not self._closed:
            self.close()
        self._budget.spend(self._clock.monotonic())
        slot, buffer, _ = self._closed.popleft()
        return slot, buffer

    def gather(self, answered: int, waiting: int, put_seconds: float) -> None:
        """Nothing is in flight any more: let the slot wait for those who were answered."""
        self._end_gathering()
        seconds = self._gathering.begin(answered, waiting, put_seconds)
        if seconds:
            loop = asyncio.get_running_loop()
            self._gathering_end = loop.call_later(seconds, self._gathered)

    def end(self) -> None:
        """Nothing will be uploaded any more: no timer is left behind."""
        if self._linger is not None:
            self._linger.cancel()
        if self._budget_wait is not None:
            self._budget_wait.cancel()
        self._end_gathering()

    def _is_affordable(self) -> bool:
        """Whether there may be a put now; if not, `wake` is called when there may."""
        seconds = self._budget.seconds_to_wait(self._clock.monotonic())
        if seconds > 0 and self._budget_wait is None:
            loop = asyncio.get_running_loop()
            self._budget_wait = loop.call_later(seconds, self._budget_has_come)
        return seconds == 0

    def _budget_has_come(self) -> None:
        self._budget_wait = None
        self._wake()

    def _start_linger(self, is_idle: bool) -> None:
        if is_idle:
            # The task that closes it runs after all that is ready now, so one loop's adds share it.
            self._wake()
        if self._linger_seconds == 0:
            self._linger_passed()
        else:
            loop = asyncio.get_running_loop()
            self._linger = loop.call_later(self._linger_seconds, self._linger_passed)

    def _linger_passed(self) -> None:
        self._linger = None
        self._is_due = True
        self._wake()

    def _gathered(self) -> None:
        self._end_gathering()
        self._wake()

    def _end_gathering(self) -> None:
        self._gathering.end()
        if self._gathering_end is not None:
            self._gathering_end.cancel()
            self._gathering_end = None
