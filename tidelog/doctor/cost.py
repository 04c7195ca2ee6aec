"""The monthly cost of a broker's requests to its store, from its metrics."""

from __future__ import annotations

import http.client
import urllib.request
from collections import Counter
from collections.abc import Sequence
from typing import Final

from tidelog.doctor.findings import Finding, failed, ok
from tidelog.doctor.prices import REQUEST_DOLLARS, dollars_a_month
from tidelog.extras import imported

ANSWER_SECONDS_MAX: Final = 10
EXPOSITION_BYTES_MAX: Final = 64 * 1024 * 1024
OPERATIONS: Final = "tidelog_store_operations_total"
STARTED: Final = "process_start_time_seconds"
ASSUMED: Final = (
    "S3 Standard in us-east-1; the mean rate since each broker's start; without storage, traffic"
    " between zones and pages of listings"
)


def cost_finding(urls: Sequence[str], now_ms: int, token: str | None) -> Finding:
    """The check of the cost of the brokers whose HTTP addresses are `urls`."""
    rates: Counter[str] = Counter()
    for url in urls:
        try:
            rates.update(_rates(_exposition(url, token), now_ms / 1000))
        except (OSError, http.client.HTTPException, ValueError) as error:
            return failed(
                "cost",
                f"{url}/metrics: {error}",
                "give the address that `tidelog server` names as http= in its ready line, and the"
                " token in TIDELOG_HTTP_BEARER_TOKEN if a proxy asks for one",
            )
    parts = [
        f"{name} {rates[name]:.3g}/s ${dollars_a_month(rates[name], name):.2f}"
        for name in REQUEST_DOLLARS
    ]
    total = sum(dollars_a_month(rates[name], name) for name in REQUEST_DOLLARS)
    return ok("cost", f"${total:.2f} a month: {', '.join(parts)} ({ASSUMED})")


def _exposition(url: str, token: str | None) -> str:
    if not url.startswith(("http://", "https://")):
        raise ValueError("the address is http://HOST:PORT or https://HOST:PORT")
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    request = urllib.request.Request(f"{url}/metrics", headers=headers)  # noqa: S310 - HTTP alone
    with urllib.request.urlopen(request, timeout=ANSWER_SECONDS_MAX) as answer:  # noqa: S310
        return str(answer.read(EXPOSITION_BYTES_MAX).decode())


def _rates(exposition: str, now: float) -> dict[str, float]:
    """Requests a second, by operation. ValueError: these are not a broker's metrics."""
    parser = imported("prometheus_client.parser", "the cost")
    requests: dict[str, float] = {}
    started = None
    for family in parser.text_string_to_metric_families(exposition):
        for sample in family.samples:
            if sample.name == OPERATIONS:
                requests[sample.labels["operation"]] = sample.value
            elif sample.name == STARTED:
                started = sample.value
    if not requests or started is None:
        raise ValueError(f"there is no {OPERATIONS} or no {STARTED}")
    seconds = max(now - started, 1.0)
    return {name: count / seconds for name, count in requests.items()}
