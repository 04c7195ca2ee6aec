"""Markers of a decided transaction: what is tried again, what never will be, what the coordinator
is told."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import Any

import pytest

from tidelog.broker.coordinate.marker_delivery import RETRY_SECONDS, MarkerDelivery
from tidelog.broker.partitions.log_writer import EndedTransaction
from tidelog.broker.partitions.partitions import PartitionError
from tidelog.coordinator.runtime import RuntimeState
from tidelog.coordinator.transaction.commands import MarkersSettled, Reply
from tidelog.coordinator.transaction.decision import Markers
from tidelog.coordinator.transaction.transaction import EnlistedPartition
from tidelog.identifiers import ProducerEpoch, ProducerId, Slot
from tidelog.protocol.error_codes import ErrorCode

P, Q = EnlistedPartition("t", 0), EnlistedPartition("t", 1)
MARKERS = Markers(
    "txn",
    ProducerId(5),
    ProducerEpoch(2),
    coordinator_epoch=1,
    commit=True,
    ordinal=9,
    transaction_version=2,
    partitions=frozenset({P, Q}),
)
ENDED = EndedTransaction(5, 2, True, 1, 9, 2)


class Leaders:
    """The partitions, the WAL, the clock and the coordinator in one: takes markers, or has errors
    for them, one after the other."""

    def __init__(self) -> None:
        self.errors: dict[EnlistedPartition, list[ErrorCode]] = defaultdict(list)
        self.written: list[EnlistedPartition] = []
        self.settled: list[frozenset[EnlistedPartition]] = []
        self.waits: list[float] = []
        self.state = RuntimeState.READY
        self.newest_slot = Slot(0)

    def named(self, topic: str, number: int) -> EnlistedPartition:
        return EnlistedPartition(topic, number)

    def write(self, partition: EnlistedPartition, ended: EndedTransaction) -> Slot:
        assert ended == ENDED
        if self.errors[partition]:
            raise PartitionError(self.errors[partition].pop(0), "as the test says")
        self.written.append(partition)
        return self.newest_slot

    def submit(self, command: MarkersSettled) -> asyncio.Future[Reply]:
        assert (command.transactional_id, command.producer_id, command.ordinal) == ("txn", 5, 9)
        self.settled.append(command.partitions)
        return asyncio.get_running_loop().create_future()

    async def sleep(self, seconds: float) -> None:
        self.waits.append(seconds)
        await asyncio.sleep(0)


def deliver(leaders: Leaders) -> None:
    """Deliver until nothing is left."""
    world: Any = leaders

    async def story() -> None:
        delivery = MarkerDelivery(world, world, world, world, world)
        task = asyncio.create_task(delivery.run())
        delivery.deliver(world, MARKERS)
        for _ in range(100):
            await asyncio.sleep(0)
        assert delivery.unwritten == 0
        task.cancel()

    asyncio.run(story())


def test_markers_are_written_and_settled_at_once() -> None:
    leaders = Leaders()
    deliver(leaders)
    assert leaders.written == [P, Q]
    assert leaders.settled == [frozenset({P, Q})]
    assert leaders.waits == []


@pytest.mark.parametrize(
    "error",
    [
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.REQUEST_TIMED_OUT,
    ],
)
def test_what_cannot_be_written_yet_is_tried_again_and_holds_up_no_other(error: ErrorCode) -> None:
    leaders = Leaders()
    leaders.errors[P] = [error] * 3
    deliver(leaders)
    assert leaders.written == [Q, P]
    assert leaders.settled == [frozenset({Q}), frozenset({P})]
    assert leaders.waits == [RETRY_SECONDS] * 3


@pytest.mark.parametrize(
    "error",
    [
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.TRANSACTION_COORDINATOR_FENCED,
    ],
)
def test_what_will_never_be_written_does_not_keep_a_transaction_from_its_end(
    error: ErrorCode,
) -> None:
    leaders = Leaders()
    leaders.errors[P] = [error]
    deliver(leaders)
    assert leaders.written == [Q]
    assert leaders.settled == [frozenset({P, Q})]
    assert leaders.waits == []


def test_what_a_coordinator_has_left_is_no_longer_its_own() -> None:
    """Its successor sends all markers again."""
    leaders = Leaders()
    leaders.errors[P] = [ErrorCode.NOT_LEADER_OR_FOLLOWER]
    leaders.state = RuntimeState.STOPPED
    deliver(leaders)
    assert leaders.written == [Q]
