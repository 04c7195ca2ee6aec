"""The lag of groups, as one broker reports it and as a cluster's brokers report it together."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from urllib.request import urlopen

from click.testing import CliRunner
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import CollectorRegistry

from tidelog.broker.coordinate.lag_metrics import (
    COMMITTED_OFFSET,
    END_OFFSET,
    GROUP_LAG,
    LEFT_OUT,
    LagCollector,
)
from tidelog.cli.root import cli
from tidelog.coordinator.group.records.log_records import CommittedOffset, OffsetStored
from tidelog.coordinator.group.state.committed_offsets import CommittedOffsets
from tidelog.coordinator.internal_topics import GROUP_TOPIC
from tidelog.localstack.broker_process import BrokerProcess
from tidelog.sdk.admin import Admin
from tidelog.sdk.producer import Producer

PARTITIONS = 4
MESSAGES = 5
COMMITTED = 2
LABELS = ("group", "topic", "partition")
"""Labels in Prometheus's order, which is alphabetical."""


def committed(offsets: dict[tuple[str, str, int], int]) -> CommittedOffsets:
    found = CommittedOffsets()
    for (group, topic, partition), offset in offsets.items():
        found.store(OffsetStored(group, topic, partition, CommittedOffset(offset, -1, "", 0)))
    return found


def shown(
    offsets: list[CommittedOffsets], ends: dict[tuple[str, int], int], series_max: int = 100
) -> dict[str, dict[tuple[str, ...], float]]:
    """The values of each family, by its labels."""
    registry = CollectorRegistry()
    registry.register(LagCollector(lambda: offsets, lambda: ends, series_max))
    return {
        family.name: {tuple(each.labels.values()): each.value for each in family.samples}
        for family in registry.collect()
    }


def test_lag_needs_the_end_of_a_partition_that_this_broker_leads() -> None:
    offsets = committed({("g", "here", 0): 3, ("g", "elsewhere", 1): 4, ("h", "here", 0): 10})
    found = shown([offsets], {("here", 0): 10, ("unread", 2): 7})
    assert found[GROUP_LAG] == {("g", "here", "0"): 7, ("h", "here", "0"): 0}
    assert found[COMMITTED_OFFSET][("g", "elsewhere", "1")] == 4
    assert found[END_OFFSET] == {("here", "0"): 10, ("unread", "2"): 7}
    assert found[LEFT_OUT] == {(): 0}


def test_a_commit_that_is_newer_than_the_seen_end_is_no_negative_lag() -> None:
    found = shown([committed({("g", "t", 0): 11})], {("t", 0): 10})
    assert found[GROUP_LAG] == {("g", "t", "0"): 0}


def test_the_number_of_a_sinks_batch_is_no_offset() -> None:
    offsets = committed({("sink", GROUP_TOPIC, 0): 7, ("g", "t", 0): 3})
    found = shown([offsets], {(GROUP_TOPIC, 0): 5000, ("t", 0): 10}, series_max=2)
    assert found[GROUP_LAG] == {("g", "t", "0"): 7}
    assert found[COMMITTED_OFFSET] == {("g", "t", "0"): 3}
    assert found[LEFT_OUT] == {(): 0}


def test_series_beyond_the_limit_are_counted() -> None:
    offsets = [committed({("g", "t", number): 0 for number in range(3)}) for _ in range(2)]
    found = shown(offsets, {("t", number): 1 for number in range(5)}, series_max=4)
    assert len(found[END_OFFSET]) == 4
    assert found[LEFT_OUT] == {(): 2 + 1}
    nothing = shown(offsets, {("t", 0): 1}, series_max=0)
    assert nothing[COMMITTED_OFFSET] == nothing[GROUP_LAG] == nothing[END_OFFSET] == {}
    assert nothing[LEFT_OUT] == {(): 6 + 1}


def scraped(broker: BrokerProcess) -> dict[str, dict[tuple[str, ...], float]]:
    page = urlopen(f"http://{broker.http}/metrics", timeout=10).read().decode()
    return {
        family.name: {
            tuple(each.labels[name] for name in LABELS if name in each.labels): each.value
            for each in family.samples
        }
        for family in text_string_to_metric_families(page)
        if family.name in (GROUP_LAG, COMMITTED_OFFSET, END_OFFSET)
    }


def test_the_brokers_of_a_cluster_together_report_the_lag_of_each_partition(
    tmp_path: Path,
) -> None:
    with ExitStack() as stack:
        brokers = [
            stack.enter_context(
                BrokerProcess.start(
                    f"file://{tmp_path}/store",
                    tmp_path / f"log-{number}",
                    http="127.0.0.1:0",
                    broker_id=number,
                )
            )
            for number in range(2)
        ]
        Admin(brokers[0].kafka).create_topic("flights", PARTITIONS)
        with Producer(brokers[0].kafka) as producer:
            for partition in range(PARTITIONS):
                for _ in range(MESSAGES + partition):
                    producer.send("flights", "a", partition=partition)
        reset = f"groups reset-offsets planes --topic flights --to {COMMITTED}"
        done = CliRunner().invoke(cli, [*reset.split(), "--bootstrap", brokers[0].kafka])
        assert done.exit_code == 0, done.output
        pages = [scraped(broker) for broker in brokers]

    (offsets,) = [page[COMMITTED_OFFSET] for page in pages if page[COMMITTED_OFFSET]]
    ends = {place: end for page in pages for place, end in page[END_OFFSET].items()}
    # Each partition has one leader, and both brokers lead some.
    assert all(page[END_OFFSET] for page in pages)
    assert sum(len(page[END_OFFSET]) for page in pages) == len(ends) == PARTITIONS
    lags = {place: ends[place[1:]] - offset for place, offset in offsets.items()}
    assert lags == {
        ("planes", "flights", str(each)): MESSAGES + each - COMMITTED for each in range(PARTITIONS)
    }
    reported = {place: lag for page in pages for place, lag in page[GROUP_LAG].items()}
    assert reported
    assert reported.items() <= lags.items()
