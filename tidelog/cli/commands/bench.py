"""`tidelog bench`: how fast a topic is written and read, in the words of Kafka's own tools."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

import click
import confluent_kafka
import numpy as np

from tidelog.cli.address import Bootstrap, shown
from tidelog.cli.assignments import assignments_of
from tidelog.cli.broker_client import bootstrap_option
from tidelog.clock import SystemClock
from tidelog.errors import Refused
from tidelog.sdk.connecting import STEP_SECONDS, made
from tidelog.sdk.consumer import Consumer
from tidelog.sdk.errors import translated
from tidelog.sdk.settings import producer_configuration

CLOCK: Final = SystemClock()
REPORT_SECONDS: Final = 5.0
POLL_EVERY: Final = 64
MB: Final = 1024 * 1024
"""As Kafka's tools count it."""
CONSUMER_HEADER: Final = (
    "start.time, end.time, data.consumed.in.MB, MB.sec, data.consumed.in.nMsg, nMsg.sec,"
    " rebalance.time.ms, fetch.time.ms, fetch.MB.sec, fetch.nMsg.sec"
)


@click.group()
def bench() -> None:
    """Measure how fast a topic is written and read, as Kafka's performance tools do."""


@bench.command()
@click.argument("topic")
@click.option("--records", type=click.IntRange(1), default=100_000, show_default=True)
@click.option("--size", type=click.IntRange(0), default=1024, show_default=True, help="In bytes.")
@click.option(
    "--throughput", type=click.FloatRange(min=0, min_open=True), default=None, help="Records/s."
)
@click.option("--set", "assignments", multiple=True, metavar="NAME=VALUE", help="A client setting.")
@bootstrap_option
def produce(
    topic: str,
    records: int,
    size: int,
    throughput: float | None,
    assignments: tuple[str, ...],
    bootstrap: Bootstrap,
) -> None:
    """Write RECORDS to TOPIC, and print what kafka-producer-perf-test prints."""
    settings = assignments_of(assignments, "--set")
    configuration = producer_configuration(shown(*bootstrap), settings)
    client = made(confluent_kafka.Producer, configuration.passed)
    latencies = Latencies(CLOCK.monotonic(), size)
    value = b"x" * size
    for number in range(records):
        if throughput is not None:
            _pace(client, latencies.started + number / throughput)
        _send(client, topic, value, latencies.sent())
        if number % POLL_EVERY == 0:
            client.poll(0)
            latencies.report_window()
    while len(client):
        client.poll(STEP_SECONDS)
        latencies.report_window()
    print(latencies.summary())
    if latencies.failure is not None:
        raise translated(latencies.failure, f"{latencies.failed} records to {topic}")


@bench.command()
@click.argument("topic")
@click.option("--records", type=click.IntRange(1), default=100_000, show_default=True)
@click.option("--timeout", type=click.FloatRange(0), default=10.0, show_default=True, help="In s.")
@bootstrap_option
def consume(topic: str, records: int, timeout: float, bootstrap: Bootstrap) -> None:
    """Read RECORDS of TOPIC, and print what kafka-consumer-perf-test prints.

    Fails if no record comes for TIMEOUT seconds.
    """
    started, count, size = CLOCK.time_ms(), 0, 0
    settings: dict[str, Any] = {"auto.offset.reset": "earliest", "allow.auto.create.topics": False}
    with Consumer(shown(*bootstrap), topic, **settings) as consumer:
        ready = CLOCK.time_ms()
        while count < records:
            found = consumer.batch(records - count, timeout)
            if not found:
                raise Refused(
                    f"no record of {topic} for {timeout:g} s after {count} of {records}: write more"
                    f" with `tidelog bench produce {topic}`, or ask for fewer with --records"
                )
            count += len(found)
            size += sum(len(each.value or b"") + len(each.key or b"") for each in found)
    print(CONSUMER_HEADER)
    print(consumer_line(started, ready, CLOCK.time_ms(), count, size))


def consumer_line(started: int, ready: int, ended: int, count: int, size: int) -> str:
    """The figures under CONSUMER_HEADER; times are in ms since 1970."""
    whole = max(ended - started, 1) / 1000
    fetching = max(ended - ready, 1) / 1000
    fields = [
        _time(started),
        _time(ended),
        f"{size / MB:.4f}",
        f"{size / MB / whole:.4f}",
        str(count),
        f"{count / whole:.4f}",
        str(ready - started),
        str(ended - ready),
        f"{size / MB / fetching:.4f}",
        f"{count / fetching:.4f}",
    ]
    return ", ".join(fields)


@dataclass(slots=True)
class Latencies:
    """What became of the records sent, and when."""

    started: float
    size: int
    times_ms: list[float] = field(default_factory=list)
    failed: int = 0
    failure: confluent_kafka.KafkaError | None = None
    _window: int = 0
    _window_started: float = math.nan

    def sent(self) -> Callable[[confluent_kafka.KafkaError | None, object], None]:
        """The callback of a record that is sent now."""
        at = CLOCK.monotonic()

        def report(error: confluent_kafka.KafkaError | None, _: object) -> None:
            if error is None:
                self.times_ms.append((CLOCK.monotonic() - at) * 1000)
            else:
                self.failed += 1
                self.failure = error

        return report

    def report_window(self) -> None:
        """Print a line for each REPORT_SECONDS."""
        now = CLOCK.monotonic()
        if math.isnan(self._window_started):
            self._window_started = now
        if now - self._window_started < REPORT_SECONDS or len(self.times_ms) == self._window:
            return
        print(self._line(self.times_ms[self._window :], now - self._window_started))
        self._window, self._window_started = len(self.times_ms), now

    def summary(self) -> str:
        """The line of all records, with percentiles."""
        line = self._line(self.times_ms, CLOCK.monotonic() - self.started)
        if not self.times_ms:
            return line
        places = {50: "50th", 95: "95th", 99: "99th", 99.9: "99.9th"}
        found = np.percentile(self.times_ms, list(places), method="lower")
        shares = [f"{at:.0f} ms {name}" for at, name in zip(found, places.values(), strict=True)]
        return f"{line.removesuffix('.')}, {', '.join(shares)}."

    def _line(self, times_ms: list[float], seconds: float) -> str:
        rate = len(times_ms) / max(seconds, 1e-9)
        average = sum(times_ms) / len(times_ms) if times_ms else 0.0
        return (
            f"{len(times_ms)} records sent, {rate:.1f} records/sec"
            f" ({rate * self.size / MB:.2f} MB/sec), {average:.1f} ms avg latency,"
            f" {max(times_ms, default=0.0):.1f} ms max latency."
        )


def _pace(client: confluent_kafka.Producer, due: float) -> None:
    while (left := due - CLOCK.monotonic()) > 0:
        client.poll(left)


def _send(
    client: confluent_kafka.Producer,
    topic: str,
    value: bytes,
    report: Callable[[confluent_kafka.KafkaError | None, object], None],
) -> None:
    while True:
        try:
            client.produce(topic, value, on_delivery=report)
            return
        except BufferError:
            client.poll(STEP_SECONDS)
        except confluent_kafka.KafkaException as error:
            raise translated(error, f"record to {topic}") from error


def _time(milliseconds: int) -> str:
    at = datetime.fromtimestamp(milliseconds / 1000, UTC)
    return f"{at:%Y-%m-%d %H:%M:%S}:{milliseconds % 1000:03d}"
