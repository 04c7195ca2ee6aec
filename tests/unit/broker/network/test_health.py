"""The HTTP side: health, metrics, limits; and the metrics themselves."""

from __future__ import annotations

import http.client
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager, suppress
from itertools import islice

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tidelog.broker.network.health import HealthServer
from tidelog.broker.network.http_access import HttpAccess
from tidelog.broker.telemetry.metrics import (
    REQUEST_SECONDS,
    REQUESTS,
    SECONDS_BOUNDS,
    BrokerMetrics,
)
from tidelog.clock import SystemClock
from tidelog.counts import Durations

Answer = tuple[int, str, bytes]
OPEN = HttpAccess()


@contextmanager
def serving(
    problems: Sequence[str] = (),
    *,
    obstacles: Sequence[str] = (),
    exposition: Callable[[], bytes] | None = None,
    connections_max: int = 8,
    timeout_seconds: float = 10.0,
    access: HttpAccess = OPEN,
) -> Iterator[HealthServer]:
    server = HealthServer(
        "127.0.0.1",
        0,
        access=access,
        health=lambda: problems,
        readiness=lambda: obstacles,
        exposition=exposition or BrokerMetrics().exposition,
        connections_max=connections_max,
        timeout_seconds=timeout_seconds,
        clock=SystemClock(),
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


def test_a_healthy_broker_reports_that_it_is_healthy() -> None:
    with serving() as server:
        status, content_type, body = get(server, "/healthz")
    assert (status, content_type) == (200, "application/json")
    assert json.loads(body) == {"healthy": True, "problems": []}


def test_problems_are_named() -> None:
    with serving(["the lease is stale", "t-0 is corrupt"]) as server:
        status, _, body = get(server, "/healthz?verbose")
    assert status == 503
    assert json.loads(body) == {
        "healthy": False,
        "problems": ["the lease is stale", "t-0 is corrupt"],
    }


def test_a_broker_with_problems_is_ready_unless_they_keep_it_from_serving() -> None:
    with serving(["t-0 is corrupt"]) as server:
        status, content_type, body = get(server, "/readyz")
    assert (status, content_type) == (200, "application/json")
    assert json.loads(body) == {"ready": True, "problems": []}
    stale = ["the lease is stale"]
    with serving([*stale, "t-0 is corrupt"], obstacles=stale) as server:
        status, _, body = get(server, "/readyz")
    assert status == 503
    assert json.loads(body) == {"ready": False, "problems": stale}


def test_prometheus_can_parse_the_metrics() -> None:
    with serving() as server:
        status, content_type, body = get(server, "/metrics")
    assert status == 200
    assert content_type.startswith("text/plain")
    assert REQUESTS in {family.name for family in text_string_to_metric_families(body.decode())}


def test_the_health_server_refuses_other_paths_and_methods() -> None:
    with serving() as server:
        status, _, body = get(server, "/")
        assert status == 404
        assert json.loads(body) == {"error": "only /healthz, /readyz, /metrics"}
        assert get(server, "/healthz", "POST")[0] == 501
        status, _, body = get(server, "/healthz", "HEAD")
    assert (status, body) == (200, b"")


HALF = b"GET /healthz HTTP/1.1\r\nX-Header: "


@contextmanager
def half_asking(server: HealthServer, count: int) -> Iterator[list[socket.socket]]:
    """Connections that have sent half of a request."""
    asking = [socket.create_connection(server.address, timeout=10) for _ in range(count)]
    try:
        for each in asking:
            each.sendall(HALF)
        yield asking
    finally:
        for each in asking:
            each.close()


def test_a_probe_is_answered_however_many_hold_half_a_request_open() -> None:
    with serving(connections_max=4) as server, half_asking(server, 40):
        for _ in range(10):
            assert get(server, "/healthz")[0] == 200


def test_the_oldest_half_of_a_request_gives_way() -> None:
    with serving(connections_max=4) as server, half_asking(server, 6) as asking:
        for each in asking[:2]:
            assert closed(each)
        for each in asking[2:]:
            each.sendall(b"x\r\n\r\n")
            assert each.recv(1000).startswith(b"HTTP/1.0 200")


def closed(sock: socket.socket) -> bool:
    try:
        return sock.recv(100) == b""
    except ConnectionError:
        return True


def test_a_request_must_be_complete_in_time_however_it_drips() -> None:
    with serving(timeout_seconds=0.3) as server, half_asking(server, 1) as (dripping,):
        dripping.settimeout(0.01)
        deadline = time.monotonic() + 30
        ended = False
        while not ended and time.monotonic() < deadline:
            try:
                dripping.sendall(b"x")
                ended = dripping.recv(100) == b""
            except TimeoutError:
                continue
            except ConnectionError:
                ended = True
        assert ended


def test_garbage_and_overlong_requests_do_no_harm() -> None:
    with serving() as server:
        for garbage in (b"\x00\x01\r\n\r\n", b"GET /\r\n\r\n", b"GET /" + b"x" * 100_000):
            with socket.create_connection(server.address, timeout=10) as each:
                with suppress(ConnectionError):
                    each.sendall(garbage)
                with suppress(ConnectionError):
                    while each.recv(1000):
                        pass
        assert get(server, "/healthz")[0] == 200


def test_waiting_scrapes_share_metrics_that_are_not_older_than_their_requests() -> None:
    made = 0
    going_on, release = threading.Event(), threading.Event()

    def make() -> bytes:
        nonlocal made
        made += 1
        going_on.set()
        release.wait(10)
        return b"%d" % made

    with serving(connections_max=20, exposition=make) as server:
        with ThreadPoolExecutor(6) as pool:
            first = pool.submit(get, server, "/metrics")
            assert going_on.wait(10)
            later = [pool.submit(get, server, "/metrics") for _ in range(3)]
            # Metrics of the health, beside others.
            assert get(server, "/healthz")[0] == 200
            release.set()
            assert first.result()[2] == b"1"
            assert {each.result()[2] for each in later} <= {b"2", b"3", b"4"}
        before = made
        assert get(server, "/metrics")[2] == b"%d" % (before + 1)


def test_asking_for_the_metrics_takes_no_more_than_half_of_the_places() -> None:
    release = threading.Event()

    def make() -> bytes:
        release.wait(10)
        return b""

    with serving(connections_max=4, exposition=make) as server, ThreadPoolExecutor(4) as pool:
        waiting = [pool.submit(get, server, "/metrics") for _ in range(4)]
        # Two are refused before the others are answered.
        refused = [each.result()[0] for each in islice(as_completed(waiting), 2)]
        assert refused == [503, 503]
        assert get(server, "/healthz")[0] == 200
        release.set()
        assert sorted(each.result()[0] for each in waiting) == [200, 200, 503, 503]


def test_a_port_that_is_taken_is_an_error() -> None:
    with serving() as server, pytest.raises(OSError, match="in use"):
        HealthServer(
            *server.address,
            access=OPEN,
            health=lambda: (),
            readiness=lambda: (),
            exposition=lambda: b"",
            connections_max=2,
            timeout_seconds=1.0,
            clock=SystemClock(),
        )


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


def test_a_duration_on_a_bound_counts_in_the_bucket_of_that_bound() -> None:
    durations = Durations(SECONDS_BOUNDS)
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
