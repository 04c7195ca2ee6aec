"""Reads the metadata log again at once when something suggests that this broker's view is old.

A broker follows the log at intervals. Between them a client may know more than the broker: it names
a topic, a partition or a leader epoch that the broker has not read of. The client repeats a refused
request; with the renewal its repetition finds the newer view. Nothing depends on it: without it the
next interval brings the same.

Many clients may ask at once, and for names that do not exist. So one read serves all that asked
before it began, and reads keep a distance.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final, NoReturn

from tidelog.clock import Clock
from tidelog.coordinator.cluster.log.metadata_log import MetadataLog
from tidelog.storage.object_store import StoreError

logger = logging.getLogger(__name__)

DISTANCE_SECONDS: Final = 0.1
"""Between two renewals: at most ten reads a second, whatever clients ask for."""


class ViewRenewal:
    """Renews one process's view of the metadata log on request. `run` is its task."""

    def __init__(self, log: MetadataLog, clock: Clock) -> None:
        self._log = log
        self._clock = clock
        self._requested = asyncio.Event()
        self._waiting: list[asyncio.Future[bool]] = []

    def request(self) -> None:
        """Renew the view soon."""
        if self._is_needed:
            self._requested.set()

    async def renewed(self, *, even_if_alone: bool = False) -> bool:
        """Wait until the view has all entries that were there at the call.

        False after an error of the store: the view is as it was, and the log says so.
        `even_if_alone`: also if this broker knows no other one. So it must be when another broker
        asks, or an answer depends on others: one that has just registered is not in the view yet.
        """
        if not (even_if_alone or self._is_needed):
            return True
        done: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiting.append(done)
        self._requested.set()
        return await done

    async def run(self) -> NoReturn:
        """Serve requests until cancelled. Raises the errors of a damaged log."""
        try:
            while True:
                await self._requested.wait()
                self._requested.clear()
                waiting, self._waiting = self._waiting, []
                is_renewed = False
                try:
                    await self._log.refresh()
                    is_renewed = True
                except StoreError as error:
                    logger.warning(
                        "the view of the metadata log was not renewed", extra={"why": str(error)}
                    )
                finally:
                    _settle(waiting, is_renewed)
                await self._clock.sleep(DISTANCE_SECONDS)
        finally:
            _settle(self._waiting, is_renewed=False)

    @property
    def _is_needed(self) -> bool:
        """Only brokers append, so the view of the only one is the newest."""
        return len(self._log.state.live_epochs) > 1


def _settle(waiting: list[asyncio.Future[bool]], is_renewed: bool) -> None:
    for each in waiting:
        if not each.done():
            each.set_result(is_renewed)
