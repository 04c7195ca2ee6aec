"""A broker's metrics: plain numbers on the hot path, Prometheus families on a scrape.

prometheus_client's own counters take a lock and microseconds for each step. These are attributes
that the event loop's thread writes and a collector reads on a request for /metrics. Each broker has
a registry of its own, so that several can live in one process.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector, CollectorRegistry

REQUESTS: Final = "tidelog_requests"
REQUEST_ERRORS: Final = "tidelog_request_errors"
REQUEST_SECONDS: Final = "tidelog_request_seconds"
REQUESTS_IN_FLIGHT: Final = "tidelog_requests_in_flight"
REQUEST_BYTES_IN_FLIGHT: Final = "tidelog_request_bytes_in_flight"
ANSWER_BYTES_WAITING: Final = "tidelog_answer_bytes_waiting"
LARGE_BATCHES_WAITING: Final = "tidelog_large_batches_waiting"
RECEIVED_BYTES: Final = "tidelog_received_bytes"
SENT_BYTES: Final = "tidelog_sent_bytes"
CONNECTIONS: Final = "tidelog_connections"
CONNECTIONS_WAITING: Final = "tidelog_connections_waiting"
CONNECTIONS_ACCEPTED: Final = "tidelog_connections_accepted"
CONNECTIONS_REFUSED: Final = "tidelog_connections_refused"
CONNECTIONS_CLOSED: Final = "tidelog_connections_closed"
PRODUCED_RECORDS: Final = "tidelog_produced_records"
PRODUCED_BYTES: Final = "tidelog_produced_bytes"
FETCHED_BYTES: Final = "tidelog_fetched_bytes"
PARTITIONS: Final = "tidelog_partitions"
STORAGE_FAULTS: Final = "tidelog_storage_faults"

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


class Durations:
    """A histogram of durations in seconds."""

    __slots__ = ("counts", "seconds")

    def __init__(self) -> None:
        self.counts = [0] * (len(SECONDS_BOUNDS) + 1)
        self.seconds = 0.0

    def observe(self, seconds: float) -> None:
        """Count one duration."""
        self.counts[bisect_left(SECONDS_BOUNDS, seconds)] += 1
        self.seconds += seconds

    def buckets(self) -> list[tuple[str, float]]:
        """The cumulative counts by upper bounds."""
        total = 0
        result: list[tuple[str, float]] = []
        for bound, count in zip((*map(str, SECONDS_BOUNDS), "+Inf"), self.counts, strict=True):
            total += count
            result.append((bound, total))
        return result


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


class RequestMetrics:
    """The metrics of one API's requests."""

    __slots__ = ("count", "durations", "errors")

    def __init__(self) -> None:
        self.count = 0
        self.durations = Durations()
        self.errors = Counts()
        """Errors by the names of their codes."""

    def observe(self, seconds: float) -> None:
        """Count one answered request."""
        self.count += 1
        self.durations.observe(seconds)


class BrokerMetrics(Collector):
    """All metrics of one broker. The event loop's thread writes them, any thread may read them."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests: dict[str, RequestMetrics] = {}
        self.received_bytes = 0
        self.sent_bytes = 0
        self.connections_accepted = 0
        self.connections_refused = Counts()
        self.connections_closed = Counts()
        self.produced_records = 0
        self.produced_bytes = 0
        self.fetched_bytes = 0
        self.partitions = 0
        self.storage_faults = 0
        self._gauges: dict[str, tuple[str, Callable[[], float]]] = {}
        self.registry.register(self)

    def api(self, name: str) -> RequestMetrics:
        """The metrics of an API's requests; keep them for frequent writes."""
        metrics = self.requests.get(name)
        if metrics is None:
            metrics = self.requests[name] = RequestMetrics()
        return metrics

    def gauge(self, name: str, doc: str, read: Callable[[], float]) -> None:
        """Report the result of `read`, which must be callable from any thread.

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
        yield from self._connection_families()
        yield from self._data_families()
        for name, (doc, read) in list(self._gauges.items()):
            yield GaugeMetricFamily(name, doc, value=read())

    def describe(self) -> Iterable[Metric]:
        """Nothing: names are unique because all are made here."""
        return ()

    def _request_families(self) -> Iterator[Metric]:
        requests = CounterMetricFamily(REQUESTS, "Requests answered.", labels=["api"])
        errors = CounterMetricFamily(
            REQUEST_ERRORS, "Requests answered with an error.", labels=["api", "error"]
        )
        seconds = HistogramMetricFamily(
            REQUEST_SECONDS, "Time from a request's last byte to its answer.", labels=["api"]
        )
        for api, metrics in list(self.requests.items()):
            requests.add_metric([api], metrics.count)
            seconds.add_metric([api], metrics.durations.buckets(), metrics.durations.seconds)
            for error, count in list(metrics.errors.by_label.items()):
                errors.add_metric([api, error], count.value)
        yield from (requests, errors, seconds)

    def _connection_families(self) -> Iterator[Metric]:
        yield _counter(RECEIVED_BYTES, "Bytes received from clients.", self.received_bytes)
        yield _counter(SENT_BYTES, "Bytes sent to clients.", self.sent_bytes)
        yield _counter(CONNECTIONS_ACCEPTED, "Connections accepted.", self.connections_accepted)
        yield _labelled(
            CONNECTIONS_REFUSED,
            "Connections closed at once, for a limit.",
            "limit",
            self.connections_refused,
        )
        yield _labelled(
            CONNECTIONS_CLOSED,
            "Connections closed by the broker.",
            "reason",
            self.connections_closed,
        )

    def _data_families(self) -> Iterator[Metric]:
        yield _counter(PRODUCED_RECORDS, "Records acknowledged.", self.produced_records)
        yield _counter(PRODUCED_BYTES, "Bytes of batches acknowledged.", self.produced_bytes)
        yield _counter(FETCHED_BYTES, "Bytes of batches given to consumers.", self.fetched_bytes)
        yield _gauge(PARTITIONS, "Partitions that this broker leads.", self.partitions)
        yield _counter(
            STORAGE_FAULTS, "Reads that met a missing or corrupt object.", self.storage_faults
        )


def _counter(name: str, doc: str, value: float) -> Metric:
    return CounterMetricFamily(name, doc, value=value)


def _gauge(name: str, doc: str, value: float) -> Metric:
    return GaugeMetricFamily(name, doc, value=value)


def _labelled(name: str, doc: str, label: str, counts: Counts) -> Metric:
    family = CounterMetricFamily(name, doc, labels=[label])
    for value, count in list(counts.by_label.items()):
        family.add_metric([value], count.value)
    return family
