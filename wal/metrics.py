"""The counters of the WAL."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field

PUT_SECONDS_BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


@dataclass(slots=True)
class WalMetrics:
    """Counters that only grow."""

    puts: int = 0
    """Uploads begun, one per slot; the store counts retries."""
    slots: int = 0
    """Durable slots; `bytes` and `batches` are their content."""
    bytes: int = 0
    batches: int = 0
    put_seconds_sum: float = 0.0
    put_seconds_buckets: list[int] = field(
        default_factory=lambda: [0] * (len(PUT_SECONDS_BOUNDS) + 1)
    )
    """Uploads by duration: bucket i is bounded by PUT_SECONDS_BOUNDS[i], the last is unbounded."""

    def observe_put(self, seconds: float) -> None:
        """Count an upload that was confirmed after `seconds`."""
        self.put_seconds_sum += seconds
        self.put_seconds_buckets[bisect_left(PUT_SECONDS_BOUNDS, seconds)] += 1
