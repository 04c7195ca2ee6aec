"""How a coordinator rests on its log: answers when durable, timers, loading, and its end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable

import pytest

from tests.unit.coordinator.number_world import Adder, Log, Runtime, batch, settle, tell, until
from tidelog.coordinator.runtime import CoordinatorRefused, RuntimeState
from tidelog.errors import MissingObject, TidelogError
from tidelog.protocol.error_codes import ErrorCode
from tidelog.records.records import NewRecord, encode_batch
from tidelog.storage.object_store import StoreOutcomeUnknown
from tidelog.wal.log.producer_state import INVALID_TXN_STATE, AppendRefused


def test_an_answer_waits_until_its_records_are_durable() -> None:
    async def story(runtime: Runtime, log: Log) -> None:
        answer = runtime.submit("+3")
        assert log.appended == [b"3"]
        await settle()
        assert not answer.done()
        log.make_durable()
        assert await answer == 3

    tell(story)


def test_a_question_waits_until_earlier_records_are_durable() -> None:
    """The question reads state that could still be lost. Its answer waits until that state is
    durable."""

    async def story(runtime: Runtime, log: Log) -> None:
        runtime.submit("+3")
        question = runtime.submit("?")
        await settle()
        assert not question.done()
        log.make_durable()
        assert await question == 3
        assert (await runtime.submit("?")) == 3

    tell(story)


def test_a_later_decision_counts_on_records_that_are_not_durable_yet() -> None:
    async def story(runtime: Runtime, log: Log) -> None:
        answers = [runtime.submit("+3"), runtime.submit("+4")]
        log.make_durable()
        assert [await answer for answer in answers] == [3, 7]

    tell(story)


def test_a_parked_request_is_answered_by_a_later_decision_when_that_is_durable() -> None:
    async def story(runtime: Runtime, log: Log) -> None:
        parked = runtime.submit("wait")
        answer = runtime.submit("+5")
        await settle()
        assert not parked.done()
        log.make_durable()
        assert (await parked, await answer) == (5, 5)

    tell(story)


def test_timers_run_out_without_a_request() -> None:
    async def story(runtime: Runtime, log: Log) -> None:
        await runtime.submit("soon")
        await until(lambda: log.appended == [b"100"])
        log.make_durable()
        assert await runtime.submit("?") == 100

    tell(story)


def test_a_lost_slot_leaves_its_requests_undecided() -> None:
    async def story(runtime: Runtime, log: Log) -> None:
        answer = runtime.submit("+3")
        log.lose()
        with pytest.raises(CoordinatorRefused) as refused:
            await answer
        assert refused.value.code is ErrorCode.NOT_COORDINATOR
        with pytest.raises(CoordinatorRefused):
            runtime.submit("+4")

    tell(story)


def test_a_coordinator_that_is_stopped_while_it_loads_holds_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    log = Log(stored=[("first", batch(3)), ("second", batch(4, at=1))])

    async def story(runtime: Runtime, log: Log) -> None:
        def machine_of() -> Adder:
            machine = runtime._machine
            assert isinstance(machine, Adder)
            return machine

        await until(lambda: machine_of().held == 3)
        machine = machine_of()
        runtime.stop()
        assert machine.held == 0
        for _ in range(10):
            await settle()
        assert (machine.total, machine.held) == (3, 0), "the load ends early"
        assert "has loaded" not in caplog.text

    tell(story, log)


def test_waiting_requests_are_refused_at_the_end() -> None:
    async def story(runtime: Runtime, log: Log) -> None:
        waiting = [runtime.submit("wait"), runtime.submit("+3")]
        runtime.stop()
        for answer in waiting:
            with pytest.raises(CoordinatorRefused) as refused:
                await answer
            assert refused.value.code is ErrorCode.NOT_COORDINATOR
        with pytest.raises(CoordinatorRefused):
            runtime.submit("?")
        log.make_durable()
        await settle()

    tell(story)


def test_a_broker_whose_lease_is_not_fresh_says_nothing_of_its_state() -> None:
    async def story(runtime: Runtime, log: Log) -> None:
        with pytest.raises(CoordinatorRefused) as refused:
            await runtime.submit("?")
        assert refused.value.code is ErrorCode.NOT_COORDINATOR

    tell(story, fresh=lambda: False)


def refusing(log: Log) -> None:
    log.refusal = AppendRefused(INVALID_TXN_STATE, "another transaction is open")


async def refusal_of(asked: Awaitable[int]) -> ErrorCode:
    with pytest.raises(CoordinatorRefused) as refused:
        await asked
    return refused.value.code


def test_a_refusal_by_the_log_waits_until_earlier_records_are_durable() -> None:
    async def story(runtime: Runtime, log: Log) -> None:
        runtime.submit("+3")
        refusing(log)
        refused = asyncio.ensure_future(runtime.submit("+4"))
        await settle()
        assert not refused.done()
        log.make_durable()
        assert await refusal_of(refused) is ErrorCode.INVALID_TXN_STATE
        assert await refusal_of(runtime.submit("+5")) is ErrorCode.INVALID_TXN_STATE
        log.refusal = None
        answer = runtime.submit("+6")
        log.make_durable()
        assert await answer == 9, "a refused command changes nothing"

    tell(story)


def test_a_refusal_by_a_log_whose_slot_is_lost_is_none() -> None:
    async def story(runtime: Runtime, log: Log) -> None:
        runtime.submit("+3")
        refusing(log)
        refused = runtime.submit("+4")
        log.lose()
        assert await refusal_of(refused) is ErrorCode.NOT_COORDINATOR

    tell(story)


def test_a_broker_whose_lease_is_not_fresh_refuses_nothing_by_its_log() -> None:
    """A successor may have ended the transaction that is open here. To a producer the refusal would
    be final."""

    async def story(runtime: Runtime, log: Log) -> None:
        refusing(log)
        assert await refusal_of(runtime.submit("+4")) is ErrorCode.NOT_COORDINATOR

    tell(story, fresh=lambda: False)


def test_a_request_whose_sender_has_gone_disturbs_no_other() -> None:
    async def story(runtime: Runtime, log: Log) -> None:
        gone, stays = runtime.submit("wait"), runtime.submit("wait")
        gone.cancel()
        runtime.submit("+1")
        log.make_durable()
        assert await stays == 1

    tell(story)


# Loading.


def test_the_log_is_read_before_anything_is_answered() -> None:
    async def story(runtime: Runtime, log: Log) -> None:
        assert runtime.state is RuntimeState.LOADING
        with pytest.raises(CoordinatorRefused) as refused:
            runtime.submit("?")
        assert refused.value.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        await until(lambda: runtime.state is not RuntimeState.LOADING)
        assert await runtime.submit("?") == 6

    tell(story, Log([("a", batch(1, 2)), ("b", batch(3))]))


def test_an_empty_log_is_ready_at_once() -> None:
    async def story(runtime: Runtime, log: Log) -> None:
        assert await runtime.submit("?") == 0

    tell(story)


@pytest.mark.parametrize(
    ("stored", "said"),
    [
        (("wal/b", bytes(encode_batch([NewRecord(b"three")]))), "no number"),
        (("wal/b", batch(1)[:-1] + b"?"), "checksum"),
        (("wal/b", MissingObject("wal/b", "it is missing")), "missing"),
    ],
)
def test_a_log_that_cannot_be_read_stops_its_coordinator_and_names_the_object(
    stored: tuple[str, bytes | TidelogError], said: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def story(runtime: Runtime, log: Log) -> None:
        await until(lambda: runtime.state is not RuntimeState.LOADING)
        with pytest.raises(CoordinatorRefused) as refused:
            runtime.submit("?")
        assert refused.value.code is ErrorCode.COORDINATOR_NOT_AVAILABLE
        (record,) = caplog.records
        assert record.__dict__["key"] == "wal/b"
        assert said in record.__dict__["why"]

    tell(story, Log([("wal/a", batch(1)), stored]))


def test_a_store_that_does_not_answer_is_asked_again_from_the_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tidelog.coordinator.runtime.LOAD_RETRY_SECONDS", 0.001)

    async def story(runtime: Runtime, log: Log) -> None:
        await until(lambda: log.faults == 1)
        log.stored[1] = ("b", batch(2))
        await until(lambda: runtime.state is not RuntimeState.LOADING)
        assert await runtime.submit("?") == 3

    fault = StoreOutcomeUnknown("b", "no answer")
    tell(story, Log([("a", batch(1)), ("b", fault)]))
