"""Through what a broker touches the world. In a simulation none of it is real."""

from __future__ import annotations

from dataclasses import dataclass

from tidelog.clock import Clock
from tidelog.crash_points import CrashPoints
from tidelog.entropy import Entropy
from tidelog.network import Network
from tidelog.offload import Offload
from tidelog.storage.object_store import ObjectStore


@dataclass(frozen=True, slots=True)
class Surroundings:
    """One process's."""

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
    crash_points: CrashPoints
