"""Alerts fire in the faults that a real broker meets, and none beside a healthy broker."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.integration.faulty_server import FAULTS_FILE
from tests.integration.lasting_state import Scrape, expect_firing, scraped
from tidelog.client.pool import Client, CoordinatorKind
from tidelog.client.transport import address_text
from tidelog.clock import SystemClock
from tidelog.localstack.broker_process import BrokerProcess
from tidelog.network import SocketNetwork
from tidelog.sdk.admin import Admin
from tidelog.sdk.consumer import Consumer
from tidelog.sdk.producer import Producer

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]
SECONDS_MAX = 180.0
BUSY = {
    "log.collect.interval.ms": 500,
    "wal.checkpoint.interval.slots": 2,
    "roll.wal.max.bytes": 20_000,
    "roll.min.bytes": 0,
}
"""Settings with which a broker does all its work within seconds."""
OF_THE_STORE = ("TidelogStoreErrors",)
"""Alerts that fire beside others if one request in twenty fails. This depends on the broker's other
work."""
CYCLES = ("lease", "metadata_read", "collection")
"""The works that a broker repeats, with or without requests of clients."""
OF_READS = (*OF_THE_STORE, "TidelogCollectionOld")
"""The same if reads fail, which also stops collections that read objects."""
PATIENT = {"delivery_timeout_ms": 600_000, "linger_ms": 0}


class FaultyBroker:
    """A broker whose store fails on command, and Prometheus beside it."""

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

    def producer(self, broker: BrokerProcess, **settings: object) -> Producer:
        return self._stack.enter_context(Producer(broker.kafka, **PATIENT, **settings))

    def fail(self, *faults: str) -> None:
        """From now on these requests fail or wait. Takes lines of `faulty_server`."""
        self.faults.write_text("".join(f"{each}\n" for each in faults))

    def lose(self, objects: str) -> None:
        """Delete these objects. At least one must exist."""
        found = list((self.folder / "store").glob(objects))
        assert found, f"no {objects}"
        for path in found:
            path.unlink()

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
    """The first scrape that fulfils the condition."""
    deadline = time.monotonic() + SECONDS_MAX
    while not is_shown(found := scrape(broker)):
        assert time.monotonic() < deadline, f"the broker never shows {why}"
    return found


def risen(before: Scrape, name: str, by: float) -> Callable[[Scrape], bool]:
    return lambda found: found.total(name) >= before.total(name) + by


def shown(name: str) -> Callable[[Scrape], bool]:
    return lambda found: found.total(name) > 0


def failed(before: Scrape, by: float) -> Callable[[Scrape], bool]:
    """Whether this many more requests to the store have met a made fault."""
    return lambda found: made_faults(found) >= made_faults(before) + by


def made_faults(found: Scrape) -> float:
    return sum(
        value
        for (name, labels), value in found.series.items()
        if name == "tidelog_store_errors_total" and 'outcome="not_applied"' in labels
    )


def advanced(before: Scrape, names: Collection[str] = CYCLES) -> Callable[[Scrape], bool]:
    """Whether the broker has succeeded in each of these works since then."""
    return lambda found: all(found.total(last(name)) > before.total(last(name)) for name in names)


def last(work: str) -> str:
    return f"tidelog_{work}_last_success_timestamp_seconds"


def besides(before: Scrape, is_shown: Callable[[Scrape], bool]) -> Callable[[Scrape], bool]:
    """Whether the condition holds while the broker's other work goes on."""
    return lambda found: is_shown(found) and advanced(before)(found)


def settled(producer: Producer, broker: BrokerProcess) -> Scrape:
    """A scrape after a broker has done each kind of its work once."""
    for number in range(40):
        producer.send("topic", b"x" * 1000, key=b"%d" % number)
        producer.flush()
    return until(
        broker,
        lambda found: all(found.total(last(each)) for each in (*CYCLES, "wal_checkpoint")),
        "its work",
    )


