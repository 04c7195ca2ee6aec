"""The slot that is being filled, and when it is closed: when it is full, when its linger has
passed, or when nothing is in flight: then at once, or a moment later (`gathering`)."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from tidelog.identifiers import Slot
from tidelog.wal.buffer import SlotBuffer
from tidelog.wal.gathering import Gathering
from tidelog.wal.settings import WalSettings


class SlotFilling:
    """One WAL's: the slot being filled, and those that are closed and wait for their upload."""

    def __init__(self, settings: WalSettings, wake: Callable[[], None]) -> None:
        """`wake`: called when there may be a slot to upload."""
        self._linger_seconds = settings.linger_ms / 1000
        self._object_bytes_max = settings.object_bytes_max
        self._wake = wake
        self._slot = Slot(0)
        self._buffer = SlotBuffer()
        self._closed: deque[tuple[Slot, SlotBuffer]] = deque()
        self._is_due = False
        self._linger: asyncio.TimerHandle | None = None
        self._gathering = Gathering(self._linger_seconds)
        self._gathering_end: asyncio.TimerHandle | None = None

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
            self.close()
            buffer = self._buffer
        if buffer.is_empty:
            self._start_linger(is_idle)
        return buffer

    def added(self) -> Slot:
        """Something was added; the slot that it is in."""
        slot = self._slot
        if self._buffer.size_bytes >= self._object_bytes_max:
            self.close()
        elif self._gathering.is_active:
            self._wake()
        return slot

    def producer_waits(self) -> None:
        """One more producer waits for a slot."""
        if self._gathering.is_active:
            self._wake()

    def close(self) -> None:
        """Close the slot being filled; the next one begins."""
        self._closed.append((self._slot, self._buffer))
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
            return True
        buffer = self._buffer
        if buffer.is_empty:
            return False
        if self._is_due or not is_idle:
            return self._is_due
        return not self._gathering.holds(buffer.batches, waiting, buffer.size_bytes)

    def take(self) -> tuple[Slot, SlotBuffer]:
        """The next slot to upload, closed now if it was not."""
        if not self._closed:
            self.close()
        return self._closed.popleft()

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
        self._end_gathering()

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
