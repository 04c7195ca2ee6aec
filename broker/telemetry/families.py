"""Reports to Prometheus: counts that parts declare, the store's requests, unserved partitions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from tidelog.counts import Durations, FamilyKind, declared
from tidelog.errors import CorruptObject
from tidelog.storage.stores.metered import StoreStatistics

_TYPES: Final[Mapping[FamilyKind, Any]] = MappingProxyType(
    {
        FamilyKind.COUNTER: CounterMetricFamily,
        FamilyKind.GAUGE: GaugeMetricFamily,
        FamilyKind.HISTOGRAM: HistogramMetricFamily,
    }
)


def declared_families(counts: Any) -> Iterator[Metric]:
    """The families that the fields of `counts` declare."""
    for family, value in declared(counts):
        labels = [family.label] if family.label else []
        metric = _TYPES[family.kind](family.name, family.doc, labels=labels)
        if family.label:
            # A copy: the event loop may add to it.
            for label, each in list(value.items()):
                metric.add_metric([label], each)
        elif isinstance(value, Durations):
            metric.add_metric([], value.buckets(), value.seconds)
        elif value is not None:
            metric.add_metric([], value)
        yield metric


class CountsCollector(Collector):
    """The families of one dataclass of counts."""

    def __init__(self, counts: Any) -> None:
        self._counts = counts

    def collect(self) -> Iterator[Metric]:
        """The families, for the registry."""
        return declared_families(self._counts)

    def describe(self) -> Iterable[Metric]:
        """Nothing in advance."""
        return ()


class StoreCollector(Collector):
    """The requests to the object store; each attempt counts."""

    def __init__(self, statistics: StoreStatistics) -> None:
        self._statistics = statistics

    def collect(self) -> Iterator[Metric]:
        """The families, by operation."""
        label = ["operation"]
        requests = CounterMetricFamily(
            "tidelog_store_operations", "Requests to the object store.", labels=label
        )
        moved = CounterMetricFamily(
            "tidelog_store_bytes", "Bytes read from or written to the object store.", labels=label
        )
        seconds = HistogramMetricFamily(
            "tidelog_store_seconds", "Time of requests to the object store.", labels=label
        )
        outcomes = CounterMetricFamily(
            "tidelog_store_errors",
            "Requests to the object store that did not succeed.",
            labels=["operation", "outcome"],
        )
        for name, seen in self._statistics.operations():
            requests.add_metric([name], seen.requests)
            moved.add_metric([name], seen.bytes_total)
            seconds.add_metric([name], seen.latencies.buckets(), seen.latencies.seconds)
            for outcome, count in list(seen.outcomes.items()):
                if outcome != "ok":
                    outcomes.add_metric([name, outcome], count)
        yield from (requests, moved, seconds, outcomes)

    def describe(self) -> Iterable[Metric]:
        """Nothing in advance."""
        return ()


class UnservedCollector(Collector):
    """Partitions that cannot be served at all or in full."""

    def __init__(self, unserved: Callable[[], Sequence[tuple[str, CorruptObject]]]) -> None:
        """`unserved` returns partitions with their damaged objects; called from any thread."""
        self._unserved = unserved

    def collect(self) -> Iterator[Metric]:
        """The family: a series for each partition and damaged object."""
        family = GaugeMetricFamily(
            "tidelog_partition_unserved",
            "Partitions that cannot be served in full, by the damaged or missing object.",
            labels=["partition", "object"],
        )
        for partition, key in sorted({(name, fault.key) for name, fault in self._unserved()}):
            family.add_metric([partition, key], 1)
        yield family

    def describe(self) -> Iterable[Metric]:
        """Nothing in advance."""
        return ()
