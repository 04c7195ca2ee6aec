"""The WAL's settings from a broker's settings, by its store."""

from __future__ import annotations

import pytest

from tidelog.broker.settings.layers import BILLED_PUTS_A_SECOND, wal_settings
from tidelog.broker.settings.settings import BrokerSettings
from tidelog.storage.stores.s3.s3_address import parse_s3_url

OWN_S3 = "s3://bucket/prefix?endpoint=http://10.0.0.7:9000&region=us-east-1"
BILLED_S3 = "s3://bucket?endpoint=https://s3.example.com&region=eu-1"
AWS_S3 = "s3://bucket/prefix?region=eu-central-1"


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("file:///var/tidelog", 0),
        ("memory://here", 0),
        (OWN_S3, 0),
        (BILLED_S3, BILLED_PUTS_A_SECOND),
        (AWS_S3, BILLED_PUTS_A_SECOND),
    ],
)
def test_the_default_budget_of_puts_depends_on_the_store(
    url: str, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    monkeypatch.delenv("AWS_ENDPOINT_URL_S3", raising=False)
    if url.startswith("s3:"):
        url = parse_s3_url(url).url
    assert wal_settings(BrokerSettings.of(), url).puts_a_second_max == expected


@pytest.mark.parametrize("url", ["file:///var/tidelog", AWS_S3])
@pytest.mark.parametrize("puts_a_second", [0, 4])
def test_an_operators_limit_of_puts_counts_on_every_store(url: str, puts_a_second: int) -> None:
    settings = BrokerSettings.of(wal_puts_per_second_max=puts_a_second)
    assert wal_settings(settings, url).puts_a_second_max == puts_a_second


def test_an_endpoint_of_the_environment_counts_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:9000")
    url = parse_s3_url("s3://bucket").url
    assert wal_settings(BrokerSettings.of(), url).puts_a_second_max == 0
