"""Opened tenures: reported to the log late, together, and only where it matters (C2)."""

from __future__ import annotations

import asyncio

import pytest

from tests.unit.coordinator.cluster.samples import (
    DELAYS,
    FLIGHTS,
    NOWHERE,
    RETIRED,
    after,
    fenced,
    flights,
)
from tests.unit.coordinator.cluster.samples import registered as registration
from tests.unit.coordinator.cluster.world import Broker, World, simulate, within
from tidelog.clock import Clock
from tidelog.coordinator.cluster.log.metadata_log import MetadataLog
from tidelog.coordinator.cluster.membership.takeover import take_over_fenced
from tidelog.coordinator.cluster.membership.tenure_reports import TenureReports, opened_record
from tidelog.coordinator.cluster.records.records import (
    BrokerFenced,
    OpenedTenures,
    PartitionMoved,
    TenuresOpened,
    TopicDeleted,
)
from tidelog.errors import Fenced
from tidelog.identifiers import Epoch, Incarnation, LeaderEpoch, Slot, TopicPartition

AT_1 = LeaderEpoch(1)


def test_only_tenures_that_still_name_something_are_told() -> None:
    state = after(fenced(), 2, RETIRED)
    record = opened_record(
        state,
        Epoch(2),
        {
            flights(2): AT_1,
            flights(0): AT_1,
            flights(1): LeaderEpoch(0),  # the partition's first tenure, with nothing before it
            TopicPartition(DELAYS, 0): LeaderEpoch(0),  # not the current tenure
            TopicPartition(NOWHERE, 0): AT_1,  # deleted
        },
    )
    assert record == TenuresOpened((OpenedTenures(FLIGHTS, AT_1, (0, 2)),))
    assert opened_record(after(state, 2, record), Epoch(2), {flights(0): AT_1}) is None
    assert opened_record(state, Epoch(1), {flights(0): LeaderEpoch(0)}) is None


def test_a_hand_over_image_is_given_up_when_the_tenure_is_opened() -> None:
    state = after(fenced(), 2, RETIRED)
    state = after(state, None, registration(3))
    state = after(state, 2, PartitionMoved(FLIGHTS, 1, Epoch(6), "handover/h"))
    record = opened_record(state, Epoch(6), {flights(1): AT_1})
    assert record is not None
    state = after(state, 6, record)
    (tenure,) = state.tenures(flights(1))
    assert tenure.handover is None


async def heir(world: World, **settings: int) -> tuple[Broker, list[TopicPartition]]:
    """A broker that has taken over 40 partitions."""
    first = await world.broker(7, world.process("a", host="harbour"))
    await first.create("flights", 40)
    first.process.kill()
    second = await world.broker(7, world.process("b", host="harbour"), **settings)
    await take_over_fenced(
        second.log,
        second.store,
        second.process.clock,
        second.process.entropy,
        second.registered.incarnation,
        4,
    )
    return second, list(second.log.state.owned_by(second.epoch))


def told_by(broker: Broker) -> tuple[MetadataLog, Clock, Incarnation]:
    return broker.log, broker.process.clock, broker.registered.incarnation


def test_many_openings_make_one_entry() -> None:
    async def story(world: World) -> None:
        broker, partitions = await heir(world)
        tenure_reports = TenureReports(*told_by(broker), lambda: Slot(1))
        within(broker.process, tenure_reports.run())
        before = broker.log.state.sequence
        for partition in partitions:
            tenure_reports.add(partition, AT_1, Slot(0))
        await asyncio.sleep(3)
        assert broker.log.state.sequence == before + 1
        assert broker.log.state.unopened(broker.epoch) == ()
        # The broker does not report tenures that the log knows, and sends no request.
        requests = world.store.counts.total()
        for partition in partitions:
            tenure_reports.add(partition, AT_1, Slot(0))
        await asyncio.sleep(3)
        assert world.store.counts.total() == requests

    simulate(story)


