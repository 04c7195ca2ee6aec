"""How long a broker waits for a transaction that is being completed (KIP-890). If another broker
has the coordinator, the broker asks that one."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from tidelog.broker.coordinate.transaction_admission import Admission, Admissions, Wanted
from tidelog.broker.peers.enlistments import Enlisted, Enlistment
from tidelog.broker.peers.requests import PeerUnreachable
from tidelog.coordinator.runtime import CoordinatorRefused
from tidelog.coordinator.transaction.commands import (
    AddPartitions,
    AddReply,
    Command,
    Identity,
    Reply,
    VerifyPartitions,
    VerifyReply,
)
from tidelog.coordinator.transaction.transaction import EnlistedPartition
from tidelog.identifiers import Epoch, ProducerEpoch, ProducerId, TopicPartition
from tidelog.protocol.error_codes import ErrorCode

CONCURRENT = ErrorCode.CONCURRENT_TRANSACTIONS
ELSEWHERE = ErrorCode.NOT_COORDINATOR
FIRST, SECOND = 0, 2


TOPIC_ID = UUID(int=7)


class _Partition:
    """The parts of a partition that the admission uses."""

    topic_name = "t"
    log = SimpleNamespace(partition=TopicPartition(TOPIC_ID, 3))


PARTITION: Any = _Partition()


class Coordinator:
    """Gives the listed answers in turn. Its clock counts how long was waited."""

    def __init__(self, answers: Iterable[Reply | CoordinatorRefused]) -> None:
        self.asked: list[Command] = []
        self.waited: list[float] = []
        self._answers: Iterator[Reply | CoordinatorRefused] = iter(answers)

    def submit(self, command: Command) -> asyncio.Future[Reply]:
        self.asked.append(command)
        answer = next(self._answers)
        if isinstance(answer, CoordinatorRefused):
            raise answer
        told: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        told.set_result(answer)
        return told

    def place_of(self, transactional_id: str) -> str:
        assert transactional_id == "txn"
        return "place"

    def find(self, transactional_id: str) -> Coordinator:
        assert transactional_id == "txn"
        return self

    async def sleep(self, seconds: float) -> None:
        self.waited.append(seconds)


class Others:
    """The other brokers. The listed brokers have the coordinator in turn, and give the listed
    answers in turn."""

    def __init__(self, answers: Iterable[Enlisted | PeerUnreachable] = (), *where: int) -> None:
        self.asked: list[tuple[int, Enlistment]] = []
        self.renewals = 0
        self._where = list(where)
        self._answers = iter(answers)

    def leading(self, place: str) -> Epoch | None:
        assert place == "place"
        return Epoch(self._where[0]) if self._where else None

    async def renewed(self) -> None:
        self.renewals += 1
        self._where = self._where[1:] or self._where

    async def enlist(self, peer: Epoch, enlistment: Enlistment) -> Enlisted:
        self.asked.append((peer, enlistment))
        answer = next(self._answers)
        if isinstance(answer, PeerUnreachable):
            raise answer
        return answer


def admission(coordinator: Coordinator, version: int, others: Others | None = None) -> Admission:
    """The answer to a producer's first batch in a partition."""
    coordinators: Any = SimpleNamespace(transactions=coordinator)
    clock: Any = coordinator
    peers: Any = others or Others()
    admissions = Admissions(coordinators, peers, peers.renewed, clock)
    wanted = Wanted("txn", Identity(ProducerId(1), ProducerEpoch(0)), version)

    async def story() -> Admission:
        at_once = admissions.admit_at_once(wanted, [PARTITION])
        found = await admissions.admit(wanted, [PARTITION]) if at_once is None else at_once
        return found[PARTITION]

    return asyncio.run(story())


def test_a_transaction_that_is_being_completed_is_waited_for() -> None:
    coordinator = Coordinator([*[AddReply(CONCURRENT)] * 3, AddReply(ErrorCode.NONE, 7)])
    assert admission(coordinator, SECOND) == Admission(ErrorCode.NONE, 7)
    assert {type(each) for each in coordinator.asked} == {AddPartitions}
    assert coordinator.waited == [0.02] * 2


def test_an_admission_waits_for_the_previous_transaction_a_tenth_of_a_second() -> None:
    coordinator = Coordinator([AddReply(CONCURRENT)] * 100)
    assert admission(coordinator, SECOND).error is CONCURRENT
    assert sum(coordinator.waited) == pytest.approx(0.1)


def test_producers_of_the_first_version_ask_again_themselves() -> None:
    coordinator = Coordinator([VerifyReply(CONCURRENT)])
    assert admission(coordinator, FIRST).error is CONCURRENT
    assert {type(each) for each in coordinator.asked} == {VerifyPartitions}
    assert coordinator.waited == []


@pytest.mark.parametrize("version", [FIRST, SECOND])
def test_other_refusals_are_told_at_once(version: int) -> None:
    elsewhere = CoordinatorRefused(ErrorCode.NOT_COORDINATOR, "it is elsewhere")
    coordinator = Coordinator([elsewhere])
    assert admission(coordinator, version).error is ErrorCode.NOT_COORDINATOR
    assert coordinator.waited == []


def test_a_partition_without_an_addition_must_be_aborted() -> None:
    missing = frozenset({EnlistedPartition("t", 3)})
    coordinator = Coordinator([VerifyReply(ErrorCode.NONE, 7, missing)])
    assert admission(coordinator, FIRST).error is ErrorCode.TRANSACTION_ABORTABLE


def told(error: ErrorCode, ordinal: int = -1) -> Enlisted:
    return Enlisted({EnlistedPartition("t", 3): error}, ordinal)


@pytest.mark.parametrize("version", [FIRST, SECOND])
def test_another_broker_is_asked_to_verify_or_to_add(version: int) -> None:
    here, others = Coordinator([]), Others([told(ErrorCode.NONE, 7)], 5)
    assert admission(here, version, others) == Admission(ErrorCode.NONE, 7)
    ((peer, asked),) = others.asked
    assert (peer, asked.adds) == (5, version == SECOND)
    assert asked.partitions == {EnlistedPartition("t", 3)}
    assert asked.topic_ids == {"t": TOPIC_ID}
    assert here.asked == []


@pytest.mark.parametrize(
    "first", [told(ELSEWHERE), PeerUnreachable("no answer")], ids=["it moved", "no answer"]
)
def test_a_coordinator_that_is_not_there_is_looked_for_in_a_newer_view(
    first: Enlisted | PeerUnreachable,
) -> None:
    others = Others([first, told(ErrorCode.NONE, 7)], 5, 6)
    assert admission(Coordinator([]), FIRST, others) == Admission(ErrorCode.NONE, 7)
    assert [peer for peer, _ in others.asked] == [5, 6]
    assert others.renewals == 1


@pytest.mark.parametrize(
    ("answer", "code"),
    [(told(ELSEWHERE), ELSEWHERE), (PeerUnreachable("no answer"), ErrorCode.NETWORK_EXCEPTION)],
    ids=["it moved", "no answer"],
)
def test_a_coordinator_that_is_nowhere_is_told_to_the_producer(
    answer: Enlisted | PeerUnreachable, code: ErrorCode
) -> None:
    others = Others([answer] * 100, 5)
    assert admission(Coordinator([]), SECOND, others).error is code
    assert len(others.asked) == 6


def test_another_broker_completes_a_transaction_meanwhile() -> None:
    others = Others([told(CONCURRENT), told(ErrorCode.NONE, 7)], 5)
    assert admission(Coordinator([]), SECOND, others) == Admission(ErrorCode.NONE, 7)
    assert others.renewals == 0
