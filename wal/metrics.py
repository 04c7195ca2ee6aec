"""What the WAL counts."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field

PUT_SECONDS_BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


@dataclass(slots=True)
class WalMetrics:
    """Plain counters; they only grow."""

    puts: int = 0
    """Uploads begun, one a slot; repeated attempts are the store's to count."""
    slots: int = 0
    """Durable slots, and their entries and bytes below."""
    bytes: int = 0
    batches: int = 0
    put_seconds_sum: float = 0.0
    put_seconds_buckets: list[int] = field(
        default_factory=lambda: [0] * (len(PUT_SECONDS_BOUNDS) + 1)
    )
    """How many uploads took at most PUT_SECONDS_BOUNDS[i]; the last is for all longer ones."""

    def observe_put(self, seconds: float) -> None:
        """An upload was confirmed after so long."""
        self.put_seconds_sum += seconds
        self.put_seconds_buckets[bisect_left(PUT_SECONDS_BOUNDS, seconds)] += 1
