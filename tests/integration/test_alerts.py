"""Alerts fire in the faults that a real broker meets, and none beside a healthy broker."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.integration.faulty_server import FAULTS_FILE
from tests.integration.lasting_state import Scrape, expect_firing, scraped
from tidelog.localstack.broker_process import BrokerProcess
from tidelog.sdk.consumer import Consumer
from tidelog.sdk.producer import Producer

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]
SECONDS_MAX = 180.0
BUSY = {
    "log.collect.interval.ms": 500,
    "wal.checkpoint.interval.slots": 2,
    "roll.wal.max.bytes": 20_000,
}
"""Settings with which a broker does all its work within seconds."""
OF_THE_STORE = "TidelogStoreErrors"
"""Fires beside others if one request in twenty fails: that depends on the broker's other work."""
PATIENT = {"delivery_timeout_ms": 600_000, "linger_ms": 0}


class FaultyBroker:
    """A broker whose store fails when it is told to, and Prometheus beside it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.faults = folder / "faults"
        self.faults.write_text("")
        self._stack = ExitStack()

    def start(self, broker_id: int = 0, **settings: object) -> BrokerProcess:
        return self._stack.enter_context(
            BrokerProcess.start(
                f"file://{self.folder}/store",
                self.folder / f"log-{broker_id}",
                http="127.0.0.1:0",
                broker_id=broker_id,
                settings=BUSY | {key.replace("_", "."): each for key, each in settings.items()},
                environment={FAULTS_FILE: str(self.faults)},
                module="tests.integration.faulty_server",
                ready_seconds_max=SECONDS_MAX,
            )
        )

    def producer(self, broker: BrokerProcess) -> Producer:
        return self._stack.enter_context(Producer(broker.kafka, **PATIENT))

    def fail(self, *faults: str) -> None:
        """From now on these requests fail or wait: lines of `faulty_server`."""
        self.faults.write_text("".join(f"{each}\n" for each in faults))

    def end(self) -> None:
        self.fail()
        self._stack.close()


@pytest.fixture
def faulty(tmp_path: Path, require_tool: Callable[[str], str]) -> Iterator[FaultyBroker]:
    require_tool("promtool")
    one = FaultyBroker(tmp_path)
    yield one
    one.end()


def scrape(broker: BrokerProcess) -> Scrape:
    return scraped(broker.http, time.time())


def until(broker: BrokerProcess, is_shown: Callable[[Scrape], bool], why: str) -> Scrape:
    """The first scrape that shows what is awaited."""
    deadline = time.monotonic() + SECONDS_MAX
    while not is_shown(found := scrape(broker)):
        assert time.monotonic() < deadline, f"the broker never shows {why}"
    return found


def risen(before: Scrape, name: str, by: float) -> Callable[[Scrape], bool]:
    return lambda found: found.total(name) >= before.total(name) + by


def failed(before: Scrape, by: float) -> Callable[[Scrape], bool]:
    """Whether so many more requests to the store have met a made fault."""
    return lambda found: made_faults(found) >= made_faults(before) + by


def made_faults(found: Scrape) -> float:
    return sum(
        value
        for (name, labels), value in found.series.items()
        if name == "tidelog_store_errors_total" and 'outcome="not_applied"' in labels
    )


def advanced(before: Scrape, *names: str) -> Callable[[Scrape], bool]:
    return lambda found: all(found.total(name) > before.total(name) for name in names)


def settled(producer: Producer, broker: BrokerProcess) -> Scrape:
    """A scrape after a broker has done each kind of its work."""
    for number in range(40):
        producer.send("topic", b"x" * 1000, key=b"%d" % number)
        producer.flush()
    return until(
        broker,
        lambda found: all(
            found.total(f"tidelog_{each}_last_success_timestamp_seconds")
            for each in ("lease", "metadata_read", "collection", "wal_checkpoint")
        ),
        "its work",
    )


def test_nothing_fires_beside_a_healthy_broker(faulty: FaultyBroker, tmp_path: Path) -> None:
    broker = faulty.start()
    producer = faulty.producer(broker)
    before = settled(producer, broker)
    producer.send("topic", "more")
    producer.flush()
    with Consumer(broker.kafka, "topic", auto_offset_reset="earliest") as consumer:
        assert len(list(consumer.to_end())) == 41
    succeeded = [
        f"tidelog_{each}_last_success_timestamp_seconds"
        for each in ("lease", "metadata_read", "collection")
    ]
    after = until(broker, advanced(before, *succeeded), "its successes")
    expect_firing(tmp_path, before, after, [])


def test_a_broker_that_is_killed(faulty: FaultyBroker, tmp_path: Path) -> None:
    broker = faulty.start()
    before = scrape(broker)
    broker.kill()
    expect_firing(tmp_path, before, before, ["TidelogBrokerDown"], is_up=False)


def test_a_store_that_fails_puts(faulty: FaultyBroker, tmp_path: Path) -> None:
    broker = faulty.start()
    producer = faulty.producer(broker)
    before = settled(producer, broker)
    faulty.fail("put wal/* fail")
    producer.send("topic", "waits")
    after = until(broker, failed(before, 5), "errors")
    expect_firing(tmp_path, before, after, ["TidelogStoreErrors"])


def test_a_store_that_is_slow(faulty: FaultyBroker, tmp_path: Path) -> None:
    broker = faulty.start()
    producer = faulty.producer(broker)
    before = settled(producer, broker)
    faulty.fail("put wal/* 3")
    producer.send("topic", "late")
    after = until(broker, risen(before, "tidelog_wal_put_seconds_count", 1), "a PUT")
    expect_firing(tmp_path, before, after, ["TidelogSlowPuts"])


def test_a_lease_that_cannot_be_renewed(faulty: FaultyBroker, tmp_path: Path) -> None:
    broker = faulty.start()
    healthy = settled(faulty.producer(broker), broker)
    faulty.fail("put cluster/lease/* fail")
    before = until(broker, failed(healthy, 2), "errors")
    after = until(broker, failed(before, 5), "errors")
    renewed = "tidelog_lease_last_success_timestamp_seconds"
    assert after.total(renewed) == before.total(renewed)
    expect_firing(tmp_path, before, after, ["TidelogLeaseOld"], aside=OF_THE_STORE)


def test_checkpoints_that_fail(faulty: FaultyBroker, tmp_path: Path) -> None:
    broker = faulty.start()
    producer = faulty.producer(broker)
    before = settled(producer, broker)
    faulty.fail("put checkpoint/* fail")
    for _ in range(5):
        producer.send("topic", "more")
        producer.flush()
    after = until(broker, risen(before, "tidelog_wal_checkpoint_failures_total", 2), "failures")
    expect_firing(tmp_path, before, after, ["TidelogCheckpointsFail"], aside=OF_THE_STORE)


def test_rolls_that_fail_while_clients_write(faulty: FaultyBroker, tmp_path: Path) -> None:
    broker = faulty.start()
    producer = faulty.producer(broker)
    before = settled(producer, broker)
    faulty.fail("put topics/* fail")
    for number in range(100):
        producer.send("topic", b"x" * 1000, key=b"%d" % number)
    producer.flush()
    limit = before.total("tidelog_roll_backlog_limit_bytes")
    backlog = "tidelog_roll_backlog_bytes"
    after = until(broker, lambda found: found.total(backlog) > 2 * limit, "a backlog")
    expect_firing(
        tmp_path,
        before,
        after,
        ["TidelogRollBacklogGrows"],
        rising=[backlog],
        aside=OF_THE_STORE,
    )


def test_a_dead_broker_whose_wal_cannot_be_sealed(faulty: FaultyBroker, tmp_path: Path) -> None:
    dying, living = faulty.start(0), faulty.start(1)
    producer = faulty.producer(dying)
    producer.send("topic", "a")
    producer.flush()
    before = scrape(living)
    faulty.fail("put wal/0-* fail")
    dying.kill()
    after = until(living, lambda found: found.total("tidelog_takeovers_waiting") > 0, "the death")
    expect_firing(tmp_path, before, after, ["TidelogTakeoverWaits"], aside=OF_THE_STORE)
