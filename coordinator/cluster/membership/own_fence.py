"""Detects in the metadata log that this incarnation was fenced (rule C9).

From that entry on its partitions are about to get another owner. The seal refuses its further
appends, but an idle broker meets no seal. So the broker ends itself. All acknowledged records lie
below the seal, and are safe.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import NoReturn

from tidelog.coordinator.cluster.log.metadata_log import MetadataLog
from tidelog.coordinator.cluster.records.records import Record
from tidelog.errors import Fenced
from tidelog.identifiers import Incarnation


class OwnFence:
    """Looks for the fence in each entry that this process reads or appends."""

    def __init__(self, log: MetadataLog, incarnation: Incarnation) -> None:
        """`incarnation` is registered in the log's present state."""
        self._log = log
        self._incarnation = incarnation
        self._found_at: int | None = None
        self._found = asyncio.Event()
        self._unsubscribe = log.subscribe(self.follow)
        self.follow(log.state.sequence, ())

    @property
    def is_found(self) -> bool:
        """Whether the incarnation is fenced: the broker may give no more answers as an owner."""
        return self._found_at is not None

    async def run(self) -> NoReturn:
        """Raise Fenced as soon as the incarnation is fenced."""
        await self._found.wait()
        raise Fenced(
            f"incarnation {self._incarnation} was fenced by another broker, as entry"
            f" {self._found_at} of the metadata log says: its lease was not renewed in time, or its"
            " process was taken for dead. It ends; all acknowledged records are safe"
        )

    def disregard(self) -> None:
        """Stop looking: this incarnation is about to fence itself."""
        self._unsubscribe()

    def follow(self, sequence: int, _: Sequence[Record]) -> None:
        """Look for the fence in the state after an entry was applied."""
        info = self._log.state.brokers.get(self._incarnation.epoch)
        if self._found_at is None and (info is None or info.fenced):
            self._found_at = sequence
            self._found.set()
