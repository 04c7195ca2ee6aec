"""Markers of a decided transaction: which failures are retried, which are final, and when the
coordinator learns of the completion."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from tests.unit.broker.one_broker import until
from tidelog.broker.coordinate.marker_delivery import RETRY_SECONDS, MarkerDelivery
from tidelog.broker.partitions.log_writer import EndedTransaction
from tidelog.broker.partitions.partitions import PartitionError
from tidelog.broker.peers.markers import RemoteMarkers
from tidelog.broker.peers.requests import PeerUnreachable
from tidelog.coordinator.runtime import RuntimeState
from tidelog.coordinator.transaction.commands import MarkersSettled, Reply
from tidelog.coordinator.transaction.decision import Markers
from tidelog.coordinator.transaction.transaction import EnlistedPartition
from tidelog.crash_points import CrashPoint
from tidelog.identifiers import ProducerEpoch, ProducerId, Slot, TopicPartition
from tidelog.protocol.error_codes import ErrorCode
from tidelog.storage.object_store import StoreError, StoreNotApplied
from tidelog.wal.write.slot_upload import WalLost

GONE = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
TOPIC_ID = UUID(int=8)
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
    """The partitions, the WAL, the clock, the metadata and the coordinator in one.

    This broker's partitions take markers, or fail with the listed errors in turn. `peers` lists, in
    turn, the answers of the broker that leads the other partitions.
    """

    def __init__(self) -> None:
        self.errors: dict[EnlistedPartition, list[ErrorCode]] = defaultdict(list)
        self.written: list[EnlistedPartition] = []
        self.settled: list[frozenset[EnlistedPartition]] = []
        self.waits: list[float] = []
        self.state = RuntimeState.READY
        self.newest_slot = Slot(0)
        self.durable_slots = asyncio.Event()
        self.elsewhere: dict[EnlistedPartition, int] = {}
        self.sent: list[tuple[int, RemoteMarkers]] = []
        self.answers: list[dict[EnlistedPartition, ErrorCode] | PeerUnreachable] = []
        self.views: list[dict[EnlistedPartition, int]] = []
        self.refreshes: list[StoreError | None] = []
        self.moments: list[CrashPoint] = []

    # --- the partitions of this broker ---

    def named(self, topic: str, number: int) -> EnlistedPartition:
        return EnlistedPartition(topic, number)

    def write(self, partition: EnlistedPartition, ended: EndedTransaction) -> Slot:
        assert ended == ENDED
        if self.errors[partition]:
            raise PartitionError(self.errors[partition].pop(0), "as the test says")
        self.written.append(partition)
        return self.newest_slot

    def durable(self, slot: Slot) -> asyncio.Future[Any]:
        return asyncio.ensure_future(self.durable_slots.wait())

    def hit(self, point: CrashPoint) -> None:
        self.moments.append(point)

    # --- the coordinator ---

    def submit(self, command: MarkersSettled) -> asyncio.Future[Reply]:
        assert (command.transactional_id, command.producer_id, command.ordinal) == ("txn", 5, 9)
        self.settled.append(command.partitions)
        return asyncio.get_running_loop().create_future()

    # --- the view of the metadata log, and the other brokers ---

    def topic_named(self, name: str) -> Any:
        return SimpleNamespace(topic_id=TOPIC_ID)

    def leading(self, place: TopicPartition) -> int | None:
        assert place.topic_id == TOPIC_ID
        return self.elsewhere.get(EnlistedPartition("t", place.partition))

    async def refresh(self) -> None:
        failure = self.refreshes.pop(0) if self.refreshes else None
        if failure is not None:
            raise failure
        if self.views:
            self.elsewhere = self.views.pop(0)

    def mark(self, peer: int, markers: RemoteMarkers) -> asyncio.Future[Any]:
        self.sent.append((peer, markers))
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        told = self.answers.pop(0)
        if isinstance(told, PeerUnreachable):
            answer.set_exception(told)
        else:
            answer.set_result(told)
        return answer

    # --- time and chance ---

    async def sleep(self, seconds: float) -> None:
        self.waits.append(seconds)
        await asyncio.sleep(0)

    def uniform(self, low: float, high: float) -> float:
        assert low < 1 < high
        return 1


async def settled(leaders: Leaders, delivery: MarkerDelivery) -> None:
    for _ in range(1000):
        await asyncio.sleep(0)
    assert delivery.unwritten == 0


def delivery_of(leaders: Leaders) -> MarkerDelivery:
    world: Any = leaders
    return MarkerDelivery(
        world, world, world, world, lambda: world, leaders.refresh, world, world, world
    )


def deliver(leaders: Leaders) -> None:
    """Deliver until no marker is left. The decision is durable."""

    async def story() -> None:
        world: Any = leaders
        leaders.durable_slots.set()
        delivery = delivery_of(leaders)
        task = asyncio.create_task(delivery.run())
        delivery.deliver(world, MARKERS)
        await settled(leaders, delivery)
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
def test_a_refused_marker_is_retried_and_holds_up_no_other(error: ErrorCode) -> None:
    """Waits between attempts double."""
    leaders = Leaders()
    leaders.errors[P] = [error] * 3
    deliver(leaders)
    assert leaders.written == [Q, P]
    assert leaders.settled == [frozenset({Q}), frozenset({P})]
    assert leaders.waits == [RETRY_SECONDS] * (1 + 2 + 4)


@pytest.mark.parametrize(
    "error", [ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.TRANSACTION_COORDINATOR_FENCED]
)
def test_a_marker_that_can_never_be_written_does_not_block_the_end(
    error: ErrorCode,
) -> None:
    leaders = Leaders()
    leaders.errors[P] = [error]
    deliver(leaders)
    assert leaders.written == [Q]
    assert leaders.settled == [frozenset({P, Q})]
    assert leaders.waits == []


def test_a_stopped_coordinators_markers_are_not_retried() -> None:
    """Its successor sends all markers again."""
    leaders = Leaders()
    leaders.errors[P] = [ErrorCode.NOT_LEADER_OR_FOLLOWER]
    leaders.state = RuntimeState.STOPPED
    deliver(leaders)
    assert leaders.written == [Q]


# Topics that do not exist.


def test_a_missing_topic_is_settled_when_the_metadata_log_was_read_after_the_decision() -> None:
    """The view at the decision may be older than the topic."""
    leaders = Leaders()
    leaders.errors[P] = [GONE] * 2
    deliver(leaders)
    assert leaders.written == [Q]
    assert leaders.settled == [frozenset({Q}), frozenset({P})]
    assert leaders.waits == [RETRY_SECONDS]


def test_a_topic_that_the_older_view_lacked_gets_its_marker() -> None:
    leaders = Leaders()
    leaders.errors[P] = [GONE]
    deliver(leaders)
    assert leaders.written == [Q, P]


def test_a_log_that_cannot_be_read_settles_nothing() -> None:
    leaders = Leaders()
    leaders.errors[P] = [GONE] * 2
    leaders.refreshes = [StoreNotApplied("meta", "as the test says")]
    deliver(leaders)
    assert leaders.written == [Q, P]


# Markers for partitions of other brokers.


def test_a_marker_leaves_when_the_decision_is_durable_and_is_settled_by_the_answer() -> None:
    async def story() -> None:
        leaders = Leaders()
        leaders.elsewhere = {P: 6}
        leaders.answers = [{P: ErrorCode.NONE}]
        world: Any = leaders
        delivery = delivery_of(leaders)
        delivery.deliver(world, MARKERS)
        for _ in range(100):
            await asyncio.sleep(0)
        assert leaders.sent == []
        assert leaders.settled == [frozenset({Q})]
        leaders.durable_slots.set()
        await settled(leaders, delivery)
        ((peer, sent),) = leaders.sent
        assert (peer, sent) == (6, RemoteMarkers(MARKERS, frozenset({P}), {"t": TOPIC_ID}))
        assert leaders.settled == [frozenset({Q}), frozenset({P})]
        assert leaders.moments == [CrashPoint.PREPARE_DURABLE, CrashPoint.BETWEEN_MARKERS]

    asyncio.run(story())


def test_partitions_of_one_broker_go_together() -> None:
    leaders = Leaders()
    leaders.elsewhere = {P: 6, Q: 6}
    leaders.answers = [{P: ErrorCode.NONE, Q: ErrorCode.INVALID_PRODUCER_EPOCH}]
    deliver(leaders)
    assert [(peer, sent.partitions) for peer, sent in leaders.sent] == [(6, frozenset({P, Q}))]
    assert leaders.settled == [frozenset({P, Q})]
    assert leaders.moments == [CrashPoint.PREPARE_DURABLE, CrashPoint.MARKERS_DURABLE]


@pytest.mark.parametrize(
    "answer",
    [
        {P: ErrorCode.NOT_LEADER_OR_FOLLOWER},
        {P: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION},
        {P: ErrorCode.INCONSISTENT_TOPIC_ID},
        {P: ErrorCode.COORDINATOR_LOAD_IN_PROGRESS},
        PeerUnreachable("the answer is lost"),
    ],
    ids=str,
)
def test_a_refusal_by_another_broker_settles_no_partition_and_the_leader_is_sought_again(
    answer: dict[EnlistedPartition, ErrorCode] | PeerUnreachable,
) -> None:
    leaders = Leaders()
    leaders.elsewhere = {P: 6}
    leaders.views = [{P: 6}, {P: 7}]
    leaders.answers = [answer, answer, {P: ErrorCode.NONE}]
    deliver(leaders)
    assert [peer for peer, _ in leaders.sent] == [6, 6, 7]
    assert leaders.settled == [frozenset({Q}), frozenset({P})]


def test_a_marker_counts_as_unwritten_while_another_broker_has_not_answered_its_retry() -> None:
    """A first attempt does not count, since a busy cluster has one in progress at any time."""

    async def story() -> None:
        leaders = Leaders()
        leaders.elsewhere = {P: 6}
        leaders.durable_slots.set()
        answers: list[asyncio.Future[Any]] = []
        world: Any = leaders

        def mark(peer: int, markers: RemoteMarkers) -> asyncio.Future[Any]:
            answers.append(asyncio.get_running_loop().create_future())
            return answers[-1]

        world.mark = mark
        delivery = delivery_of(leaders)
        task = asyncio.create_task(delivery.run())
        delivery.deliver(world, MARKERS)
        await until(lambda: len(answers) == 1)
        assert delivery.unwritten == 0
        for _ in range(2):
            answers[-1].set_exception(PeerUnreachable("no answer in time"))
            await until(lambda: not answers[-1].done())
            assert delivery.unwritten == 1
        answers[-1].set_result({P: ErrorCode.NONE})
        await settled(leaders, delivery)
        task.cancel()

    asyncio.run(story())


def test_a_partition_that_comes_here_gets_its_marker_here() -> None:
    leaders = Leaders()
    leaders.elsewhere = {P: 6}
    leaders.views = [{}]
    leaders.answers = [PeerUnreachable("the broker has ended")]
    deliver(leaders)
    assert leaders.written == [Q, P]


def test_markers_without_a_durable_decision_are_not_sent() -> None:
    """The WAL is lost. A successor knows no decision, or sends the markers itself."""

    async def story() -> None:
        leaders = Leaders()
        leaders.elsewhere = {P: 6, Q: 6}
        lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        world: Any = leaders
        world.durable = lambda slot: lost
        delivery = delivery_of(leaders)
        delivery.deliver(world, MARKERS)
        lost.set_exception(WalLost("as the test says"))
        await settled(leaders, delivery)
        assert leaders.sent == []
        assert leaders.settled == []

    asyncio.run(story())


def test_an_answer_for_a_coordinator_that_has_left_is_ignored() -> None:
    async def story() -> None:
        leaders = Leaders()
        leaders.elsewhere = {P: 6, Q: 6}
        leaders.durable_slots.set()
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        world: Any = leaders
        world.mark = lambda peer, markers: answer
        delivery = delivery_of(leaders)
        delivery.deliver(world, MARKERS)
        await settled(leaders, delivery)
        leaders.state = RuntimeState.STOPPED
        answer.set_result({P: ErrorCode.NONE, Q: ErrorCode.NONE})
        await settled(leaders, delivery)
        assert leaders.settled == []

    asyncio.run(story())


def test_new_leaders_end_the_waits() -> None:
    async def story() -> None:
        leaders = Leaders()
        leaders.errors[P] = [ErrorCode.KAFKA_STORAGE_ERROR] * 4
        world: Any = leaders
        delivery = delivery_of(leaders)
        task = asyncio.create_task(delivery.run())
        delivery.deliver(world, MARKERS)
        await until(lambda: not leaders.errors[P])
        waits = len(leaders.waits)
        delivery.leaders_changed()
        await settled(leaders, delivery)
        assert len(leaders.waits) <= waits + 1
        task.cancel()

    asyncio.run(story())
