"""A broker that reads its own fence in the metadata log ends at once, and names the reason (C9)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import pytest

from tests.unit.broker.dispatch.test_request_order import connected, listed, produced
from tests.unit.broker.one_broker import TOPIC, OneBroker, World, batch, produce_request, run
from tests.unit.broker.ownership.given_away import OTHER
from tests.unit.broker.rolled import hosted
from tests.unit.broker.sink_world import Sink, world
from tidelog.broker.handlers.data.adopt import adopt
from tidelog.broker.handlers.data.produce import produce
from tidelog.broker.partitions.partitions import Partition
from tidelog.broker.roll.recovered import RecoveredPartitions
from tidelog.clock import SystemClock
from tidelog.coordinator.cluster.log.metadata_log import MetadataLog
from tidelog.coordinator.cluster.membership.tenure_reports import TenureReports
from tidelog.coordinator.cluster.records.records import (
    BrokerFenced,
    IncarnationRetired,
    Succession,
)
from tidelog.entropy import SeededEntropy
from tidelog.errors import CorruptObject, Fenced, Refused
from tidelog.identifiers import Epoch, Slot, TopicId
from tidelog.protocol.error_codes import ErrorCode
from tidelog.protocol.schemas.own.adopt import AdoptPartition, AdoptRequest, AdoptTopic
from tidelog.storage.object_store import ObjectStore, StoreNotApplied
from tidelog.storage.stores.memory import MemoryStore


async def fence(store: ObjectStore, one: OneBroker) -> int:
    """Another broker fences this one. Returns the entry that says so."""
    log = await MetadataLog.open(store, SystemClock(), SeededEntropy(77))
    other = Epoch(await log.append(None, lambda _: (OTHER,)))
    fenced = await log.append(
        other, lambda _: (BrokerFenced(one.broker.membership.incarnation.epoch),)
    )
    await log.append(other, lambda _: (BrokerFenced(other),))
    await log.close()
    return fenced


async def succeed(store: ObjectStore, topic_id: TopicId, partitions: int) -> None:
    """Another broker takes over the topic's partitions from the only one that lives."""
    log = await MetadataLog.open(store, SystemClock(), SeededEntropy(77))
    (dead,) = log.state.live_epochs.values()
    other = Epoch(await log.append(None, lambda _: (OTHER,)))
    await log.append(other, lambda _: (BrokerFenced(dead),))
    succession = Succession(topic_id, other, tuple(range(partitions)))
    await log.append(other, lambda _: (IncarnationRetired(dead, Slot(0), (succession,)),))
    await log.close()


def test_a_broker_that_reads_its_fence_ends_and_is_recovered_from() -> None:
    here = World(MemoryStore(SystemClock()))

    async def story() -> None:
        async with here.broker() as one:
            await one.create_topic()
            async with connected(one) as pipe:
                await pipe.ask(produced(b"acknowledged"))
                entry = await fence(here.store, one)
                # The broker's WAL is not sealed yet, so only the metadata log tells of the fence.
                await one.broker.membership.metadata.refresh()
                assert not one.broker.membership.may_serve_reads()
                assert (await one.offsets(-1)).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
                with pytest.raises(Fenced, match=f"fenced by another broker, as entry {entry} of"):
                    await one.run
                with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
                    await pipe.ask(listed(-1))
        async with here.broker() as one:
            assert [each.value for each in await one.read_all()] == [b"acknowledged"]
            assert (await one.produce(batch(b"more"))).base_offset == 1

    run(story)


def test_a_broker_finds_its_fence_without_a_request() -> None:
    here = World(MemoryStore(SystemClock()), broker_heartbeat_interval_ms=100)

    async def story() -> None:
        async with here.broker() as one:
            await fence(here.store, one)
            with pytest.raises(Fenced):
                await one.run

    run(story)


LATER = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 2}
"""A batch of a producer whose batches before it went to another broker."""


def test_a_broker_reads_of_its_fence_before_it_calls_a_batch_out_of_order() -> None:
    here = World(MemoryStore(SystemClock()))

    async def story() -> None:
        async with here.broker() as one:
            await one.create_topic()
            gap = await one.produce(batch(b"gap", **LATER))
            assert gap.error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
            await fence(here.store, one)
            assert one.broker.membership.may_serve_reads()
            gap = await one.produce(batch(b"gap", **LATER))
            assert gap.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
            with pytest.raises(Fenced):
                await one.run

    run(story)


