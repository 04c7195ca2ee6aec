"""Those who wait for slots to become durable."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import TypeAlias

from tidelog.errors import TidelogError
from tidelog.identifiers import Slot

logger = logging.getLogger(__name__)


class WalLost(TidelogError):
    """This incarnation can acknowledge nothing more. What it did not acknowledge may or may not be
    in the bucket; only a new incarnation can tell."""


Told: TypeAlias = Callable[[WalLost | None], None]
"""Is told that a slot is durable (None), or why that can no longer be known."""


class SlotWaiters:
    """By slot. Futures for most; producers, of whom there are thousands a second, are just told.

    Nobody is called before the call that has them called returns.
    """

    def __init__(self) -> None:
        self._futures: dict[Slot, list[asyncio.Future[None]]] = {}
        self._producers: dict[Slot, list[Told]] = {}

    def producers(self, slot: Slot) -> int:
        """How many producers wait for a slot."""
        return len(self._producers.get(slot, ()))

    def future(self, slot: Slot) -> asyncio.Future[None]:
        """A future of the caller's own, which may be cancelled."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._futures.setdefault(slot, []).append(future)
        return future

    def add(self, slot: Slot, told: Told) -> None:
        """A producer waits; producers are told in the order in which they came."""
        self._producers.setdefault(slot, []).append(told)

    def release(self, slot: Slot) -> int:
        """The slot is durable; how many producers are told so."""
        for future in self._futures.pop(slot, ()):
            if not future.done():
                future.set_result(None)
        producers = self._producers.pop(slot, ())
        if producers:
            asyncio.get_running_loop().call_soon(_tell, producers, None)
        return len(producers)

    def fail(self, lost: Callable[[], WalLost]) -> None:
        """No slot will become durable any more. `lost` makes each one's error."""
        for futures in self._futures.values():
            for future in futures:
                if not future.done():
                    future.set_exception(lost())
                    # Who asked may have gone; that is no error of the event loop's.
                    future.exception()
        self._futures.clear()
        for producers in self._producers.values():
            asyncio.get_running_loop().call_soon(_tell, producers, lost())
        self._producers.clear()


def _tell(producers: Sequence[Told], lost: WalLost | None) -> None:
    for told in producers:
        try:
            told(lost)
        except Exception:  # one producer's fault must not be the others'
            logger.exception("who waited for a slot has failed")
