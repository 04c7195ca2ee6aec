"""Edge cases of transactions through a whole broker: records outside a transaction, coordinators on
other brokers, and errors for older versions."""

from __future__ import annotations

import pytest

from tests.unit.broker.handlers.transactional_topic import SETTINGS, serving
from tests.unit.broker.one_broker import TOPIC, OneBroker, World, produce_request, run
from tests.unit.broker.transactional_client import (
    FIRST,
    GROUP,
    SECOND,
    TransactionalClient,
    ask,
    committed_offset,
    find,
    loaded,
    read,
)
from tidelog.broker.handlers.data.produce import produce
from tidelog.broker.handlers.groups.group_offsets import offset_commit
from tidelog.broker.handlers.transactions.transactional_offsets import txn_offset_commit
from tidelog.broker.handlers.transactions.transactions import (
    add_offsets_to_txn,
    add_partitions_to_txn,
    end_txn,
    init_producer_id,
)
from tidelog.clock import SystemClock
from tidelog.protocol.error_codes import ErrorCode
from tidelog.protocol.schemas.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from tidelog.protocol.schemas.transactions import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
    EndTxnRequest,
    InitProducerIdRequest,
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from tidelog.records.records import NewRecord, encode_batch
from tidelog.storage.stores.memory import MemoryStore

OK = ErrorCode.NONE
FENCED, OLD_FENCED = ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH
both_versions = pytest.mark.parametrize("version", [FIRST, SECOND])


@both_versions
def test_an_offset_committed_beside_the_transaction_stays_when_it_is_aborted(version: int) -> None:
    """`commitSync` in the loop is not part of the transaction, which is why applications must not
    use it."""

    async def story() -> None:
        async with serving() as broker:
            producer = TransactionalClient(broker, version=version)
            await producer.init()
            assert await producer.send(b"x") is OK
            assert await commit_plainly(broker, 7) is OK
            assert await producer.abort() is OK
            assert await committed_offset(broker) == 7
            assert await producer.commit_offset(9) is OK
            assert await producer.abort() is OK
            assert await committed_offset(broker) == 7

    run(story)


async def commit_plainly(broker: OneBroker, offset: int, version: int = 6) -> ErrorCode:
    place = OffsetCommitRequestPartition(committed_offset=offset, committed_metadata="")
    topics = [OffsetCommitRequestTopic(name=TOPIC, partitions=[place])]
    request = OffsetCommitRequest(group_id=GROUP, topics=topics)
    response = await ask(broker, offset_commit, request, version)
    return ErrorCode(response.topics[0].partitions[0].error_code)


@both_versions
def test_a_transaction_of_offsets_alone(version: int) -> None:
    async def story() -> None:
        async with serving() as broker:
            producer = TransactionalClient(broker, version=version)
            await producer.init()
            for offset in (3, 8):
                assert await producer.commit_offset(offset) is OK
                assert await producer.commit() is OK
                assert await committed_offset(broker) == offset
            assert (await broker.offsets(-1)).offset == 0

    run(story)


@both_versions
def test_equal_content_is_not_taken_for_a_repetition(version: int) -> None:
    async def story() -> None:
        async with serving() as broker:
            producer = TransactionalClient(broker, version=version)
            await producer.init()
            assert await producer.send(b"same") is OK
            assert await producer.send(b"same") is OK
            assert await producer.commit() is OK
            assert await read(broker) == [b"same", b"same"]

    run(story)


@both_versions
def test_the_transaction_is_looked_at_before_the_group(version: int) -> None:
    """The producer may not commit, and the group has no such member. The answer is the error of the
    transaction."""

    async def story() -> None:
        async with serving() as broker:
            zombie = TransactionalClient(broker, version=version)
            await zombie.init()
            assert await zombie.send(b"x") is OK
            assert await TransactionalClient(broker, version=version).init() is OK
            assert await commit_offsets(zombie, member="nobody") is OLD_FENCED
            stranger = TransactionalClient(broker, "stranger", version)
            await stranger.init()
            told = await commit_offsets(stranger, member="nobody")
            # Under the first version no request has added the group's partition.
            abortable = ErrorCode.TRANSACTION_ABORTABLE
            assert told is (abortable if version == FIRST else ErrorCode.ILLEGAL_GENERATION)

    run(story)


async def commit_offsets(
    producer: TransactionalClient, member: str, version: int | None = None
) -> ErrorCode:
    request = TxnOffsetCommitRequest(
        transactional_id=producer.transactional_id,
        group_id=GROUP,
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        generation_id=4,
        member_id=member,
        topics=[
            TxnOffsetCommitRequestTopic(
                name=TOPIC, partitions=[TxnOffsetCommitRequestPartition(committed_offset=1)]
            )
        ],
    )
    if version is None:
        version = 5 if producer.version == SECOND else 4
    response = await ask(producer.broker, txn_offset_commit, request, version)
    return ErrorCode(response.topics[0].partitions[0].error_code)


def test_a_broker_that_does_not_coordinate_says_so_and_to_batches_to_try_again() -> None:
    async def story() -> None:
        async with World(MemoryStore(SystemClock()), **SETTINGS).broker() as broker:
            await broker.create_topic()
            producer = TransactionalClient(broker, version=FIRST)
            producer.producer_id, producer.epoch = 1000, 0
            elsewhere = ErrorCode.NOT_COORDINATOR
            request = InitProducerIdRequest(transactional_id="t", transaction_timeout_ms=60_000)
            refused = await ask(broker, init_producer_id, request, 4)
            assert refused.error_code == elsewhere
            assert (refused.producer_id, refused.producer_epoch) == (-1, -1)
            assert await producer.add(0) is elsewhere
            assert await producer.commit() is elsewhere
            for version in (FIRST, SECOND):
                producer.version = version
                sent = await producer.send(b"x", adds=False)
                assert sent is ErrorCode.NOT_ENOUGH_REPLICAS
            assert await producer.commit_offset(1, adds=False) is elsewhere

    run(story)


