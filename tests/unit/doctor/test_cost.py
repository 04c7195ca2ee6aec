"""The cost a month, from the metrics of brokers that answer over HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.unit.storage.scripted_server import Act, ScriptedServer, answer
from tidelog.doctor.cost import cost_finding
from tidelog.doctor.findings import Grade
from tidelog.doctor.prices import dollars_a_month

NOW_MS = 1_000_000_000
METRICS = """\
# TYPE tidelog_store_operations_total counter
tidelog_store_operations_total{operation="put"} 1000
tidelog_store_operations_total{operation="get"} 5000
tidelog_store_operations_total{operation="delete"} 7
# TYPE process_start_time_seconds gauge
process_start_time_seconds 999000
"""


@contextmanager
def broker(*answers: Act) -> Iterator[ScriptedServer]:
    with ScriptedServer(list(answers)) as server:
        yield server


def test_the_price_of_a_put_a_second() -> None:
    assert dollars_a_month(1) == pytest.approx(12.96)
    assert dollars_a_month(1, "get") == pytest.approx(1.0368)
    assert dollars_a_month(1000, "delete") == 0


def test_the_rates_of_all_brokers_are_added() -> None:
    with broker(answer(200, METRICS.encode())) as one, broker(answer(200, METRICS.encode())) as two:
        found = cost_finding([one.endpoint, two.endpoint], NOW_MS, None)
    assert found.verdict is Grade.OK
    # 1000 seconds: each has one put and five gets a second.
    assert found.found.startswith(
        "$36.29 a month: put 2/s $25.92, list 0/s $0.00, get 10/s $10.37, head 0/s $0.00,"
        " delete 0.014/s $0.00 ("
    )
    assert "S3 Standard in us-east-1" in found.found


def test_a_token_is_sent() -> None:
    with broker(answer(200, METRICS.encode())) as server:
        cost_finding([server.endpoint], NOW_MS, "a-token")
        assert "Authorization: Bearer a-token" in server.requests[0]


@pytest.mark.parametrize(
    ("act", "words"),
    [
        (answer(401), "401"),
        (answer(200, b"<html>no metrics</html>"), "metrics"),
        (answer(200, b"other 1\n"), "there is no tidelog_store_operations_total"),
    ],
)
def test_an_address_that_has_no_metrics_fails(act: Act, words: str) -> None:
    with broker(act) as server:
        found = cost_finding([server.endpoint], NOW_MS, None)
    assert found.verdict is Grade.FAILED
    assert words in found.found
    assert "http= in its ready line" in found.remedy


def test_an_address_of_another_kind_fails() -> None:
    found = cost_finding(["file:///etc"], NOW_MS, None)
    assert found.verdict is Grade.FAILED
    assert "http://" in found.found
