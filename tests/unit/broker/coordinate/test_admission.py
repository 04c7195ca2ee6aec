"""How long a broker itself waits for a transaction that is being completed (KIP-890)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from tidelog.broker.coordinate.transaction_admission import Admission, Admissions, Wanted
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
from tidelog.identifiers import ProducerEpoch, ProducerId
from tidelog.protocol.error_codes import ErrorCode

CONCURRENT = ErrorCode.CONCURRENT_TRANSACTIONS
FIRST, SECOND = 0, 2


class _Partition:
    """All that is asked of one."""

    topic_name = "t"
    log = SimpleNamespace(partition=SimpleNamespace(partition=3))


PARTITION: Any = _Partition()


class Coordinator:
    """Answers one after the other as it was told to; its clock counts how long was waited."""

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

    def find(self, transactional_id: str) -> Coordinator:
        assert transactional_id == "txn"
        return self

    async def sleep(self, seconds: float) -> None:
        self.waited.append(seconds)


def admission(coordinator: Coordinator, version: int) -> Admission:
    """What a producer's first batch in a partition is told."""
    coordinators: Any = SimpleNamespace(transactions=coordinator)
    clock: Any = coordinator
    admissions = Admissions(coordinators, clock)
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


def test_it_is_waited_for_a_tenth_of_a_second_and_no_longer() -> None:
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


def test_what_nobody_has_added_must_be_aborted() -> None:
    missing = frozenset({EnlistedPartition("t", 3)})
    coordinator = Coordinator([VerifyReply(ErrorCode.NONE, 7, missing)])
    assert admission(coordinator, FIRST).error is ErrorCode.TRANSACTION_ABORTABLE
