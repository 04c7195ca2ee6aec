"""The transactional producer: which call is allowed when, what it sends, what each error means."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import pytest

from tests.unit.client.scripted_broker import Answer
from tests.unit.client.scripted_cluster import ScriptedCluster
from tests.unit.client.simulated import World, play
from tidelog.client.errors import RequestFailed, RequestOutcome, RequestRefused
from tidelog.client.groups.admin import Place
from tidelog.client.groups.membership_requests import Membership
from tidelog.client.pool import Client
from tidelog.client.transactions.errors import MustAbort, ProducerFenced, WrongCall
from tidelog.client.transactions.producer import TransactionalProducer
from tidelog.client.transactions.settings import TransactionalProducerSettings, TransactionVersion
from tidelog.entropy import SeededEntropy
from tidelog.protocol.error_codes import ErrorCode
from tidelog.protocol.schemas.coordinators import (
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from tidelog.protocol.schemas.produce import (
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)
from tidelog.protocol.schemas.transactions import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopicResult,
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)
from tidelog.records.batch import BatchHeader
from tidelog.records.records import NewRecord

V1, V2 = TransactionVersion.V1, TransactionVersion.V2
OK = ErrorCode.NONE
NO_ANSWER = None
PID = 7
ONE = [NewRecord(b"one")]
both_versions = pytest.mark.parametrize("version", [V1, V2])
Script = dict[type, list[ErrorCode | None]]


class Brokers:
    """A cluster whose first broker coordinates; it has errors, or no answer, for the next requests
    of a type as `script` says, and then none."""

    def __init__(self, cluster: ScriptedCluster) -> None:
        self.cluster = cluster
        self.script: Script = defaultdict(list)
        self.epoch = 0
        self.own_epochs = False
        self.batches: list[BatchHeader] = []
        self.told: list[Any] = []
        for broker in cluster.brokers.values():
            broker.on(FindCoordinatorRequest, self._found)
            broker.on(ProduceRequest, self._produced)
        self.coordinator = cluster.brokers[0]
        answers: dict[type, Callable[[Any, int], Answer]] = {
            InitProducerIdRequest: self._initialised,
            AddPartitionsToTxnRequest: self._added,
            AddOffsetsToTxnRequest: lambda _, code: AddOffsetsToTxnResponse(error_code=code),
            TxnOffsetCommitRequest: self._committed,
            EndTxnRequest: self._ended,
        }
        for kind, answer in answers.items():
            self.coordinator.on(kind, partial(self._answer, answer))

    def sent(self) -> list[str]:
        """The kinds of requests about transactions, in order."""
        return [type(each).__name__.removesuffix("Request") for each in self.told]

    def ends(self) -> list[bool]:
        """What was asked for: commit or abort."""
        return [each.committed for each in self.told if isinstance(each, EndTxnRequest)]

    def _answer(self, answer: Callable[[Any, int], Answer], request: Any) -> Answer:
        self.told.append(request)
        errors = self.script[type(request)]
        code = errors.pop(0) if errors else OK
        return None if code is NO_ANSWER else answer(request, code)

    def _found(self, request: FindCoordinatorRequest) -> Answer:
        host, port = self.coordinator.address
        (key,) = request.coordinator_keys
        found = Coordinator(key=key, node_id=0, host=host, port=port)
        return FindCoordinatorResponse(coordinators=[found])

    def _initialised(self, request: InitProducerIdRequest, code: int) -> Answer:
        if code:
            return InitProducerIdResponse(error_code=code)
        self.epoch += request.producer_epoch >= 0
        return InitProducerIdResponse(producer_id=PID, producer_epoch=self.epoch)

    def _added(self, request: AddPartitionsToTxnRequest, code: int) -> Answer:
        topics = [
            AddPartitionsToTxnTopicResult(
                name=topic.name,
                results_by_partition=[
                    AddPartitionsToTxnPartitionResult(
                        partition_index=number, partition_error_code=code
                    )
                    for number in topic.partitions
                ],
            )
            for topic in request.v3_and_below_topics
        ]
        return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=topics)

    def _committed(self, request: TxnOffsetCommitRequest, code: int) -> Answer:
        topics = [
            TxnOffsetCommitResponseTopic(
                name=topic.name,
                partitions=[
                    TxnOffsetCommitResponsePartition(
                        partition_index=each.partition_index, error_code=code
                    )
                    for each in topic.partitions
                ],
            )
            for topic in request.topics
        ]
        return TxnOffsetCommitResponse(topics=topics)

    def _ended(self, request: EndTxnRequest, code: int) -> Answer:
        if code or not self.own_epochs:
            return EndTxnResponse(error_code=code)
        self.epoch += 1
        return EndTxnResponse(producer_id=PID, producer_epoch=self.epoch)

    def _produced(self, request: ProduceRequest) -> Answer:
        self.told.append(request)
        errors = self.script[ProduceRequest]
        code = errors.pop(0) if errors else OK
        (topic,) = request.topic_data
        (partition,) = topic.partition_data
        assert partition.records is not None
        self.batches.append(BatchHeader.parse(bytes(partition.records)))
        result = PartitionProduceResponse(
            index=partition.index, error_code=code or OK, base_offset=-1 if code else 40
        )
        response = ProduceResponse(
            responses=[
                TopicProduceResponse(
                    name=topic.name, topic_id=topic.topic_id, partition_responses=[result]
                )
            ]
        )
        return None if code is NO_ANSWER else response


Story = Callable[[Brokers, TransactionalProducer], Awaitable[None]]


def tell(story: Story, version: TransactionVersion = V1, *, initialised: bool = True) -> None:
    """Play a story of one producer."""

    async def main(world: World) -> None:
        cluster = await ScriptedCluster.start(world)
        brokers = Brokers(cluster)
        brokers.own_epochs = version is V2
        async with world.client(cluster.brokers[0].address) as client:
            producer = new_producer(world, client, version)
            if initialised:
                await producer.init_transactions()
                brokers.told.clear()
            await story(brokers, producer)

    play(main)


def new_producer(
    world: World, client: Client, version: TransactionVersion
) -> TransactionalProducer:
    settings = TransactionalProducerSettings(
        version=version, delivery_timeout_ms=50_000, api_timeout_ms=50_000
    )
    return TransactionalProducer(client, world.process.clock, SeededEntropy(1), "txn", settings)


# Which call is allowed when.


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
def test_to_begin_is_local_and_so_is_the_end_of_what_is_empty(version: TransactionVersion) -> None:
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


# What is sent.


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
        # The epoch stays, and with it the sequences go on.
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


def test_offsets_say_who_has_read_up_to_them_or_nothing() -> None:
    async def story(brokers: Brokers, producer: TransactionalProducer) -> None:
        producer.begin()
        offsets = {Place("in", 1): 17, Place("in", 0): 3}
        await producer.send_offsets("g", offsets)
        member = Membership("g", "m-1", "instance", 4, False, ())
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


# What errors mean.


@both_versions
def test_nothing_is_committed_of_a_transaction_of_which_a_send_failed(
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
        # What of the failed batch is in the log is not known: sequences begin again.
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
    """A delayed commit would be taken for one of the next transaction (KAFKA-17754)."""

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


def test_of_a_commit_that_was_asked_for_twice_a_fence_does_not_tell_the_outcome() -> None:
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
