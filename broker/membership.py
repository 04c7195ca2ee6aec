"""One incarnation's membership of the cluster: its registration, its lease and its fence."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tidelog.broker.settings.listeners import BoundListener
from tidelog.clock import Clock
from tidelog.coordinator.cluster.log.leases import NO_PROGRESS, WalProgress
from tidelog.coordinator.cluster.log.metadata_log import MetadataLog
from tidelog.coordinator.cluster.log.view_renewal import ViewRenewal
from tidelog.coordinator.cluster.membership.lease_keeper import LeaseKeeper, OwnFence
from tidelog.coordinator.cluster.membership.service_watch import NO_UPLOADS, Uploads
from tidelog.coordinator.cluster.state.state import ClusterState
from tidelog.identifiers import Incarnation


class ReportedProgress:
    """The WAL's progress for the lease and its watcher; there is none until the WAL is open."""

    def __init__(self) -> None:
        self._progress: Callable[[], WalProgress] = lambda: NO_PROGRESS
        self._uploads: Callable[[], Uploads] = lambda: NO_UPLOADS

    def follow(self, progress: Callable[[], WalProgress], uploads: Callable[[], Uploads]) -> None:
        """Report the values of these functions from now on."""
        self._progress = progress
        self._uploads = uploads

    def now(self) -> WalProgress:
        """The progress for the lease's next renewal."""
        return self._progress()

    def uploads(self) -> Uploads:
        """The uploads up to now."""
        return self._uploads()


@dataclass(frozen=True, slots=True)
class Membership:
    """A registered incarnation, with the listeners that it registered."""

    metadata: MetadataLog
    renewal: ViewRenewal
    incarnation: Incarnation
    lease: LeaseKeeper
    fence: OwnFence
    progress: ReportedProgress
    listeners: tuple[BoundListener, ...]
    clock: Clock

    @property
    def advertised(self) -> tuple[str, int]:
        """The first listener's address for clients."""
        return self.listeners[0].advertised

    @property
    def listening(self) -> tuple[str, int]:
        """The first listener's own address."""
        return self.listeners[0].listening

    def state(self) -> ClusterState:
        """The cluster as this broker knows it."""
        return self.metadata.state

    def may_serve_reads(self) -> bool:
        """Whether the lease is fresh enough to serve state that other brokers may change (B3)."""
        return self.lease.fresh(self.clock.monotonic()) and not self.fence.is_found
