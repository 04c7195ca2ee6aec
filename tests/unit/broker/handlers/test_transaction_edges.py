"""Rules on transactions at their edges, through a whole broker: late markers, markers of foreign
tools, what is in no transaction, coordinators that are elsewhere, what older versions are told."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tests.unit.broker.one_broker import TOPIC, OneBroker, World, batch, produce_request, run
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
from tidelog.broker.handlers.transactions.markers import write_txn_markers
from tidelog.broker.handlers.transactions.transactional_offsets import txn_offset_commit
from tidelog.broker.handlers.transactions.transactions import (
    add_offsets_to_txn,
    add_partitions_to_txn,
    end_txn,
    init_producer_id,
)
from tidelog.broker.partitions.log_writer import EndedTransaction
from tidelog.broker.partitions.partitions import Partition
from tidelog.clock import SystemClock
from tidelog.coordinator.hashing import partition_for
from tidelog.coordinator.internal_topics import GROUP_TOPIC
from tidelog.errors import CorruptObject
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
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from tidelog.records.control import MarkerType, control_batch
from tidelog.records.records import NewRecord, encode_batch
from tidelog.storage.stores.memory import MemoryStore

OK = ErrorCode.NONE
FENCED, OLD_FENCED = ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH
SETTINGS = {
    "offsets_topic_num_partitions": 3,
    "transaction_state_log_num_partitions": 3,
    "group_initial_rebalance_delay_ms": 0,
}
both_versions = pytest.mark.parametrize("version", [FIRST, SECOND])


@asynccontextmanager
async def serving(partitions: int = 1) -> AsyncIterator[OneBroker]:
    """A broker with a topic, and with a coordinator for the group."""
    async with World(MemoryStore(SystemClock()), **SETTINGS).broker() as broker:
        await broker.create_topic(partitions=partitions)
        assert await find(broker, GROUP, 0) is OK
        await loaded(broker)
        yield broker


async def stable_offset(broker: OneBroker) -> int:
    return (await broker.offsets(-1, committed=True)).offset


def hosted(broker: OneBroker, topic: str = TOPIC, number: int = 0) -> Partition:
    return broker.broker.writes.partitions.named(topic, number)


async def mark(
    broker: OneBroker,
    producer: TransactionalClient,
    *topics: str,
    commit: bool = True,
    epoch: int | None = None,
    coordinator_epoch: int = 0,
    version: int = FIRST,
) -> list[ErrorCode]:
    """WriteTxnMarkers for partition 0 of each topic, as a tool or a foreign coordinator asks."""
    marker = WritableTxnMarker(
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch if epoch is None else epoch,
        transaction_result=commit,
        topics=[WritableTxnMarkerTopic(name=each, partition_indexes=[0]) for each in topics],
        coordinator_epoch=coordinator_epoch,
        transaction_version=version,
    )
    response = await ask(broker, write_txn_markers, WriteTxnMarkersRequest(markers=[marker]), 2)
    (result,) = response.markers
    return [ErrorCode(each.partitions[0].error_code) for each in result.topics]


# Markers that come late (H1), and markers of others.


@pytest.mark.parametrize("commit", [True, False])
def test_a_delayed_marker_of_the_first_version_does_not_end_the_next_transaction(
    commit: bool,
) -> None:
    """Both transactions have the same epoch; the ordinal tells them apart, in the data and in the
    offsets of the group."""

    async def story() -> None:
        async with serving() as broker:
            producer = TransactionalClient(broker, version=FIRST)
            await producer.init()
            assert await producer.send(b"one") is OK
            assert await producer.commit_offset(3) is OK
            assert await producer.commit() is OK
            epoch = producer.epoch
            assert await producer.send(b"two") is OK
            assert await producer.commit_offset(5) is OK
            assert producer.epoch == epoch
            before = await stable_offset(broker)
            delayed = EndedTransaction(producer.producer_id, epoch, commit, 0, ordinal=1)
            offsets = hosted(broker, GROUP_TOPIC, partition_for(GROUP, 3))
            for partition in (hosted(broker), offsets):
                end = partition.log.next_offset
                broker.broker.coordination.coordinators.markers.write(partition, delayed)
                assert partition.log.next_offset == end
            assert await stable_offset(broker) == before == 2
            assert await committed_offset(broker, stable=False) == 3
            assert await committed_offset(broker) == -ErrorCode.UNSTABLE_OFFSET_COMMIT
            assert await producer.commit() is OK
            assert await committed_offset(broker) == 5
            assert await stable_offset(broker) == 4

    run(story)


def test_a_marker_that_names_no_transaction_follows_the_epochs_of_its_version() -> None:
    """Of a tool or a foreign coordinator: it ends what is open, under the second version only at
    a higher epoch."""

    async def story() -> None:
        async with serving() as broker:
            for version, bump in ((FIRST, 0), (SECOND, 1)):
                producer = TransactionalClient(broker, f"t{version}", version)
                await producer.init()
                assert await producer.send(b"x") is OK
                open_from = await stable_offset(broker)
                if version == SECOND:
                    assert await mark(broker, producer, TOPIC, version=SECOND) == [OLD_FENCED]
                assert await mark(broker, producer, TOPIC, epoch=-1) == [OLD_FENCED]
                assert await stable_offset(broker) == open_from
                higher = producer.epoch + bump
                told = await mark(broker, producer, TOPIC, epoch=higher, version=version)
                assert told == [OK]
                end = await stable_offset(broker)
                assert end == open_from + 2
                # The answer was lost: it is sent again, and nothing is open.
                again = await mark(broker, producer, TOPIC, epoch=higher, version=version)
                assert again == [OK]
                assert await stable_offset(broker) == end + 1

    run(story)


def test_each_partition_of_a_marker_has_its_own_answer() -> None:
    async def story() -> None:
        async with serving() as broker:
            producer = TransactionalClient(broker)
            await producer.init()
            assert await producer.send(b"x") is OK
            higher = producer.epoch + 1
            told = await mark(broker, producer, "missing", TOPIC, epoch=higher, coordinator_epoch=5)
            assert told == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, OK]
            late = await mark(broker, producer, TOPIC, epoch=higher, coordinator_epoch=4)
            assert late == [ErrorCode.TRANSACTION_COORDINATOR_FENCED]

    run(story)


def test_clients_do_not_write_markers() -> None:
    async def story() -> None:
        async with serving() as broker:
            producer = TransactionalClient(broker)
            await producer.init()
            assert await producer.send(b"x") is OK
            forged = control_batch(
                MarkerType.COMMIT,
                producer_id=producer.producer_id,
                producer_epoch=producer.epoch,
                coordinator_epoch=0,
                timestamp=1000,
            )
            answer = await broker.produce(forged, version=11)
            assert answer.error_code == ErrorCode.INVALID_RECORD
            assert await stable_offset(broker) == 0

    run(story)


# Decided and not complete: markers that cannot be written yet.


@both_versions
def test_until_its_markers_are_written_a_transaction_holds_up_its_producer_and_no_other(
    version: int,
) -> None:
    async def story() -> None:
        async with serving(partitions=2) as broker:
            producer = TransactionalClient(broker, version=version)
            await producer.init()
            assert await producer.send(b"x") is OK
            assert await producer.send(b"y", 1) is OK
            broken = hosted(broker)
            broken.fault = CorruptObject("some/key", "it is broken")
            assert await producer.commit() is OK
            # The other partition has its marker; its next batch waits for the transaction's end.
            assert (await broker.offsets(-1, 1, committed=True)).offset == 2
            assert (await broker.produce(batch(b"plain"), 1)).error_code == OK
            if version == FIRST:
                assert await producer.add(1) is ErrorCode.CONCURRENT_TRANSACTIONS
            else:
                assert await producer.send(b"z", 1) is ErrorCode.NOT_ENOUGH_REPLICAS
            assert await producer.commit_offset(1) is (
                ErrorCode.CONCURRENT_TRANSACTIONS
                if version == FIRST
                else ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
            )
            request = InitProducerIdRequest(transactional_id="t", transaction_timeout_ms=60_000)
            answer = await ask(broker, init_producer_id, request, 4)
            assert answer.error_code == ErrorCode.CONCURRENT_TRANSACTIONS
            broken.fault = None
            while await producer.send(b"z", 1) is not OK:
                await broker.broker.world.clock.sleep(0.001)
            assert await producer.commit() is OK
            assert await stable_offset(broker) == 2
            assert (await broker.offsets(-1, 1, committed=True)).offset == 5

    run(story)


# What is in a transaction, and what is not.


@both_versions
def test_an_offset_committed_beside_the_transaction_stays_when_it_is_aborted(version: int) -> None:
    """`commitSync` in the loop: no part of the transaction, which is why it must not be used."""

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


# Who is asked first, and who is asked in vain.


@both_versions
def test_the_transaction_is_looked_at_before_the_group(version: int) -> None:
    """Neither may the producer commit, nor is there such a member: the first is told."""

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
            # Under the first version nobody has added the group's partition.
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
            assert (await ask(broker, init_producer_id, request, 4)).error_code == elsewhere
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


# What clients of each version are told.


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
    """What each request of this version is answered, where it has that version."""
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
