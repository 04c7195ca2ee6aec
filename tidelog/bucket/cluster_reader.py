"""Read-only access to the metadata log. Nothing is ever written."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from tidelog.clock import Clock
from tidelog.coordinator.cluster.log.log_view import LogAbandoned, LogView
from tidelog.coordinator.cluster.log.prefix import CLUSTER_FOLDER
from tidelog.coordinator.cluster.log.snapshots import Snapshots
from tidelog.coordinator.cluster.records.settings import ClusterSettings
from tidelog.coordinator.cluster.state.state import ClusterState
from tidelog.errors import InvalidConfiguration
from tidelog.identifiers import MetadataStamp
from tidelog.storage.object_store import ObjectStore, StoreError, StoreNotApplied
from tidelog.workers.offload import Offload


class ClusterReader:
    """The cluster's state as of the last refresh. Refreshes must not overlap."""

    def __init__(
        self, store: ObjectStore, clock: Clock, offload: Offload, settings: ClusterSettings
    ) -> None:
        self._store = store
        self._clock = clock
        self._offload = offload
        self._settings = settings
        self._lock = asyncio.Lock()
        self._view: LogView | None = None
        self.state = ClusterState()
        """The state as of the last `refresh`."""

    async def refresh(self) -> ClusterState:
        """Apply the entries appended since the last refresh.

        Raises InvalidConfiguration if there is no cluster, CorruptObject, UnsupportedFormat and
        StoreError.
        """
        async with self._lock:
            view, self._view = self._view, None
            if view is not None:
                # A view that was not read for too long is worthless, but a new one costs little.
                with suppress(LogAbandoned):
                    await self._catch_up(view)
            if self._view is None:
                self._view = await self._load()
            self.state = self._view.state
            return self.state

    async def verify(self, stamp: MetadataStamp, source: str) -> None:
        """Compare the log with the stamp that the writer of the object `source` left (rule C11).

        CorruptObject: the log is damaged. StoreError: unknown.
        """
        await self.refresh()
        async with self._lock:
            assert self._view is not None
            await self._view.verify(stamp, source)
            self.state = self._view.state

    async def _catch_up(self, view: LogView) -> None:
        """Read on. A view that has met a corrupt object is not used again."""
        try:
            await view.catch_up()
        except StoreError:
            self._view = view
            raise
        self._view = view

    async def _load(self) -> LogView:
        snapshots = Snapshots(self._store, self._clock, self._offload)
        view = LogView(self._store, self._clock, self._settings, snapshots)
        try:
            await view.load(writing=False)
        except LogAbandoned as late:
            raise StoreNotApplied(
                CLUSTER_FOLDER,
                "reading the metadata log took longer than half of log.delete.grace.ms"
                f" ({self._settings.delete_grace_ms}), so entries may have been deleted meanwhile."
                f" Try again; {self._store.url} is very slow, or this process was suspended",
            ) from late
        if view.state.cluster is None:
            raise InvalidConfiguration(
                f"{self._store.url} holds no cluster. Check the address; a broker creates a cluster"
                " in an empty prefix"
            )
        return view
