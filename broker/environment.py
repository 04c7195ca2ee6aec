"""The interfaces between a broker and the rest of the world. Simulations replace all of them."""

from __future__ import annotations

from dataclasses import dataclass

from tidelog.clock import Clock
from tidelog.crash_points import NO_CRASH_POINTS, CrashPoints
from tidelog.entropy import Entropy
from tidelog.network import Network
from tidelog.storage.object_store import ObjectStore
from tidelog.workers.offload import Offload


@dataclass(frozen=True, slots=True)
class BrokerEnvironment:
    """The store, clock, network and workers of a broker process."""

    store: ObjectStore
    clock: Clock
    entropy: Entropy
    network: Network
    offload: Offload
    """Runs work that producers wait for."""
    background: Offload
    """Runs work of tens of milliseconds: reads of segments, searches of batches for a timestamp."""
    rolling: Offload
    """Runs rolls, which may keep a worker busy all the time."""
    cleaning: Offload
    """Runs log compaction, which may keep a worker busy for a second."""
    large_batches: Offload
    """Checks large produced batches, which take far longer than others."""
    crash_points: CrashPoints

    @classmethod
    def of(
        cls,
        store: ObjectStore,
        clock: Clock,
        entropy: Entropy,
        network: Network,
        offload: Offload,
        *,
        background: Offload | None = None,
        rolling: Offload | None = None,
        cleaning: Offload | None = None,
        large_batches: Offload | None = None,
        crash_points: CrashPoints = NO_CRASH_POINTS,
    ) -> BrokerEnvironment:
        """Defaults: `offload` for `background` and `large_batches`, `background` for the others."""
        background = background or offload
        return cls(
            store,
            clock,
            entropy,
            network,
            offload,
            background,
            rolling or background,
            cleaning or background,
            large_batches or offload,
            crash_points,
        )
