"""The transactional producer: the meaning of each error for the application."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from tests.unit.client.scripted_brokers import NO_ANSWER, Brokers, tell
from tidelog.client.errors import RequestFailed, RequestOutcome
from tidelog.client.groups.admin import Place
from tidelog.client.transactions.errors import MustAbort, ProducerFenced, WrongCall
from tidelog.client.transactions.producer import TransactionalProducer
from tidelog.client.transactions.settings import TransactionVersion
from tidelog.protocol.error_codes import ErrorCode
from tidelog.protocol.schemas.produce import ProduceRequest
from tidelog.protocol.schemas.transactions import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    TxnOffsetCommitRequest,
)
from tidelog.records.records import NewRecord

V1, V2 = TransactionVersion.V1, TransactionVersion.V2
ONE = [NewRecord(b"one")]
both_versions = pytest.mark.parametrize("version", [V1, V2])


@both_versions
def test_no_record_is_committed_of_a_transaction_with_a_failed_send(
    version: TransactionVersion,
) -> None:
    async def story(brokers: Brokers, producer: TransactionalProducer) -> None:
        producer.begin()
        await producer.send("flights", 0, ONE)
        brokers.script[ProduceRequest] = [ErrorCode.MESSAGE_TOO_LARGE]
        with pytest.raises(MustAbort):
            await producer.send("flights", 0, ONE)
        for call in (
            producer.commit(),
            producer.send("flights", 0, ONE),
            producer.send_offsets("g", {Place("in", 0): 3}),
        ):
            with pytest.raises(MustAbort):
                await call
        assert brokers.ends() == []
        assert producer.must_abort
        await producer.abort()
        assert brokers.ends() == [False]
        # The client does not know which part of the failed batch is in the log, so sequences begin
        # again.
        producer.begin()
        await producer.send("flights", 0, ONE)
        await producer.commit()
        assert (brokers.batches[-1].producer_epoch, brokers.batches[-1].base_sequence) == (1, 0)

    tell(story, version)


def test_offsets_of_a_member_that_has_been_left_behind_must_be_aborted() -> None:
    async def story(brokers: Brokers, producer: TransactionalProducer) -> None:
        for code in (ErrorCode.ILLEGAL_GENERATION, ErrorCode.UNKNOWN_MEMBER_ID):
            producer.begin()
            brokers.script[TxnOffsetCommitRequest] = [code]
            with pytest.raises(MustAbort):
                await producer.send_offsets("g", {Place("in", 0): 3})
            with pytest.raises(MustAbort):
                await producer.commit()
            await producer.abort()
        assert brokers.ends() == [False, False]

    tell(story)


Call = Callable[[TransactionalProducer], Awaitable[object]]


def send(producer: TransactionalProducer) -> Awaitable[object]:
    return producer.send("flights", 0, ONE)


def send_offsets(producer: TransactionalProducer) -> Awaitable[object]:
    return producer.send_offsets("g", {Place("in", 0): 3})


def commit(producer: TransactionalProducer) -> Awaitable[object]:
    return producer.commit()


def abort(producer: TransactionalProducer) -> Awaitable[object]:
    return producer.abort()


@pytest.mark.parametrize(
    ("request_type", "call"),
    [
        (AddPartitionsToTxnRequest, send),
        (AddOffsetsToTxnRequest, send_offsets),
        (TxnOffsetCommitRequest, send_offsets),
        (EndTxnRequest, commit),
        (EndTxnRequest, abort),
    ],
)
@pytest.mark.parametrize(
    "code", [ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH], ids=lambda c: c.name
)
def test_a_producer_that_was_fenced_does_nothing_more(
    request_type: type, call: Call, code: ErrorCode
) -> None:
    async def story(brokers: Brokers, producer: TransactionalProducer) -> None:
        producer.begin()
        if request_type is EndTxnRequest:
            await producer.send("flights", 1, ONE)
        brokers.script[request_type] = [code]
        with pytest.raises(ProducerFenced) as fenced:
            await call(producer)
        assert fenced.value.outcome is RequestOutcome.NOT_APPLIED
        assert producer.is_fenced
        told = len(brokers.told)
        for each in (send, send_offsets, commit, abort):
            with pytest.raises(ProducerFenced):
                await each(producer)
        with pytest.raises(ProducerFenced):
            producer.begin()
        assert len(brokers.told) == told

    tell(story)


@both_versions
def test_a_commit_whose_outcome_is_not_known_can_only_be_repeated(
    version: TransactionVersion,
) -> None:
    """A delayed commit would be taken for a commit of the next transaction (KAFKA-17754)."""

    async def story(brokers: Brokers, producer: TransactionalProducer) -> None:
        producer.begin()
        await producer.send("flights", 0, ONE)
        brokers.script[EndTxnRequest] = [NO_ANSWER] * 2
        with pytest.raises(RequestFailed):
            await producer.commit()
        for call in (producer.abort(), producer.send("flights", 0, ONE)):
            with pytest.raises(WrongCall, match="commit again"):
                await call
        with pytest.raises(WrongCall, match="commit again"):
            producer.begin()
        await producer.commit()
        assert brokers.ends() == [True] * 3
        producer.begin()

    tell(story, version)


def test_an_abort_whose_outcome_is_not_known_can_only_be_repeated() -> None:
    async def story(brokers: Brokers, producer: TransactionalProducer) -> None:
        producer.begin()
        await producer.send("flights", 0, ONE)
        brokers.script[EndTxnRequest] = [NO_ANSWER] * 2
        with pytest.raises(RequestFailed):
            await producer.abort()
        with pytest.raises(WrongCall, match="abort again"):
            await producer.commit()
        await producer.abort()
        assert brokers.ends() == [False] * 3

    tell(story)


def test_a_fence_does_not_tell_the_outcome_of_a_repeated_commit() -> None:
    async def story(brokers: Brokers, producer: TransactionalProducer) -> None:
        producer.begin()
        await producer.send("flights", 0, ONE)
        brokers.script[EndTxnRequest] = [NO_ANSWER, ErrorCode.PRODUCER_FENCED]
        with pytest.raises(ProducerFenced) as fenced:
            await producer.commit()
        assert fenced.value.outcome is RequestOutcome.UNKNOWN

    tell(story)


def test_an_end_is_asked_for_again_while_the_coordinator_cannot_say() -> None:
    async def story(brokers: Brokers, producer: TransactionalProducer) -> None:
        producer.begin()
        await producer.send("flights", 0, ONE)
        brokers.script[EndTxnRequest] = [
            ErrorCode.CONCURRENT_TRANSACTIONS,
            ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
            ErrorCode.COORDINATOR_NOT_AVAILABLE,
            ErrorCode.NOT_COORDINATOR,
        ]
        await producer.commit()
        assert brokers.ends() == [True] * 5

    tell(story)


def test_a_leader_that_fences_leaves_the_last_word_to_the_coordinator() -> None:
    """The transaction may just have timed out."""

    async def story(brokers: Brokers, producer: TransactionalProducer) -> None:
        producer.begin()
        brokers.script[ProduceRequest] = [ErrorCode.INVALID_PRODUCER_EPOCH]
        with pytest.raises(MustAbort):
            await producer.send("flights", 0, ONE)
        brokers.script[EndTxnRequest] = [ErrorCode.PRODUCER_FENCED]
        with pytest.raises(ProducerFenced):
            await producer.abort()

    tell(story)
