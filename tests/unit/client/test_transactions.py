"""The transactional producer: the calls that each state allows, and the requests that it sends."""

from __future__ import annotations

import asyncio

import pytest

from tests.unit.client.scripted_brokers import NO_ANSWER, Brokers, tell
from tidelog.client.errors import RequestRefused
from tidelog.client.groups.admin import Place
from tidelog.client.groups.membership_requests import GroupMembership
from tidelog.client.transactions.errors import WrongCall
from tidelog.client.transactions.producer import TransactionalProducer
from tidelog.client.transactions.settings import TransactionVersion
from tidelog.protocol.error_codes import ErrorCode
from tidelog.protocol.schemas.produce import ProduceRequest
from tidelog.protocol.schemas.transactions import InitProducerIdRequest
from tidelog.records.records import NewRecord

V1, V2 = TransactionVersion.V1, TransactionVersion.V2
PID = 7
ONE = [NewRecord(b"one")]
both_versions = pytest.mark.parametrize("version", [V1, V2])


def test_nothing_may_be_done_before_the_transactional_id_is_taken_over() -> None:
    async def story(brokers: Brokers, producer: TransactionalProducer) -> None:
        with pytest.raises(WrongCall):
            producer.begin()
        for call in (producer.send("flights", 0, ONE), producer.commit(), producer.abort()):
            with pytest.raises(WrongCall):
                await call
        assert brokers.told == []

    tell(story, initialised=False)


def test_transactions_do_not_nest_and_the_id_is_taken_over_once() -> None:
    async def story(brokers: Brokers, producer: TransactionalProducer) -> None:
        for call in (producer.send("flights", 0, ONE), producer.commit(), producer.abort()):
            with pytest.raises(WrongCall, match="no transaction was begun"):
                await call
        producer.begin()
        with pytest.raises(WrongCall, match="a transaction is open"):
            producer.begin()
        with pytest.raises(WrongCall):
            await producer.init_transactions()
        assert brokers.told == []

    tell(story)


@both_versions
def test_begin_and_the_end_of_an_empty_transaction_are_local(version: TransactionVersion) -> None:
    async def story(brokers: Brokers, producer: TransactionalProducer) -> None:
        producer.begin()
        await producer.commit()
        producer.begin()
        await producer.abort()
        assert brokers.told == []

    tell(story, version)


def test_an_id_that_is_still_being_taken_from_another_is_asked_for_again() -> None:
    async def story(brokers: Brokers, producer: TransactionalProducer) -> None:
        brokers.script[InitProducerIdRequest] = [
            ErrorCode.CONCURRENT_TRANSACTIONS,
            NO_ANSWER,
            ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ]
        assert await producer.init_transactions() == (PID, 0)
        assert brokers.sent() == ["InitProducerId"] * 4

    tell(story, initialised=False)


def test_a_timeout_that_the_cluster_does_not_allow_is_no_matter_of_time() -> None:
    async def story(brokers: Brokers, producer: TransactionalProducer) -> None:
        brokers.script[InitProducerIdRequest] = [ErrorCode.INVALID_TRANSACTION_TIMEOUT]
        with pytest.raises(RequestRefused) as refused:
            await producer.init_transactions()
        assert refused.value.code == ErrorCode.INVALID_TRANSACTION_TIMEOUT

    tell(story, initialised=False)


def test_in_the_first_version_a_partition_is_enlisted_once_before_its_first_batch() -> None:
    async def story(brokers: Brokers, producer: TransactionalProducer) -> None:
        for _ in range(2):
            producer.begin()
            assert await producer.send("flights", 0, ONE * 3) == 40
            assert await producer.send("flights", 0, ONE) == 40
            assert await producer.send("flights", 1, ONE) == 40
            await producer.commit()
        once = ["AddPartitionsToTxn", "Produce", "Produce", "AddPartitionsToTxn", "Produce"]
        assert brokers.sent() == [*once, "EndTxn"] * 2
        # The epoch stays, so the sequences continue.
        assert {each.producer_epoch for each in brokers.batches} == {0}
        assert [each.base_sequence for each in brokers.batches] == [0, 3, 0, 4, 7, 1]
        assert all(each.is_transactional for each in brokers.batches)

    tell(story)


def test_in_the_second_version_batches_enlist_and_each_transaction_has_its_epoch() -> None:
    async def story(brokers: Brokers, producer: TransactionalProducer) -> None:
        for _ in range(2):
            producer.begin()
            await producer.send("flights", 0, ONE * 3)
            await producer.send("flights", 0, ONE)
            await producer.send_offsets("g", {Place("in", 0): 3})
            await producer.commit()
        assert brokers.sent() == ["Produce", "Produce", "TxnOffsetCommit", "EndTxn"] * 2
        assert [each.producer_epoch for each in brokers.batches] == [0, 0, 1, 1]
        assert [each.base_sequence for each in brokers.batches] == [0, 3, 0, 3]

    tell(story, V2)


def test_offsets_carry_their_group_member_or_none() -> None:
    async def story(brokers: Brokers, producer: TransactionalProducer) -> None:
        producer.begin()
        offsets = {Place("in", 1): 17, Place("in", 0): 3}
        await producer.send_offsets("g", offsets)
        member = GroupMembership("g", "m-1", "instance", 4, False, ())
        await producer.send_offsets("g", offsets, member)
        assert brokers.sent() == ["AddOffsetsToTxn", "TxnOffsetCommit", "TxnOffsetCommit"]
        _, alone, named = brokers.told
        assert (alone.generation_id, alone.member_id, alone.group_instance_id) == (-1, "", None)
        assert (named.generation_id, named.member_id) == (4, "m-1")
        assert named.group_instance_id == "instance"
        (topic,) = named.topics
        assert [(p.partition_index, p.committed_offset) for p in topic.partitions] == [
            (0, 3),
            (1, 17),
        ]

    tell(story)


def test_a_commit_waits_for_all_that_is_being_sent() -> None:
    async def story(brokers: Brokers, producer: TransactionalProducer) -> None:
        producer.begin()
        leader = brokers.cluster.brokers[1]
        await producer.send("flights", 1, ONE)
        leader.holding = True
        sending = asyncio.create_task(producer.send("flights", 1, ONE))
        await asyncio.sleep(5)
        committing = asyncio.create_task(producer.commit())
        await asyncio.sleep(5)
        assert len(brokers.batches) == 2
        assert brokers.ends() == []
        leader.release()
        await asyncio.gather(sending, committing)
        assert brokers.ends() == [True]

    tell(story)


def test_a_batch_without_an_answer_is_sent_again_as_it_was() -> None:
    async def story(brokers: Brokers, producer: TransactionalProducer) -> None:
        brokers.script[ProduceRequest] = [
            NO_ANSWER,
            ErrorCode.NOT_LEADER_OR_FOLLOWER,
            ErrorCode.DUPLICATE_SEQUENCE_NUMBER,
        ]
        producer.begin()
        assert await producer.send("flights", 0, ONE) == -1
        assert len(brokers.batches) == 3
        assert len(set(brokers.batches)) == 1
        await producer.commit()

    tell(story)
