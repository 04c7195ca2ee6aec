"""Through what a broker touches the world. In a simulation none of it is real."""

from __future__ import annotations

from dataclasses import dataclass

from tidelog.clock import Clock
from tidelog.crash_points import NO_CRASH_POINTS, CrashPoints
from tidelog.entropy import Entropy
from tidelog.network import Network
from tidelog.offload import Offload
from tidelog.storage.object_store import ObjectStore


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What one process gives its broker."""

    store: ObjectStore
    clock: Clock
    entropy: Entropy
    network: Network
    offload: Offload
    """For work that producers wait for."""
    background: Offload
    """For work that keeps a worker busy for tens of milliseconds: what is read of segments, and
    batches that are searched for a time."""
    rolling: Offload
    """For rolls, which keep one busy for as long as there is anything to roll."""
    cleaning: Offload
    """For log compaction, which may keep one busy for a second."""
    large_batches: Offload
    """For produced batches that take far longer than others."""
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
    ) -> Surroundings:
        """With `offload` for large batches and in the background, and `background` for rolls and
        compaction, where nothing else is given."""
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
