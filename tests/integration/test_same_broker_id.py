"""Two processes on one bucket, with the same broker id or two ids. Only one can acknowledge (rule
B1)."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, Message, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tidelog.localstack.broker_process import BrokerNotReady, BrokerProcess

SHORT_SESSION = {"broker.session.timeout.ms": 3000, "broker.heartbeat.interval.ms": 500}
TOPIC = "one"


def acknowledged_offset(bootstrap: str, value: bytes, seconds: float = 30) -> int | None:
    """Produce one record, without a retry. None if it was not acknowledged."""
    outcome: list[int | None] = []

    def remember(error: KafkaError | None, message: Message) -> None:
        outcome.append(None if error else message.offset())

    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "message.timeout.ms": int(seconds * 1000),
            "enable.idempotence": True,
            "log_level": 0,
        }
    )
    producer.produce(TOPIC, value, partition=0, on_delivery=remember)
    producer.flush(seconds + 5)
    return outcome[0] if outcome else None


def create_topic(bootstrap: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    admin.create_topics([NewTopic(TOPIC, 1)])[TOPIC].result(30)


def test_a_second_process_is_refused_while_the_first_lives(tmp_path: Path) -> None:
    store = f"file://{tmp_path / 'bucket'}"
    with BrokerProcess.start(store, tmp_path / "first.log", settings=SHORT_SESSION) as first:
        create_topic(first.kafka)
        with pytest.raises(BrokerNotReady) as refused:
            BrokerProcess.start(store, tmp_path / "second.log", settings=SHORT_SESSION)
        assert refused.value.returncode == 1
        assert f"in use by process {first.process.pid} on host" in refused.value.log
        assert first.kafka in refused.value.log
        assert acknowledged_offset(first.kafka, b"a") == 0


def test_after_kill_9_a_restart_on_this_machine_does_not_wait(tmp_path: Path) -> None:
    store = f"file://{tmp_path / 'bucket'}"
    first = BrokerProcess.start(store, tmp_path / "first.log")
    first.kill()
    with BrokerProcess.start(store, tmp_path / "second.log") as second:
        log = (tmp_path / "second.log").read_text()
        assert "waiting until its lease" not in log
        assert second.process.poll() is None


def test_a_second_broker_id_serves_beside_the_first(tmp_path: Path) -> None:
    store = f"file://{tmp_path / 'bucket'}"
    with BrokerProcess.start(store, tmp_path / "first.log", settings=SHORT_SESSION) as first:
        create_topic(first.kafka)
        log = tmp_path / "second.log"
        with BrokerProcess.start(store, log, settings=SHORT_SESSION, broker_id=1) as second:
            assert acknowledged_offset(second.kafka, b"a") == 0
            assert acknowledged_offset(first.kafka, b"b") == 1


def test_after_kill_9_another_broker_id_takes_over_at_once(tmp_path: Path) -> None:
    store = f"file://{tmp_path / 'bucket'}"
    first = BrokerProcess.start(store, tmp_path / "first.log")
    create_topic(first.kafka)
    assert acknowledged_offset(first.kafka, b"a") == 0
    first.kill()
    with BrokerProcess.start(store, tmp_path / "second.log", broker_id=1) as second:
        assert "waiting until its lease" not in (tmp_path / "second.log").read_text()
        assert acknowledged_offset(second.kafka, b"b") == 1


@pytest.mark.integration
def test_a_stalled_process_that_wakes_up_can_acknowledge_nothing_more(tmp_path: Path) -> None:
    store = f"file://{tmp_path / 'bucket'}"
    with BrokerProcess.start(store, tmp_path / "first.log", settings=SHORT_SESSION) as first:
        create_topic(first.kafka)
        assert acknowledged_offset(first.kafka, b"a") == 0
        first.pause()
        with BrokerProcess.start(store, tmp_path / "second.log", settings=SHORT_SESSION) as second:
            assert acknowledged_offset(second.kafka, b"b") == 1
            first.resume()
            offsets = [0, 1]
            deadline = time.monotonic() + 60
            while first.process.poll() is None and time.monotonic() < deadline:
                # The sleeper's clients find their way to its successor, or get no answer.
                offset = acknowledged_offset(first.kafka, b"zombie", seconds=1)
                if offset is not None:
                    offsets.append(offset)
            assert first.process.poll() == 1
            log = (tmp_path / "first.log").read_text()
            assert "superseded" in log or "fenced" in log
            last = acknowledged_offset(second.kafka, b"c")
            assert last is not None
            # Each acknowledged record has an offset to itself in one log.
            assert len({*offsets, last}) == len(offsets) + 1
