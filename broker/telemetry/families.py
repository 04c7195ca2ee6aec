"""Reports declared counts to Prometheus."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
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
