"""Futures and callbacks that wait for slots to become durable."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import TypeAlias

from tidelog.errors import TidelogError
from tidelog.identifiers import Slot

logger = logging.getLogger(__name__)


class WalLost(TidelogError):
    """This incarnation cannot acknowledge any more records.

    Records without an acknowledgement may or may not be in the bucket. A new incarnation finds out.
    """


Told: TypeAlias = Callable[[WalLost | None], None]
"""Called with None when a slot is durable, or with the error that leaves its outcome unknown."""


class SlotWaiters:
    """The waiters of each slot. Producers wait with a callback, which is cheaper than a future.

    Callbacks run in a later turn of the event loop, never within `release` or `fail`.
    """

    def __init__(self) -> None:
        self._futures: dict[Slot, list[asyncio.Future[None]]] = {}
        self._producers: dict[Slot, list[Told]] = {}

    def producers(self, slot: Slot) -> int:
        """The number of producers that wait for a slot."""
        return len(self._producers.get(slot, ()))

    def future(self, slot: Slot) -> asyncio.Future[None]:
        """A future of the caller's own, which may be cancelled."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._futures.setdefault(slot, []).append(future)
        return future

    def add(self, slot: Slot, told: Told) -> None:
        """Add a producer's callback. Callbacks of a slot run in the order of their addition."""
        self._producers.setdefault(slot, []).append(told)

    def release(self, slot: Slot) -> int:
        """Answer the waiters of a durable slot; the number of its producers."""
        for future in self._futures.pop(slot, ()):
            if not future.done():
                future.set_result(None)
        producers = self._producers.pop(slot, ())
        if producers:
            asyncio.get_running_loop().call_soon(_tell, producers, None)
        return len(producers)

    def fail(self, lost: Callable[[], WalLost]) -> None:
        """Fail all waiters. `lost` makes an error for each."""
        for futures in self._futures.values():
            for future in futures:
                if not future.done():
                    future.set_exception(lost())
                    # The caller may be gone. Mark the error as retrieved for the event loop.
                    future.exception()
        self._futures.clear()
        for producers in self._producers.values():
            asyncio.get_running_loop().call_soon(_tell, producers, lost())
        self._producers.clear()


def _tell(producers: Sequence[Told], lost: WalLost | None) -> None:
    for told in producers:
        try:
            told(lost)
        except Exception:  # one callback's error must not affect the others
            logger.exception("the callback of a slot's waiter failed")
