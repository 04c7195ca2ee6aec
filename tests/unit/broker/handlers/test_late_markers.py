"""Late markers (H1), markers of foreign coordinators, and markers that cannot be written yet."""

from __future__ import annotations

import pytest

from tests.unit.broker.handlers.transactional_topic import serving
from tests.unit.broker.one_broker import TOPIC, OneBroker, batch, run
from tests.unit.broker.sink_world import world
from tests.unit.broker.transactional_client import (
    FIRST,
    GROUP,
    SECOND,
    TransactionalClient,
    ask,
    committed_offset,
    read,
)
from tidelog.broker.handlers.transactions.markers import write_txn_markers
from tidelog.broker.handlers.transactions.transactions import init_producer_id
from tidelog.broker.partitions.log_writer import EndedTransaction
from tidelog.broker.partitions.partitions import Partition
from tidelog.coordinator.hashing import partition_for
from tidelog.coordinator.internal_topics import GROUP_TOPIC
from tidelog.errors import CorruptObject
from tidelog.protocol.error_codes import ErrorCode
from tidelog.protocol.schemas.transactions import (
    InitProducerIdRequest,
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from tidelog.records.control import MarkerType, control_batch

OK = ErrorCode.NONE
FENCED, OLD_FENCED = ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH
both_versions = pytest.mark.parametrize("version", [FIRST, SECOND])


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


@pytest.mark.parametrize("commit", [True, False])
def test_a_delayed_marker_of_the_first_version_does_not_end_the_next_transaction(
    commit: bool,
) -> None:
    """Both transactions have the same epoch. The ordinal tells them apart, in the partition and in
    the group's offsets."""

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
    """Tools and foreign coordinators send such markers. The marker ends the open transaction; under
    the second version it needs a higher epoch."""

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
                # The answer was lost, so the marker is sent again, and finds no open transaction.
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
            # The other partition has its marker. Its next batch waits for the transaction's end.
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
                await broker.broker.environment.clock.sleep(0.001)
            assert await producer.commit() is OK
            assert await stable_offset(broker) == 2
            assert (await broker.offsets(-1, 1, committed=True)).offset == 5

    run(story)


@pytest.mark.parametrize(("producer_id", "epoch"), [(-1, 0), (-2, 0), (5, -1)])
def test_a_marker_of_no_producer_is_refused_and_the_partition_is_served(
    producer_id: int, epoch: int
) -> None:
    """A checkpoint could not hold such a producer."""
    here = world()

    async def story() -> None:
        async with here.broker() as one:
            await one.create_topic()
            await one.produce(batch(b"x"))
            without_producer = TransactionalClient(one)
            without_producer.producer_id, without_producer.epoch = producer_id, epoch
            assert await mark(one, without_producer, TOPIC) == [ErrorCode.INVALID_RECORD]
            assert await read(one) == [b"x"]
        async with here.broker() as one:
            assert await read(one) == [b"x"]

    run(story)
