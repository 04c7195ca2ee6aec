"""A client's share of a real broker's event loop, as the broker itself measures it.

The test waits for shares and compares shares of one client with each other. So the speed of the
machine and its other work do not matter.
"""

from __future__ import annotations

import re
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Producer, ThrottleEvent
from confluent_kafka.admin import AdminClient, NewTopic

from tidelog.localstack.broker_process import BrokerProcess
from tidelog.sdk.admin import Admin

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

CLIENT, TOPIC = "busy", "flood"
SPAN_SECONDS = 5.0
"""Long compared with a window, whose quota a client may use at once."""
SPANS_MAX = 20
SETTINGS = {"quota.window.num": 2}
UNLIMITED = 1_000_000.0
BUSY = "tidelog_request_share_seconds_total"
THROTTLED = 'tidelog_throttled_requests_total{quota="request_percentage"}'


class Flood:
    """A producer that sends as many small requests as its quota permits."""

    def __init__(self, broker: BrokerProcess) -> None:
        self._broker = broker
        self.told: list[float] = []
        """The throttle times in answers, in seconds."""
        self._producer = Producer(
            {
                "bootstrap.servers": broker.kafka,
                "client.id": CLIENT,
                "acks": 1,
                "linger.ms": 0,
                "batch.num.messages": 1,
                "queue.buffering.max.messages": 20,
                "throttle_cb": self._throttled,
            }
        )

    def _throttled(self, event: ThrottleEvent) -> None:
        self.told.append(event.throttle_time)

    def share(self) -> float:
        """The percent of a span of time for which the broker was busy with these requests."""
        begun, before = time.monotonic(), measured(self._broker, BUSY)
        while time.monotonic() < begun + SPAN_SECONDS:
            try:
                self._producer.produce(TOPIC, b"x")
                self._producer.poll(0)
            except BufferError:
                self._producer.poll(0.1)
        busy = measured(self._broker, BUSY) - before
        return 100 * busy / (time.monotonic() - begun)

    def until(self, condition: Callable[[float], bool]) -> None:
        """Send until the share in one span fulfils the condition."""
        shares: list[float] = []
        while not shares or not condition(shares[-1]):
            assert len(shares) < SPANS_MAX, shares
            shares.append(self.share())

    def close(self) -> None:
        self._producer.purge()
        self._producer.flush(30)


def measured(broker: BrokerProcess, metric: str) -> float:
    """A metric of the broker, or 0 if it has no series yet."""
    with urllib.request.urlopen(f"http://{broker.http}/metrics", timeout=60) as answer:
        text = answer.read().decode()
    found = re.search(rf"^{re.escape(metric)} (\S+)$", text, re.MULTILINE)
    return 0.0 if found is None else float(found[1])


def test_a_client_gets_its_share_of_the_broker_and_is_told_to_wait(tmp_path: Path) -> None:
    with BrokerProcess.start(
        "memory://share", tmp_path / "log", http="127.0.0.1:0", settings=SETTINGS
    ) as broker:
        plain = AdminClient({"bootstrap.servers": broker.kafka})
        plain.create_topics([NewTopic(TOPIC, 1)])[TOPIC].result(60)
        admin, flood = Admin(broker.kafka), Flood(broker)
        admin.set_quotas({"request_percentage": UNLIMITED}, client_id=CLIENT)
        flood.share()
        free = flood.share()
        assert (flood.told, measured(broker, THROTTLED)) == ([], 0)

        quota = free / 4
        admin.set_quotas({"request_percentage": quota}, client_id=CLIENT)
        flood.until(lambda share: quota / 2 <= share <= 1.25 * quota)
        assert flood.told
        # No wait is longer than one sample.
        assert 0 < max(flood.told) <= 1.0
        assert measured(broker, THROTTLED) > 0
        assert measured(broker, "tidelog_throttle_seconds_sum") > 0

        admin.set_quotas({"request_percentage": UNLIMITED}, client_id=CLIENT)
        flood.until(lambda share: share >= 2 * quota)
        flood.close()
        assert broker.stop() == 0