def test_a_batch_beside_one_out_of_order_is_acknowledged() -> None:
    here = World(MemoryStore(SystemClock()))

    async def story() -> None:
        async with here.broker() as one:
            await one.create_topic(partitions=2)
            request = produce_request(TOPIC, 0, batch(b"good"), -1, 5000)
            late = produce_request(TOPIC, 1, batch(b"gap", **LATER), -1, 5000)
            request.topic_data[0].partition_data += late.topic_data[0].partition_data
            answer = await produce(one.broker.services.data, request, one.context(9))
            assert answer is not None
            codes = [each.error_code for each in answer.responses[0].partition_responses]
            assert codes == [ErrorCode.NONE, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER]
            assert [each.value for each in await one.read_all()] == [b"good"]

    run(story)


def test_a_broker_reads_of_its_fence_before_it_refuses_an_adoption_by_an_epoch() -> None:
    here = world()

    async def story() -> None:
        async with here.broker() as one:
            sink = Sink(here)
            staged, spent, client = await sink.adoptable(one)
            assert await client.init() is ErrorCode.NONE
            topic_id = hosted(one).log.partition.topic_id
            partition = AdoptPartition(partition_index=0, staged_ids=[staged])
            request = AdoptRequest(
                transactional_id=spent.transactional_id,
                producer_id=spent.identity.producer_id,
                producer_epoch=spent.identity.epoch,
                topics=[AdoptTopic(topic_id=topic_id, partitions=[partition])],
            )

            async def refusal() -> int:
                answer = await adopt(one.broker.services.data, request, one.context(1))
                return answer.topics[0].partitions[0].error_code

            assert await refusal() == ErrorCode.INVALID_PRODUCER_EPOCH
            await fence(here.store, one)
            assert one.broker.membership.may_serve_reads()
            assert await refusal() == ErrorCode.NOT_LEADER_OR_FOLLOWER
            with pytest.raises(Fenced):
                await one.run

    run(story)


async def fail(_: MetadataLog) -> None:
    raise StoreNotApplied("cluster/log/", "the store is away")


async def hang(_: MetadataLog) -> None:
    await asyncio.Event().wait()


@pytest.mark.parametrize("refresh", [fail, hang])
def test_no_batch_is_called_out_of_order_while_the_metadata_log_cannot_be_read(
    refresh: Callable[[MetadataLog], Awaitable[None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    here = World(MemoryStore(SystemClock()))

    async def story() -> None:
        async with here.broker(politely=False) as one:
            await one.create_topic()
            gap = await one.produce(batch(b"gap", **LATER))
            assert gap.error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
            monkeypatch.setattr(MetadataLog, "refresh", refresh)
            gap = await one.produce(batch(b"gap", **LATER), timeout_ms=200)
            assert gap.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER

    run(story)


def test_a_broker_that_stops_fences_itself_though_its_last_report_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    here = World(MemoryStore(SystemClock()))

    async def refuse(_: TenureReports) -> None:
        raise Refused("the report is refused")

    async def story() -> None:
        async with here.broker() as one:
            monkeypatch.setattr(TenureReports, "flush", refuse)
            epoch = one.broker.membership.incarnation.epoch
        log = await MetadataLog.open(here.store, SystemClock(), SeededEntropy(77))
        assert epoch not in log.state.live_epochs.values()
        await log.close()

    run(story)


def test_a_broker_that_is_fenced_while_it_opens_partitions_finds_no_fault_with_them(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its successor has rolled more records than its log has."""
    here = World(MemoryStore(SystemClock()))
    advance = RecoveredPartitions.advance

    async def overtaken(self: RecoveredPartitions, partitions: Sequence[Partition]) -> None:
        await advance(self, partitions)
        for partition in partitions:
            partition.fault = CorruptObject("key", "the table ends ahead of the log")
        await succeed(here.store, partitions[0].log.partition.topic_id, len(partitions))

    async def story() -> None:
        async with here.broker() as one:
            await one.create_topic()
            await one.produce(batch(b"a"))
        monkeypatch.setattr(RecoveredPartitions, "advance", overtaken)
        with pytest.raises(Fenced):
            async with here.broker():
                pass
        assert "cannot be opened" not in caplog.text

    run(story)


def test_a_broker_that_fences_itself_ends_without_an_error() -> None:
    here = World(MemoryStore(SystemClock()))

    async def story() -> None:
        async with here.broker() as one:
            one.life.stop()
            await one.run

    run(story)