@pytest.mark.parametrize(("producer_id", "epoch"), [(5, -1), (-1, 0)])
@pytest.mark.parametrize("transactional_id", [None, "t"])
def test_half_an_identity_is_none(
    transactional_id: str | None, producer_id: int, epoch: int
) -> None:
    async def story() -> None:
        async with serving() as broker:
            assert await find(broker, "t", 1) is OK
            await loaded(broker)
            request = InitProducerIdRequest(
                transactional_id=transactional_id,
                transaction_timeout_ms=60_000,
                producer_id=producer_id,
                producer_epoch=epoch,
            )
            answer = await ask(broker, init_producer_id, request, 4)
            assert answer.error_code == ErrorCode.INVALID_REQUEST
            assert answer.producer_id == -1

    run(story)


@pytest.mark.parametrize("version", [0, 1, 2, 3, 4, 5])
def test_a_fenced_producer_is_told_so_in_the_words_of_its_version(version: int) -> None:
    async def story() -> None:
        async with serving() as broker:
            zombie = TransactionalClient(broker, version=FIRST)
            await zombie.init()
            assert await zombie.send(b"zombie") is OK
            heir = TransactionalClient(broker)
            assert await heir.init() is OK
            told = await asked_by_a_zombie(broker, zombie, version)
            since = {"InitProducerId": 4, "AddPartitions": 2, "AddOffsets": 2, "EndTxn": 2}
            assert told == {
                request: FENCED if version >= first else OLD_FENCED
                for request, first in since.items()
                if request in told
            } | {"Produce": OLD_FENCED, "TxnOffsetCommit": OLD_FENCED}
            assert await heir.send(b"heir") is OK
            assert await heir.commit() is OK
            assert await committed_offset(broker) == -1

    run(story)


async def asked_by_a_zombie(
    broker: OneBroker, zombie: TransactionalClient, version: int
) -> dict[str, ErrorCode]:
    """The answer to each request that has this version."""
    identity = {
        "transactional_id": zombie.transactional_id,
        "producer_id": zombie.producer_id,
        "producer_epoch": zombie.epoch,
    }
    codes: dict[str, int] = {}
    if version >= 3:
        init = InitProducerIdRequest(transaction_timeout_ms=60_000, **identity)
        codes["InitProducerId"] = (await ask(broker, init_producer_id, init, version)).error_code
    if version <= 3:
        codes["AddPartitions"] = await zombie.add(0, version=version)
    if version <= 4:
        offsets = AddOffsetsToTxnRequest(group_id=GROUP, **identity)
        codes["AddOffsets"] = (await ask(broker, add_offsets_to_txn, offsets, version)).error_code
    end = EndTxnRequest(committed=True, **identity)
    codes["EndTxn"] = (await ask(broker, end_txn, end, version)).error_code
    request = TxnOffsetCommitRequest(
        group_id=GROUP,
        topics=[
            TxnOffsetCommitRequestTopic(
                name=TOPIC, partitions=[TxnOffsetCommitRequestPartition(committed_offset=1)]
            )
        ],
        **identity,
    )
    answer = await ask(broker, txn_offset_commit, request, version)
    codes["TxnOffsetCommit"] = answer.topics[0].partitions[0].error_code
    data = encode_batch(
        [NewRecord(b"late", b"k", timestamp=1000)],
        producer_id=zombie.producer_id,
        producer_epoch=zombie.epoch,
        base_sequence=1,
        is_transactional=True,
    )
    late = produce_request(TOPIC, 0, data, -1, 5000)
    late.transactional_id = zombie.transactional_id
    produced = await ask(broker, produce, late, version + 7)
    codes["Produce"] = produced.responses[0].partition_responses[0].error_code
    return {name: ErrorCode(code) for name, code in codes.items()}


@pytest.mark.parametrize("version", [4, 5])
def test_brokers_ask_for_several_producers_at_once_and_may_only_verify(version: int) -> None:
    async def story() -> None:
        async with serving(partitions=2) as broker:
            one, two = (TransactionalClient(broker, name) for name in ("one", "two"))
            await one.init()
            await two.init()

            async def asked(verify_only: bool, *partitions: int) -> list[list[ErrorCode]]:
                request = AddPartitionsToTxnRequest(
                    transactions=[
                        AddPartitionsToTxnTransaction(
                            transactional_id=each.transactional_id,
                            producer_id=each.producer_id,
                            producer_epoch=each.epoch + stale,
                            verify_only=verify_only,
                            topics=[
                                AddPartitionsToTxnTopic(name=TOPIC, partitions=list(partitions))
                            ],
                        )
                        for each, stale in ((one, 0), (two, -1))
                    ]
                )
                response = await ask(broker, add_partitions_to_txn, request, version)
                return [
                    [
                        ErrorCode(partition.partition_error_code)
                        for partition in each.topic_results[0].results_by_partition
                    ]
                    for each in response.results_by_transaction
                ]

            abortable = ErrorCode.TRANSACTION_ABORTABLE
            assert await asked(True, 0) == [[abortable], [FENCED]]
            assert await asked(False, 0) == [[OK], [FENCED]]
            assert await asked(True, 0, 1) == [[OK, abortable], [FENCED, FENCED]]
            assert await one.commit() is OK

    run(story)
