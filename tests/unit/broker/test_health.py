"""The HTTP side: health, metrics, limits; and the metrics themselves."""

from __future__ import annotations

import http.client
import json
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tidelog.broker import health as health_module
from tidelog.broker.health import HealthServer
from tidelog.broker.metrics import REQUEST_SECONDS, REQUESTS, BrokerMetrics, Durations

Answer = tuple[int, str, bytes]


@contextmanager
def serving(problems: Sequence[str] = (), connections_max: int = 8) -> Iterator[HealthServer]:
    server = HealthServer(
        "127.0.0.1",
        0,
        health=lambda: problems,
        exposition=BrokerMetrics().exposition,
        connections_max=connections_max,
    )
    try:
        yield server
    finally:
        server.close()


def get(server: HealthServer, path: str, method: str = "GET") -> Answer:
    connection = http.client.HTTPConnection(*server.address, timeout=10)
    try:
        connection.request(method, path)
        response = connection.getresponse()
        return response.status, response.getheader("Content-Type") or "", response.read()
    finally:
        connection.close()


def test_a_healthy_broker_says_so() -> None:
    with serving() as server:
        status, content_type, body = get(server, "/healthz")
    assert (status, content_type) == (200, "application/json")
    assert json.loads(body) == {"healthy": True, "problems": []}


def test_what_is_wrong_is_named() -> None:
    with serving(["the lease is stale", "t-0 is corrupt"]) as server:
        status, _, body = get(server, "/healthz?verbose")
    assert status == 503
    assert json.loads(body) == {
        "healthy": False,
        "problems": ["the lease is stale", "t-0 is corrupt"],
    }


def test_metrics_are_what_prometheus_reads() -> None:
    with serving() as server:
        status, content_type, body = get(server, "/metrics")
    assert status == 200
    assert content_type.startswith("text/plain")
    assert REQUESTS in {family.name for family in text_string_to_metric_families(body.decode())}


def test_nothing_else_is_served() -> None:
    with serving() as server:
        assert get(server, "/")[0] == 404
        assert get(server, "/healthz", "POST")[0] == 501
        status, _, body = get(server, "/healthz", "HEAD")
    assert (status, body) == (200, b"")


def test_connections_are_bounded_and_places_become_free(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that connects and says nothing takes a place until its time is over."""
    monkeypatch.setattr(health_module._Handler, "timeout", 0.2)
    with serving(connections_max=2) as server:
        silent = [socket.create_connection(server.address, timeout=10) for _ in range(2)]
        refused = 0
        while True:
            try:
                status = get(server, "/healthz")[0]
            except (ConnectionError, http.client.HTTPException):
                refused += 1
                continue
            assert status == 200
            break
        assert refused > 0
        for each in silent:
            assert each.recv(100) == b""
            each.close()


def test_a_port_that_is_taken_is_an_error() -> None:
    with serving() as server, pytest.raises(OSError, match="in use"):
        HealthServer(*server.address, health=lambda: (), exposition=lambda: b"", connections_max=1)


def test_closing_ends_the_thread() -> None:
    before = threading.active_count()
    with serving() as server:
        assert server.address[1] > 0
    assert threading.active_count() <= before


def samples(metrics: BrokerMetrics) -> dict[tuple[str, ...], float]:
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(metrics.exposition().decode())
        for sample in family.samples
    }


def test_requests_are_counted_and_timed_by_api() -> None:
    metrics = BrokerMetrics()
    produce = metrics.api("Produce")
    for seconds in (0.0001, 0.002, 0.002, 99.0):
        produce.observe(seconds)
    produce.errors.of("CORRUPT_MESSAGE").value += 2
    metrics.api("Fetch").observe(0.001)
    metrics.received_bytes += 7
    seen = samples(metrics)
    assert seen[f"{REQUESTS}_total", "Produce"] == 4
    assert seen[f"{REQUESTS}_total", "Fetch"] == 1
    assert seen[f"{REQUEST_SECONDS}_bucket", "Produce", "0.001"] == 1
    assert seen[f"{REQUEST_SECONDS}_bucket", "Produce", "0.0025"] == 3
    assert seen[f"{REQUEST_SECONDS}_bucket", "Produce", "+Inf"] == 4
    assert seen["tidelog_request_errors_total", "Produce", "CORRUPT_MESSAGE"] == 2
    assert seen["tidelog_received_bytes_total",] == 7


def test_a_duration_on_a_bound_belongs_to_it() -> None:
    durations = Durations()
    durations.observe(0.001)
    assert dict(durations.buckets())["0.001"] == 1
    assert dict(durations.buckets())["0.0005"] == 0


def test_brokers_of_one_process_do_not_share_metrics() -> None:
    first, second = BrokerMetrics(), BrokerMetrics()
    first.gauge("tidelog_answer", "What it is.", lambda: 42)
    first.api("Fetch").observe(1)
    assert samples(first)["tidelog_answer",] == 42
    assert ("tidelog_answer",) not in samples(second)
    assert (f"{REQUESTS}_total", "Fetch") not in samples(second)
    with pytest.raises(ValueError, match="tidelog_answer"):
        first.gauge("tidelog_answer", "Again.", lambda: 43)
