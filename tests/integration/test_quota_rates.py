"""confluent-kafka's clients against a real broker: their rates are their quotas, within 5 %."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import (
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, NewTopic

from tidelog.localstack.broker_process import BrokerProcess
from tidelog.sdk.admin import Admin

pytestmark = pytest.mark.integration

WARM_UP_SECONDS = 4.0
MEASURED_SECONDS = 45.0
"""Long compared with a window of one second, whose quota a client may use at once."""
DEVIATION_MAX = 0.05
SETTINGS = {"quota.window.num": 2, "controller.quota.window.num": 2}
PRODUCED_BYTES_SECOND = 400_000
FETCHED_BYTES_SECOND = 300_000
PARTITIONS_SECOND = 6
VALUE = b"x" * 10_000


class _Meter:
    """The uses that fall into the measured time."""

    def __init__(self) -> None:
        self.begins = time.monotonic() + WARM_UP_SECONDS
        self.ends = self.begins + MEASURED_SECONDS
        self.used = 0

    def add(self, use: int) -> None:
        if self.begins <= time.monotonic() < self.ends:
            self.used += use

    @property
    def is_over(self) -> bool:
        return time.monotonic() >= self.ends

    @property
    def rate(self) -> float:
        return self.used / MEASURED_SECONDS


def produce(bootstrap: str, meter: _Meter) -> None:
    def delivered(error: KafkaError | None, message: Message) -> None:
        if error is None:
            meter.add(len(message.value()))
        else:  # the requests that are in the queue when the measurement ends
            assert error.code() in (KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT), error

    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "client.id": "producer",
            "batch.num.messages": 1,
            "linger.ms": 0,
            "max.in.flight.requests.per.connection": 1,
            "queue.buffering.max.messages": 20,
        }
    )
    while not meter.is_over:
        try:
            producer.produce("produced", VALUE, on_delivery=delivered)
            producer.poll(0)
        except BufferError:
            producer.poll(0.1)
    producer.purge()
    producer.poll(0)


def fetch(bootstrap: str, meter: _Meter) -> None:
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "client.id": "consumer",
            "group.id": "unused",
            "enable.auto.commit": False,
            "message.max.bytes": 2 * len(VALUE),
            "fetch.max.bytes": 2 * len(VALUE),
            "fetch.message.max.bytes": 2 * len(VALUE),
            "queued.max.messages.kbytes": 40,
            # With librdkafka's second the client would rest while it may fetch.
            "fetch.queue.backoff.ms": 10,
        }
    )
    consumer.assign([TopicPartition("fetched", 0, 0)])
    while not meter.is_over:
        for message in consumer.consume(10, 0.2):
            assert message.error() is None
            meter.add(len(message.value()))
    consumer.close()


def create(bootstrap: str, meter: _Meter) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap, "client.id": "creator"})
    number = 0
    while not meter.is_over:
        name = f"created-{number}"
        try:
            admin.create_topics([NewTopic(name, 1)])[name].result(30)
        except KafkaException as error:
            if error.args[0].name() != "THROTTLING_QUOTA_EXCEEDED":
                raise
            time.sleep(0.02)
            continue
        meter.add(1)
        number += 1


def fill(bootstrap: str) -> None:
    """More records than a consumer may fetch while it is measured."""
    # A consumer would get a batch larger than a window in one piece.
    small = {"batch.num.messages": 1}
    producer = Producer({"bootstrap.servers": bootstrap, "client.id": "filler", **small})
    count = int(1.5 * FETCHED_BYTES_SECOND * (WARM_UP_SECONDS + MEASURED_SECONDS)) // len(VALUE)
    for _ in range(count):
        producer.produce("fetched", VALUE, partition=0)
    assert producer.flush(60) == 0


def test_produced_and_fetched_bytes_and_created_partitions_are_the_quotas(tmp_path: Path) -> None:
    with BrokerProcess.start("memory://quotas", tmp_path / "log", settings=SETTINGS) as broker:
        plain = AdminClient({"bootstrap.servers": broker.kafka})
        topics = [NewTopic("produced", 1), NewTopic("fetched", 1)]
        for future in plain.create_topics(topics).values():
            future.result(30)
        fill(broker.kafka)
        admin = Admin(broker.kafka)
        admin.set_quotas({"producer_byte_rate": PRODUCED_BYTES_SECOND}, client_id="producer")
        admin.set_quotas({"consumer_byte_rate": FETCHED_BYTES_SECOND}, client_id="consumer")
        admin.set_quotas({"controller_mutation_rate": PARTITIONS_SECOND}, client_id="creator")
        meters = [_side_by_side(each, broker.kafka) for each in (produce, fetch, create)]
        for _, thread in meters:
            thread.join(WARM_UP_SECONDS + MEASURED_SECONDS + 60)
        rates = [meter.rate for meter, _ in meters]
        quotas = [PRODUCED_BYTES_SECOND, FETCHED_BYTES_SECOND, PARTITIONS_SECOND]
        assert rates == pytest.approx(quotas, rel=DEVIATION_MAX)


def _side_by_side(
    work: Callable[[str, _Meter], None], bootstrap: str
) -> tuple[_Meter, threading.Thread]:
    meter = _Meter()
    thread = threading.Thread(target=work, args=(bootstrap, meter), daemon=True)
    thread.start()
    return meter, thread