def transaction_coordinator(broker: BrokerProcess, transactional_id: str) -> str:
    """The address of the broker that coordinates the transactional id."""
    host, _, port = broker.kafka.rpartition(":")

    async def find() -> str:
        async with Client(SocketNetwork(), SystemClock(), [(host, int(port))]) as client:
            found = await client.find_coordinator(CoordinatorKind.TRANSACTION, transactional_id)
            return address_text(found)

    return asyncio.run(find())


def test_no_alert_fires_beside_a_healthy_broker(faulty: FaultyBroker, tmp_path: Path) -> None:
    broker = faulty.start()
    producer = faulty.producer(broker)
    before = settled(producer, broker)
    producer.send("topic", "more")
    producer.flush()
    with Consumer(broker.kafka, "topic", auto_offset_reset="earliest") as consumer:
        assert len(list(consumer.to_end())) == 41
    after = until(broker, advanced(before), "its successes")
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
    after = until(broker, besides(before, failed(before, 5)), "errors")
    expect_firing(tmp_path, before, after, ["TidelogStoreErrors"])


def test_a_store_that_is_slow(faulty: FaultyBroker, tmp_path: Path) -> None:
    broker = faulty.start()
    producer = faulty.producer(broker)
    before = settled(producer, broker)
    faulty.fail("put wal/* 3")
    producer.send("topic", "late")
    is_late = risen(before, "tidelog_wal_put_seconds_count", 1)
    after = until(broker, besides(before, is_late), "a PUT")
    expect_firing(tmp_path, before, after, ["TidelogSlowPuts"])


def test_a_lease_that_cannot_be_renewed(faulty: FaultyBroker, tmp_path: Path) -> None:
    broker = faulty.start()
    healthy = settled(faulty.producer(broker), broker)
    faulty.fail("put cluster/lease/* fail")
    before = until(broker, failed(healthy, 2), "errors")
    others = advanced(before, CYCLES[1:])
    after = until(broker, lambda found: failed(before, 5)(found) and others(found), "errors")
    assert after.total(last("lease")) == before.total(last("lease"))
    expect_firing(tmp_path, before, after, ["TidelogLeaseOld"], aside=OF_THE_STORE)


def test_checkpoints_that_fail(faulty: FaultyBroker, tmp_path: Path) -> None:
    broker = faulty.start()
    producer = faulty.producer(broker)
    healthy = settled(producer, broker)

    def failed_again(before: Scrape) -> Scrape:
        for _ in range(5):
            producer.send("topic", "more")
            producer.flush()
        fails = risen(before, "tidelog_wal_checkpoint_failures_total", 1)
        return until(broker, besides(before, fails), "failures")

    faulty.fail("put checkpoint/* fail")
    # A checkpoint that was on its way succeeds. Behind the first failure none succeeds.
    before = failed_again(healthy)
    after = failed_again(before)
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
    is_long = besides(before, lambda found: found.total(backlog) > 2 * limit)
    after = until(broker, is_long, "a backlog")
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
    waits = besides(before, shown("tidelog_takeovers_waiting"))
    after = until(living, waits, "the death")
    expect_firing(tmp_path, before, after, ["TidelogTakeoverWaits"], aside=OF_THE_STORE)


def test_a_segment_that_is_lost(faulty: FaultyBroker, tmp_path: Path) -> None:
    broker = faulty.start()
    before = settled(faulty.producer(broker), broker)
    until(broker, shown(last("roll")), "a roll")
    faulty.lose("topics/*/partition=*/*.parquet")
    with Consumer(broker.kafka, "topic", auto_offset_reset="earliest") as consumer:

        def is_met(found: Scrape) -> bool:
            consumer.fetch(0.1)
            return besides(before, risen(before, "tidelog_storage_faults_total", 1))(found)

        after = until(broker, is_met, "the fault")
    expect_firing(tmp_path, before, after, ["TidelogStorageFaults"])


