"""Producers expire without a visit to the partitions that have no producers."""

from __future__ import annotations

from dataclasses import replace

from tests.properties.wal.batches import EPOCH_0, batch, topic_partition
from tidelog.wal.log.image import PartitionImage
from tidelog.wal.log.partition_log import PartitionLog
from tidelog.wal.log.producer_expiry import ProducerExpiry

DAY_MS = 86_400_000
MINUTE_MS = 60_000


class Led:
    """The partitions of a broker."""

    def __init__(self, count: int) -> None:
        self.expiry = ProducerExpiry()
        self.logs = [self.log(number) for number in range(count)]

    def log(self, number: int, image: PartitionImage | None = None) -> PartitionLog:
        empty = PartitionImage.empty(topic_partition(number), EPOCH_0)
        log = PartitionLog.from_image(image or empty)
        log.watch(self)
        return log

    def changed(self, log: PartitionLog) -> None:
        pass

    def producers_changed(self, log: PartitionLog, more: int) -> None:
        self.expiry.changed(log, more)


def append(
    log: PartitionLog,
    now_ms: int,
    producer_id: int = 7,
    sequence: int = 0,
    *,
    ordinal: int = -1,
) -> None:
    _, head = batch(producer=producer_id, epoch=0, sequence=sequence, transactional=ordinal >= 0)
    log.append(head, now_ms, ordinal=ordinal)


def test_partitions_without_producers_are_never_looked_at() -> None:
    led = Led(1000)
    append(led.logs[3], 2 * DAY_MS)
    for minute in range(100):
        led.expiry.expire(2 * DAY_MS + minute * MINUTE_MS, DAY_MS)
    assert led.expiry.visited == 1
    assert len(led.expiry) == 1


def test_a_busy_partition_is_looked_at_once_a_period() -> None:
    led = Led(1)
    for minute in range(300):
        append(led.logs[0], minute * MINUTE_MS, sequence=minute)
        led.expiry.expire(minute * MINUTE_MS, 60 * MINUTE_MS)
    assert led.expiry.visited <= 1 + 300 // 60 + 1
    assert [p.producer_id for p in led.logs[0].producers] == [7]


def test_producers_expire_in_time_and_their_partition_is_forgotten() -> None:
    led = Led(2)
    append(led.logs[0], 1_000, producer_id=7)
    append(led.logs[0], 5_000, producer_id=8)
    assert led.expiry.expire(5_500, 1_000) == 1
    assert [p.producer_id for p in led.logs[0].producers] == [8]
    assert led.expiry.expire(5_999, 1_000) == 0
    assert led.expiry.expire(6_000, 1_000) == 1
    assert len(led.expiry) == 0
    append(led.logs[0], 9_000, producer_id=9)
    assert led.expiry.expire(10_000, 1_000) == 1


def test_a_shorter_period_counts_from_the_next_round_on() -> None:
    led = Led(1)
    append(led.logs[0], 0)
    assert led.expiry.expire(MINUTE_MS, DAY_MS) == 0
    assert led.expiry.expire(2 * MINUTE_MS, MINUTE_MS) == 1


def test_an_open_transaction_keeps_its_producer_and_does_not_hold_up_the_round() -> None:
    led = Led(1)
    append(led.logs[0], 0, ordinal=1)
    append(led.logs[0], 0, producer_id=8)
    assert led.expiry.expire(DAY_MS, MINUTE_MS) == 1
    assert [p.producer_id for p in led.logs[0].producers] == [7]
    led.logs[0].append_marker(7, 0, commit=True, coordinator_epoch=0, ordinal=1, now_ms=DAY_MS)
    assert led.expiry.expire(DAY_MS + 1, MINUTE_MS) == 0
    assert led.expiry.expire(DAY_MS + MINUTE_MS, MINUTE_MS) == 1


def test_producers_that_recovery_found_expire_too() -> None:
    led = Led(1)
    append(led.logs[0], 0)
    log = led.logs[0]
    image = replace(log.image(), next_offset=0)
    led.log(1, replace(image, partition=topic_partition(1)))
    assert led.expiry.expire(MINUTE_MS, MINUTE_MS) == 2


def test_a_partition_that_is_gone_is_not_looked_at() -> None:
    led = Led(2)
    for log in led.logs:
        append(log, 0)
    led.expiry.discard(led.logs[0])
    led.expiry.discard(led.logs[0])
    assert led.expiry.expire(MINUTE_MS, MINUTE_MS) == 1
    assert led.expiry.visited == 1


def test_the_producers_of_all_partitions_are_counted() -> None:
    led = Led(3)
    for producer_id in range(5):
        append(led.logs[0], 0, producer_id)
    append(led.logs[1], DAY_MS, 1)
    append(led.logs[0], 0, 4, sequence=1)
    append(led.logs[0], 0, -1, sequence=-1)
    assert led.expiry.known == 6
    led.expiry.expire(DAY_MS, DAY_MS)
    assert led.expiry.known == 1
    append(led.logs[0], DAY_MS, 9)
    led.expiry.discard(led.logs[0])
    led.expiry.discard(led.logs[2])
    assert led.expiry.known == 1


def test_producers_that_a_predecessor_knew_are_counted() -> None:
    led = Led(1)
    for producer_id in range(3):
        append(led.logs[0], 0, producer_id)
    successor = Led(0)
    successor.log(0, led.logs[0].image())
    assert successor.expiry.known == 3


def test_a_marker_for_an_unknown_producer_counts() -> None:
    led = Led(1)
    led.logs[0].append_marker(
        5, 0, commit=True, coordinator_epoch=0, ordinal=1, now_ms=0, transaction_version=0
    )
    assert led.expiry.known == 1
