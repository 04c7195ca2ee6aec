"""The test kit: a broker in the background of a test."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from confluent_kafka.admin import AdminClient

from tidelog import Consumer, Producer
from tidelog.cli.root import cli
from tidelog.errors import InvalidConfiguration, Refused
from tidelog.localstack.broker_process import BrokerProcess
from tidelog.testing import Broker, BrokerTestCase

ROOT = Path(__file__).resolve().parents[3]
FIXTURES = """
def test_fixtures(tidelog_broker, tidelog_topic):
    tidelog_broker.produce(tidelog_topic, ["a"])
    assert [message.value for message in tidelog_broker.read(tidelog_topic)] == [b"a"]
"""


def test_durable_records_outlive_a_kill() -> None:
    with Broker() as broker:
        topic, address = broker.topic(2), broker.bootstrap
        broker.produce(topic, ["a", "b"])
        broker.kill()
        assert not broker.is_running
        broker.start()
        assert broker.bootstrap == address
        assert sorted(message.value for message in broker.read(topic)) == [b"a", b"b"]
        broker.stop()
        broker.start()
        assert len(broker.read(topic)) == 2


def test_messages_have_keys_and_headers() -> None:
    with Broker() as broker:
        topic = broker.topic(3)
        broker.produce(topic, ["a", "b", None], keys=["N1", "N2", "N1"], headers={"carrier": "UA"})
        found = broker.read(topic)
        assert {message.key for message in found} == {b"N1", b"N2"}
        assert {message.headers for message in found} == {(("carrier", b"UA"),)}
        one_plane = [each for each in found if each.key == b"N1"]
        assert [each.value for each in one_plane] == [b"a", None]
        assert len({each.partition for each in one_plane}) == 1
        with pytest.raises(ValueError, match="shorter"):
            broker.produce(topic, ["c", "d"], keys=["N3"])
        assert len(broker.read(topic)) == 3


def test_a_reading_waits_little_for_messages_that_do_not_come(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waits: list[int] = []

    class Noted(Consumer):
        def __init__(self, *arguments: Any, **settings: Any) -> None:
            waits.append(settings["fetch_max_wait_ms"])
            super().__init__(*arguments, **settings)

    monkeypatch.setattr("tidelog.testing.broker.Consumer", Noted)
    with Broker() as broker:
        topic = broker.topic(2)
        with Producer(broker.bootstrap, transactional_id="one") as producer, producer.transaction():
            # The transaction's marker is behind the message. The other partition is empty.
            producer.send(topic, "a", partition=0)
        assert [message.value for message in broker.read(topic)] == [b"a"]
        assert [each.value for each in broker.read(topic, fetch_max_wait_ms=20)] == [b"a"]
    assert waits == [10, 20]


def test_inspect_shows_the_stored_state_of_a_topic_also_behind_a_kill() -> None:
    with Broker() as broker:
        topic = broker.topic(2)
        with Producer(broker.bootstrap) as producer:
            for value in ("a", "b", "c"):
                producer.send(topic, value, partition=1)
        assert [each.segments for each in broker.inspect(topic)] == [(), ()]
        flushed = ["topics", "flush", topic, "--bootstrap", broker.bootstrap]
        assert CliRunner().invoke(cli, flushed).exit_code == 0
        with Producer(broker.bootstrap, transactional_id="t") as producer:
            with producer.transaction():
                producer.send(topic, "d", partition=1)
            with producer.transaction():
                producer.send(topic, "open", partition=1)
                producer.flush()
                broker.kill()
                empty, full = broker.inspect(topic)
                broker.start()
    assert (empty.partition, empty.high_watermark, empty.open_transactions) == (0, 0, {})
    assert (full.partition, full.log_start, full.table_end) == (1, 0, 3)
    # "d" and its marker are behind the segment, and an open transaction follows.
    assert (full.last_stable_offset, full.high_watermark) == (5, 6)
    assert list(full.open_transactions.values()) == [5]
    (segment,) = full.segments
    assert (segment.base_offset, segment.last_offset, segment.rows) == (0, 2, 3)
    assert segment.path.startswith("partition=1/")


def test_brokers_in_memory_share_nothing_and_a_folder_is_taken_too(tmp_path: Path) -> None:
    with Broker() as one, Broker(f"file://{tmp_path}") as two:
        assert one.store != two.store
        topic = two.topic()
        two.produce(topic, ["a"])
        two.restart()
        assert len(two.read(topic)) == 1
    assert any(tmp_path.iterdir())


def test_a_broker_of_another_process_does_not_replace_one_of_a_test(tmp_path: Path) -> None:
    store = f"file://{tmp_path / 'bucket'}"
    with Broker(store) as broker:
        topic = broker.topic()
        with BrokerProcess.start(store, tmp_path / "log", broker_id=1) as other:
            known = AdminClient({"bootstrap.servers": other.kafka}).list_topics(timeout=30)
            assert len(known.brokers) == 2
            broker.produce(topic, ["a"])
            assert len(broker.read(topic)) == 1


def test_a_broker_that_has_ended_by_itself_can_be_started_again() -> None:
    with Broker() as broker:
        topic = broker.topic()
        broker.produce(topic, ["a"])
        for again in (broker.start, broker.restart):
            end_by_itself(broker)
            assert not broker.is_running
            again()
            assert len(broker.read(topic)) == 1
        end_by_itself(broker)
    assert not broker.is_running


def end_by_itself(broker: Broker) -> None:
    """End the broker as an error of its own does."""
    thread = broker._thread
    assert thread is not None
    assert thread._loop is not None
    thread._loop.call_soon_threadsafe(thread._cut_off)
    thread._thread.join()


def test_wrong_calls_and_stores_are_told() -> None:
    broker = Broker()
    with pytest.raises(Refused, match="has not started"):
        _ = broker.bootstrap
    with pytest.raises(Refused, match="does not run"):
        broker.kill()
    with broker, pytest.raises(Refused, match="runs already"):
        broker.start()
    with pytest.raises(InvalidConfiguration, match="not a URL"):
        Broker("somewhere").start()


class TestUnittest(BrokerTestCase):
    """The form of unittest, which pytest runs too."""

    def test_the_broker_is_there(self) -> None:
        topic = self.broker.topic()
        self.broker.produce(topic, ["a"])
        assert len(self.broker.read(topic)) == 1


def test_pytest_has_fixtures(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(FIXTURES)
    command = [sys.executable, "-m", "pytest", "-q", "test_it.py"]
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT), "PATH": ""},
        capture_output=True,
        text=True,
    )
    assert "1 passed" in done.stdout, done.stdout + done.stderr


def test_the_package_is_light_and_shows_its_public_names() -> None:
    program = (
        "import sys, tidelog, tidelog.testing.plugin; print(sorted(set(sys.modules) &"
        " {'confluent_kafka', 'pyarrow', 'numpy', 'asyncio'})); print(dir(tidelog))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, check=True, capture_output=True, text=True
    )
    loaded, names = done.stdout.splitlines()
    assert loaded == "[]"
    assert "Producer" in names
    assert "_MODULES" not in names


@pytest.mark.parametrize("package", ["tidelog.aio", "tidelog.testing"])
def test_a_package_shows_its_public_names_and_nothing_else(package: str) -> None:
    module = import_module(package)
    # Imported, its modules are attributes of the package.
    for name in module.__all__:
        assert getattr(module, name).__name__ == name
    assert dir(module) == sorted(module.__all__)
