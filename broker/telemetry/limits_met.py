"""Counts how often clients meet limits, and how near the broker is to limits on what it holds."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector, CollectorRegistry

from tidelog.broker.telemetry.fault_log import SparseLog
from tidelog.broker.telemetry.metrics import Counts
from tidelog.clock import Clock

logger = logging.getLogger(__name__)

LIMITED: Final = "tidelog_limited"
LIMIT: Final = "tidelog_limit"
LIMIT_HELD: Final = "tidelog_limit_held"


class LimitsMet(Collector):
    """The limits of one broker, by their settings."""

    def __init__(self, registry: CollectorRegistry, clock: Clock) -> None:
        self._lines = SparseLog(logger, clock)
        self._refused = Counts()
        self._watched: dict[str, tuple[int, Callable[[], int]]] = {}
        registry.register(self)

    def met(self, setting: str, why: str, times: int = 1) -> None:
        """Count refusals because of a limit, and log them now and then."""
        if times <= 0:
            return
        count = self._refused.of(setting)
        count.value += times
        extra = {"limit": setting, "why": why, "refused": count.value}
        self._lines.tell(logging.WARNING, "a limit was met", (setting,), extra)

    def times_met(self, setting: str) -> int:
        """How many requests this limit has refused."""
        return self._refused.of(setting).value

    def watch(self, setting: str, limit: int, held: Callable[[], int]) -> None:
        """Report a limit on what the broker holds. `held` must be callable from any thread."""
        self._watched[setting] = limit, held

    def collect(self) -> Iterator[Metric]:
        """The families, by setting. Copies the dictionaries, since the loop may add to them."""
        refused = CounterMetricFamily(LIMITED, "Refusals because of a limit.", labels=["limit"])
        for setting, count in self._refused.items():
            refused.add_metric([setting], count)
        limits = GaugeMetricFamily(
            LIMIT, "Limits on clients' leftovers in a broker's memory.", labels=["limit"]
        )
        held = GaugeMetricFamily(LIMIT_HELD, "The present value for each limit.", labels=["limit"])
        for setting, (limit, read) in list(self._watched.items()):
            limits.add_metric([setting], limit)
            held.add_metric([setting], read())
        yield from (refused, limits, held)

    def describe(self) -> Iterable[Metric]:
        """Nothing: all names are fixed and unique."""
        return ()
