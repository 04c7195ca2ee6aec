"""`tidelog bench` prints the same lines as Kafka's performance tools."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator

import pytest

from tidelog.cli.commands.bench import CONSUMER_HEADER, consumer_line
from tidelog.cli.root import run
from tidelog.testing.broker import Broker

WINDOW = (
    r"{count} records sent, [\d.]+ records/sec \([\d.]+ MB/sec\), [\d.]+ ms avg latency,"
    r" [\d.]+ ms max latency"
)
SHARES = r", \d+ ms 50th, \d+ ms 95th, \d+ ms 99th, \d+ ms 99\.9th\."


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as made:
        yield made


@pytest.fixture
def bench(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    def invoke(*arguments: str) -> tuple[int, str, str]:
        words = ["tidelog", "bench", *arguments, "--bootstrap", broker.bootstrap]
        monkeypatch.setattr(sys, "argv", words)
        try:
            run()
            code = 0
        except SystemExit as exit_:
            code = int(exit_.code or 0)
        return code, *capsys.readouterr()

    return invoke


def test_a_topic_is_written_and_read(
    broker: Broker, bench: Callable[..., tuple[int, str, str]]
) -> None:
    topic = broker.topic(2)
    code, out, _ = bench("produce", topic, "--records", "500", "--size", "100")
    assert code == 0
    assert re.fullmatch(WINDOW.format(count=500) + SHARES, out.strip())
    code, out, _ = bench("consume", topic, "--records", "500")
    assert code == 0
    header, figures = out.splitlines()
    assert header == CONSUMER_HEADER
    assert len(figures.split(", ")) == len(header.split(", "))
    assert figures.split(", ")[4] == "500"


def test_a_rate_is_kept(broker: Broker, bench: Callable[..., tuple[int, str, str]]) -> None:
    code, out, _ = bench(
        "produce", broker.topic(), "--records", "20", "--throughput", "100", "--set", "linger.ms=0"
    )
    assert code == 0
    rate = float(re.findall(r"([\d.]+) records/sec", out)[0])
    # The last of 20 records is sent 190 ms after the first.
    assert rate <= 20 / 0.19


def test_failures_and_missing_records_are_told(
    broker: Broker, bench: Callable[..., tuple[int, str, str]]
) -> None:
    small = broker.topic(max_message_bytes=100)
    code, out, err = bench("produce", small, "--records", "3", "--size", "5000")
    assert code == 1
    assert out.startswith("0 records sent")
    assert "3 records" in err
    assert "MSG_SIZE_TOO_LARGE" in err
    code, _, err = bench("consume", small, "--records", "3", "--timeout", "0.1")
    assert code == 1
    assert f"tidelog bench produce {small}" in err


def test_the_consumers_figures() -> None:
    line = consumer_line(1_700_000_000_000, 1_700_000_000_500, 1_700_000_002_500, 2000, 4 << 20)
    assert line == (
        "2023-11-14 22:13:20:000, 2023-11-14 22:13:22:500, 4.0000, 1.6000, 2000, 800.0000,"
        " 500, 2000, 2.0000, 1000.0000"
    )