def test_a_tenure_that_is_opened_while_others_are_told_is_told_next() -> None:
    async def story(world: World) -> None:
        broker, (partition, other, *_) = await heir(world)
        tenure_reports = TenureReports(*told_by(broker), lambda: Slot(1))
        # A broker does not report the opening of a tenure that it no longer holds or does not hold
        # yet.
        tenure_reports.add(partition, LeaderEpoch(0), Slot(0))
        tenure_reports.add(other, AT_1, Slot(0))
        telling = within(broker.process, tenure_reports.flush())
        await asyncio.sleep(0.001)
        tenure_reports.add(partition, AT_1, Slot(0))
        await telling
        assert len(broker.log.state.unopened(broker.epoch)) == 39
        await tenure_reports.flush()
        assert len(broker.log.state.unopened(broker.epoch)) == 38

    simulate(story)


def test_a_topic_that_is_deleted_meanwhile_does_no_harm() -> None:
    async def story(world: World) -> None:
        broker, partitions = await heir(world)
        other = await world.broker(8, world.process("c"))
        tenure_reports = TenureReports(*told_by(broker), lambda: Slot(1))
        tenure_reports.add(partitions[0], AT_1, Slot(0))
        topic_id = partitions[0].topic_id
        await other.log.append(other.epoch, lambda _: (TopicDeleted(topic_id),))
        await tenure_reports.flush()
        assert world.replayed() == broker.log.state

    simulate(story)


def test_an_unreported_tenure_is_reported_later() -> None:
    async def story(world: World) -> None:
        broker, partitions = await heir(world)
        tenure_reports = TenureReports(*told_by(broker), lambda: Slot(1))
        within(broker.process, tenure_reports.run())
        world.store.fail_for(60, share=1.0)
        tenure_reports.add(partitions[0], AT_1, Slot(0))
        await asyncio.sleep(50)
        assert len(broker.log.state.unopened(broker.epoch)) == 40
        await asyncio.sleep(60)
        assert len(broker.log.state.unopened(broker.epoch)) == 39

    simulate(story)


def test_a_fenced_broker_stops_telling() -> None:
    async def story(world: World) -> None:
        broker, partitions = await heir(world)
        other = await world.broker(8, world.process("c"))
        tenure_reports = TenureReports(*told_by(broker), lambda: Slot(1))
        running = within(broker.process, tenure_reports.run())
        await other.log.append(other.epoch, lambda _: (BrokerFenced(broker.epoch),))
        tenure_reports.add(partitions[0], AT_1, Slot(0))
        with pytest.raises(Fenced):
            await running

    simulate(story)


def test_tenures_are_reported_later_if_too_many_changes_wait() -> None:
    async def story(world: World) -> None:
        broker, (partition, *_) = await heir(world, waiting_appends_max=2)
        tenure_reports = TenureReports(*told_by(broker), lambda: Slot(1))
        telling = within(broker.process, tenure_reports.run())
        world.store.fail_for(5, share=1.0)
        first = within(broker.process, broker.create("a"))
        await asyncio.sleep(0.1)
        waiting = [within(broker.process, broker.create(name)) for name in ("b", "c")]
        tenure_reports.add(partition, AT_1, Slot(0))
        await asyncio.sleep(10)
        assert not telling.done()
        assert len(broker.log.state.unopened(broker.epoch)) == 39
        await asyncio.gather(first, *waiting)

    simulate(story)


def test_a_tenure_is_reported_when_a_checkpoint_has_its_image() -> None:
    """Until then, collectors find its objects through the previous tenure."""

    async def story(world: World) -> None:
        broker, (partition, *_) = await heir(world)
        floor: list[Slot] = []
        tenure_reports = TenureReports(*told_by(broker), lambda: floor[-1] if floor else None)
        tenure_reports.add(partition, AT_1, Slot(4))
        await tenure_reports.flush()
        floor.append(Slot(4))
        await tenure_reports.flush()
        assert len(broker.log.state.tenures(partition)) == 2
        floor.append(Slot(5))
        await tenure_reports.flush()
        assert len(broker.log.state.tenures(partition)) == 1
        assert tenure_reports.waiting == 0

    simulate(story)