def test_a_wal_object_that_is_lost_before_its_roll(faulty: FaultyBroker, tmp_path: Path) -> None:
    broker = faulty.start(tail_cache_bytes=0)
    producer = faulty.producer(broker)
    before = settled(producer, broker)
    producer.send("damaged", "lost")
    producer.flush()
    faulty.lose("wal/0-*/*.wal")
    for number in range(40):
        producer.send("damaged", b"x" * 1000, key=b"%d" % number)
        producer.flush()
    stops = besides(before, shown("tidelog_roll_stopped_partitions"))
    after = until(broker, stops, "a stopped roll")
    expect_firing(tmp_path, before, after, ["TidelogRollsStopped"])


def test_partitions_whose_checkpoint_cannot_be_read(faulty: FaultyBroker, tmp_path: Path) -> None:
    dying, living = faulty.start(0), faulty.start(1)
    settled(faulty.producer(dying), dying)
    before = until(living, lambda found: all(found.total(last(each)) for each in CYCLES), "work")
    faulty.fail("get checkpoint/0-* fail")
    dying.kill()
    opening = shown("tidelog_partitions_opening")
    given = until(living, opening, "the partitions")
    others = advanced(given, CYCLES[:2])
    stays = failed(given, 3)
    after = until(
        living,
        lambda found: opening(found) and stays(found) and others(found),
        "failing reads",
    )
    expect_firing(tmp_path, before, after, ["TidelogPartitionsOpening"], aside=OF_READS)


def test_a_full_memory_of_producers(faulty: FaultyBroker, tmp_path: Path) -> None:
    broker = faulty.start(producer_ids_max=1)
    before = settled(faulty.producer(broker), broker)
    after = until(broker, advanced(before), "its work")
    expect_firing(tmp_path, before, after, ["TidelogLimitNear"])


def test_a_metadata_log_that_cannot_be_read(faulty: FaultyBroker, tmp_path: Path) -> None:
    broker = faulty.start()
    healthy = settled(faulty.producer(broker), broker)
    faulty.fail("get cluster/log/* fail")
    before = until(broker, failed(healthy, 1), "errors")
    others = advanced(before, ("lease",))
    after = until(broker, lambda found: failed(before, 1)(found) and others(found), "errors")
    expect_firing(tmp_path, before, after, ["TidelogMetadataOld"], aside=OF_READS)


def test_a_collection_that_fails(faulty: FaultyBroker, tmp_path: Path) -> None:
    broker = faulty.start()
    producer = faulty.producer(broker)
    healthy = settled(producer, broker)
    faulty.fail("list * fail")
    before = until(broker, failed(healthy, 1), "errors")
    fails = risen(before, "tidelog_collection_failures_total", 1)
    others = advanced(before, CYCLES[:2])
    after = until(broker, lambda found: fails(found) and others(found), "a failure")
    expect_firing(tmp_path, before, after, ["TidelogCollectionOld"], aside=OF_THE_STORE)


def test_markers_that_a_broker_cannot_write(faulty: FaultyBroker, tmp_path: Path) -> None:
    brokers = [faulty.start(0), faulty.start(1)]
    admin = Admin(brokers[0].kafka)
    admin.create_topic("both", partitions=4)
    producer = faulty.producer(brokers[0], transactional_id="t", transaction_timeout_ms=600_000)
    producer.init_transactions()
    address = transaction_coordinator(brokers[0], "t")
    (coordinator,) = (each for each in brokers if each.kafka == address)
    (other,) = (each for each in brokers if each.kafka != address)
    before = until(coordinator, advanced(scrape(coordinator)), "its work")
    with producer.transaction():
        for partition in range(4):
            producer.send("both", "a", partition=partition)
        producer.flush()
        faulty.fail(f"put wal/{other.broker_id}-* fail")
    # After 30 s the other broker ends itself, and no broker can seal its WAL either.
    lacks = shown("tidelog_transactions_markers_unwritten")
    waits = shown("tidelog_takeovers_waiting")
    given = until(coordinator, waits, "the other's end")
    goes_on = advanced(given)
    after = until(coordinator, lambda found: lacks(found) and goes_on(found), "unwritten markers")
    firing = ["TidelogMarkersUnwritten", "TidelogTakeoverWaits"]
    expect_firing(tmp_path, before, after, firing, aside=OF_THE_STORE)
