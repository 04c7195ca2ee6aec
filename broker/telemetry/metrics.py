"""A broker's metrics: plain numbers on the hot path, Prometheus families on a scrape.

prometheus_client's own counters take a lock and microseconds for each step. These are attributes
that the event loop's thread writes and a collector reads on a request for /metrics. Each broker has
a registry of its own, so that several can live in one process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector, CollectorRegistry

from tidelog.broker.telemetry.families import declared_families
from tidelog.counts import Durations, counter, gauge

REQUESTS: Final = "tidelog_requests"
REQUEST_SECONDS: Final = "tidelog_request_seconds"
REQUESTS_IN_FLIGHT: Final = "tidelog_requests_in_flight"
REQUEST_BYTES_IN_FLIGHT: Final = "tidelog_request_bytes_in_flight"
ANSWER_BYTES_WAITING: Final = "tidelog_answer_bytes_waiting"
LARGE_BATCHES_WAITING: Final = "tidelog_large_batches_waiting"
MARKERS_UNWRITTEN: Final = "tidelog_transactions_markers_unwritten"
PARTITIONS_OPENING: Final = "tidelog_partitions_opening"
TAKEOVERS_WAITING: Final = "tidelog_takeovers_waiting"
LEASE_RENEWED: Final = "tidelog_lease_last_success_timestamp_seconds"
METADATA_READ: Final = "tidelog_metadata_read_last_success_timestamp_seconds"
CONNECTIONS: Final = "tidelog_connections"
CONNECTIONS_WAITING: Final = "tidelog_connections_waiting"

SECONDS_BOUNDS: Final = (
    0.0005,
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
)
CONTENT_TYPE: Final = CONTENT_TYPE_LATEST


class Count:
    """A number that only grows. The hot path writes `count.value += n`."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0


class Counts:
    """Counters of one name, distinguished by one label."""

    __slots__ = ("by_label",)

    def __init__(self) -> None:
        self.by_label: dict[str, Count] = {}

    def of(self, label: str) -> Count:
        """The counter for this label; keep it for frequent writes."""
        count = self.by_label.get(label)
        if count is None:
            count = self.by_label[label] = Count()
        return count

    def items(self) -> list[tuple[str, int]]:
        """The labels and their values. A copy: the event loop may add to them."""
        return [(label, count.value) for label, count in list(self.by_label.items())]


class RequestMetrics:
    """The metrics of one API's requests."""

    __slots__ = ("count", "durations", "errors")

    def __init__(self) -> None:
        self.count = 0
        self.durations = Durations(SECONDS_BOUNDS)
        self.errors = Counts()
        """Errors by the names of their codes."""

    def observe(self, seconds: float) -> None:
        """Count one answered request."""
        self.count += 1
        self.durations.observe(seconds)


@dataclass(eq=False)
class BrokerMetrics(Collector):
    """All metrics of one broker. The event loop's thread writes them, any thread may read them."""

    registry: CollectorRegistry = field(default_factory=CollectorRegistry)
    requests: dict[str, RequestMetrics] = field(default_factory=dict)
    received_bytes: int = counter("tidelog_received_bytes", "Bytes received from clients.")
    sent_bytes: int = counter("tidelog_sent_bytes", "Bytes sent to clients.")
    connections_accepted: int = counter("tidelog_connections_accepted", "Connections accepted.")
    connections_refused: Counts = counter(
        "tidelog_connections_refused",
        "Connections closed at once, for a limit.",
        "limit",
        new=Counts,
    )
    connections_closed: Counts = counter(
        "tidelog_connections_closed", "Connections closed by the broker.", "reason", new=Counts
    )
    produced_records: int = counter("tidelog_produced_records", "Records acknowledged.")
    produced_bytes: int = counter("tidelog_produced_bytes", "Bytes of batches acknowledged.")
    fetched_bytes: int = counter("tidelog_fetched_bytes", "Bytes of batches given to consumers.")
    produced_zone_bytes: Counts = counter(
        "tidelog_produced_zone_bytes",
        "Bytes of batches acknowledged, by the producer's zone.",
        "zone",
        new=Counts,
    )
    fetched_zone_bytes: Counts = counter(
        "tidelog_fetched_zone_bytes",
        "Bytes of batches given to consumers, by their zone.",
        "zone",
        new=Counts,
    )
    partitions: int = gauge("tidelog_partitions", "Partitions that this broker leads.")
    storage_faults: int = counter(
        "tidelog_storage_faults", "Reads that met a missing or corrupt object."
    )
    _gauges: dict[str, tuple[str, Callable[[], float | None]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.registry.register(self)

    def api(self, name: str) -> RequestMetrics:
        """The metrics of an API's requests; keep them for frequent writes."""
        metrics = self.requests.get(name)
        if metrics is None:
            metrics = self.requests[name] = RequestMetrics()
        return metrics

    def gauge(self, name: str, doc: str, read: Callable[[], float | None]) -> None:
        """Report the result of `read`, which must be callable from any thread. None: no series.

        ValueError: the name is taken.
        """
        if name in self._gauges:
            raise ValueError(f"metric {name} is already reported")
        self._gauges[name] = (doc, read)

    def exposition(self) -> bytes:
        """All metrics as text of type CONTENT_TYPE."""
        return generate_latest(self.registry)

    def collect(self) -> Iterator[Metric]:
        """The families. Copies the dictionaries, since the event loop may add to them."""
        yield from self._request_families()
        yield from declared_families(self)
        for name, (doc, read) in list(self._gauges.items()):
            yield GaugeMetricFamily(name, doc, value=read())

    def describe(self) -> Iterable[Metric]:
        """Nothing: names are unique because all are made here."""
        return ()

    def _request_families(self) -> Iterator[Metric]:
        requests = CounterMetricFamily(REQUESTS, "Requests answered.", labels=["api"])
        errors = CounterMetricFamily(
            "tidelog_request_errors", "Requests answered with an error.", labels=["api", "error"]
        )
        seconds = HistogramMetricFamily(
            REQUEST_SECONDS, "Time from a request's last byte to its answer.", labels=["api"]
        )
        for api, metrics in list(self.requests.items()):
            requests.add_metric([api], metrics.count)
            seconds.add_metric([api], metrics.durations.buckets(), metrics.durations.seconds)
            for error, count in metrics.errors.items():
                errors.add_metric([api, error], count)
        yield from (requests, errors, seconds)
