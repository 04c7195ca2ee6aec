"""Take-over: a fenced incarnation is retired once, at one end, with any deaths (C4)."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import pytest

from tests.unit.coordinator.cluster.world import Broker, World, simulate, within
from tidelog.coordinator.cluster.membership.takeover import Assign, all_to, successions, take_over
from tidelog.coordinator.cluster.membership.takeover import take_over_fenced as take_over_all
from tidelog.coordinator.cluster.records.records import BrokerFenced, IncarnationRetired
from tidelog.coordinator.cluster.state.state import ClusterState
from tidelog.errors import Fenced
from tidelog.identifiers import Epoch, Incarnation, Slot, TopicPartition
from tidelog.storage.object_store import StoreError
from tidelog.wal.format.object_format import (
    ObjectHeader,
    ObjectKind,
    decode_header,
    encode_header,
    wal_key,
)
from tidelog.wal.recover.wal_end import BARRIERS
from tidelog.wal.write.checkpoint import checkpoint_key

IN_FLIGHT_MAX = 4


def write_slots(world: World, incarnation: Incarnation, *slots: int) -> None:
    """Put the incarnation's slots; the bodies do not matter here."""
    for slot in slots:
        header = ObjectHeader(
            ObjectKind.DATA, incarnation, Slot(slot), 0, slot.to_bytes(16, "big"), 0
        )
        # Longer than a seal, as all objects with records are.
        world.place(wal_key(incarnation, Slot(slot)), encode_header(header) + bytes(100))


def kind_in(world: World, incarnation: Incarnation, slot: int) -> ObjectKind:
    key = wal_key(incarnation, Slot(slot))
    return decode_header(key, world.stored(key)).kind


async def take_over_fenced(broker: Broker, assign: Assign | None = None) -> tuple[Incarnation, ...]:
    return await within(
        broker.process,
        take_over_all(
            broker.log,
            broker.store,
            broker.process.clock,
            broker.process.entropy,
            broker.registered.incarnation,
            IN_FLIGHT_MAX,
            assign,
        ),
    )


async def restarted(world: World, slots: int = 5) -> tuple[Broker, Broker]:
    """A broker with two topics and some slots, killed, and its successor on the same machine."""
    first = await world.broker(7, world.process("a", host="harbour"))
    await first.create("flights", 3)
    await first.create("delays", 2)
    write_slots(world, first.registered.incarnation, *range(slots))
    first.process.kill()
    return first, await world.broker(7, world.process("b", host="harbour"))


def test_a_restarted_broker_gets_all_back() -> None:
    async def story(world: World) -> None:
        first, second = await restarted(world)
        dead = first.registered.incarnation
        assert await take_over_fenced(second) == (dead,)
        state = second.log.state
        assert state.retired_ends == {first.epoch: 5}
        assert kind_in(world, dead, 5) is ObjectKind.SEAL
        assert len(state.owned_by(second.epoch)) == 5
        for partition in state.owned_by(second.epoch):
            tenures = state.tenures(partition)
            assert [(t.leader_epoch, t.incarnation.epoch) for t in tenures] == [
                (0, first.epoch),
                (1, second.epoch),
            ]
        assert await take_over_fenced(second) == ()
        assert world.replayed() == state

    simulate(story)


def test_a_broker_that_never_wrote_is_retired_at_slot_0() -> None:
    async def story(world: World) -> None:
        first, second = await restarted(world, slots=0)
        await take_over_fenced(second)
        assert second.log.state.retired_ends == {first.epoch: 0}

    simulate(story)


def test_slots_below_the_newest_checkpoint_may_be_gone() -> None:
    async def story(world: World) -> None:
        first, second = await restarted(world, slots=0)
        dead = first.registered.incarnation
        write_slots(world, dead, 40, 41, 42)
        for slot in (30, 40):
            world.place(checkpoint_key(dead, Slot(slot)), b"not read here")
        await take_over_fenced(second)
        assert second.log.state.retired_ends == {first.epoch: 43}
        assert wal_key(dead, Slot(0)) not in world.keys("wal/")

    simulate(story)


def test_only_the_fenced_are_taken_over() -> None:
    async def story(world: World) -> None:
        first = await world.broker(7, world.process("a"))
        second = await world.broker(8, world.process("b"))
        with pytest.raises(ValueError, match="7-1 is not fenced"):
            await take_over(
                second.log,
                second.store,
                second.process.clock,
                second.process.entropy,
                second.registered.incarnation,
                first.registered.incarnation,
                IN_FLIGHT_MAX,
            )
        assert world.keys("wal/") == []

    simulate(story)


def test_the_next_process_finishes_an_abandoned_takeover() -> None:
    """Three brokers die one after the other, each before it could take over its predecessor."""

    async def story(world: World) -> None:
        first = await world.broker(1, world.process("a"))
        await first.create("flights", 4)
        second = await world.broker(2, world.process("b"))
        await second.log.append(second.epoch, lambda _: (BrokerFenced(first.epoch),))
        third = await world.broker(3, world.process("c"))
        await third.create("delays")
        await third.log.append(third.epoch, lambda _: (BrokerFenced(second.epoch),))
        await third.log.append(third.epoch, lambda _: (BrokerFenced(third.epoch),))
        last = await world.broker(4, world.process("d"))
        done = await take_over_fenced(last)
        assert done == tuple(b.registered.incarnation for b in (first, second, third))
        assert len(last.log.state.owned_by(last.epoch)) == 5
        assert last.log.state.fenced_not_retired() == ()

    simulate(story)


def test_partitions_go_where_the_assignment_says() -> None:
    async def story(world: World) -> None:
        _, second = await restarted(world)
        third = await world.broker(8, world.process("c"))

        def in_turn(state: ClusterState, dead: Epoch) -> Mapping[TopicPartition, Epoch]:
            live = [info.epoch for info in state.live_brokers()]
            owned = state.owned_by(dead)
            return {partition: live[n % 2] for n, partition in enumerate(owned)}

        await take_over_fenced(second, in_turn)
        state = await third.log.refresh()
        assert [len(state.owned_by(b.epoch)) for b in (second, third)] == [3, 2]

    simulate(story)


def test_an_assignment_is_written_by_topic_and_owner() -> None:
    async def story(world: World) -> None:
        first, second = await restarted(world)
        owners = all_to(second.epoch)(second.log.state, first.epoch)
        grouped = successions(owners)
        assert [(each.owner, each.partitions) for each in grouped] == [
            (second.epoch, (0, 1, 2)),
            (second.epoch, (0, 1)),
        ]

    simulate(story)


@pytest.mark.parametrize("seed", range(20))
def test_several_that_take_over_at_once_agree(seed: int) -> None:
    async def story(world: World) -> None:
        first, second = await restarted(world)
        third = await world.broker(8, world.process("c"))
        fourth = await world.broker(9, world.process("d"))
        world.store.settings.reply_lost_probability = 0.1
        world.store.settings.request_lost_probability = 0.1
        world.store.settings.repeated_probability = 0.1
        await asyncio.gather(*(take_over_fenced(b) for b in (second, third, fourth)))
        state = world.replayed()
        assert state.retired_ends == {first.epoch: 5}
        retirements = [
            record
            for entry in world.entries()
            for record in entry.records
            if isinstance(record, IncarnationRetired)
        ]
        assert len(retirements) == 1
        owned = [len(state.owned_by(b.epoch)) for b in (second, third, fourth)]
        assert sorted(owned) == [0, 0, 5]

    simulate(story, seed)


@pytest.mark.parametrize("seed", range(25))
def test_a_successor_may_die_at_any_step(seed: int) -> None:
    async def story(world: World) -> None:
        first, second = await restarted(world)
        second.process.kill_after_steps(1 + 8 * seed)
        attempt = asyncio.ensure_future(take_over_fenced(second))
        await asyncio.sleep(10)
        attempt.cancel()
        second.process.kill()
        third = await world.broker(7, world.process("c", host="harbour"))
        await take_over_fenced(third)
        state = world.replayed()
        assert state.fenced_not_retired() == ()
        assert state.retired_ends[first.epoch] == 5
        assert len(state.owned_by(third.epoch)) == 5
        for partition in state.owned_by(third.epoch):
            owners = [t.incarnation.epoch for t in state.tenures(partition)]
            assert owners in (
                [first.epoch, third.epoch],
                [first.epoch, second.epoch, third.epoch],
            )

    simulate(story, seed)


def test_a_successor_that_is_fenced_itself_changes_nothing() -> None:
    async def story(world: World) -> None:
        first, second = await restarted(world)
        third = await world.broker(8, world.process("c"))
        await third.log.append(third.epoch, lambda _: (BrokerFenced(second.epoch),))
        with pytest.raises(Fenced, match=str(second.registered.incarnation)):
            await take_over_fenced(second)
        state = await third.log.refresh()
        assert [info.epoch for info in state.fenced_not_retired()] == [first.epoch, second.epoch]
        # The seal exists, and the next broker finds the same end.
        await take_over_fenced(third)
        assert third.log.state.retired_ends[first.epoch] == 5

    simulate(story)


def test_an_end_below_a_newer_checkpoint_is_looked_for_again() -> None:
    """The successor stalls; the old owner writes a checkpoint, and slots below it are deleted."""

    async def story(world: World) -> None:
        first, second = await restarted(world)
        dead = first.registered.incarnation
        attempt = asyncio.ensure_future(take_over_fenced(second))
        # The barriers exist. The recoverer has looked at slot 5, or is looking, and it is empty.
        while len(world.keys("wal/")) < 5 + BARRIERS:
            await second.process.clock.sleep(0.0001)
        await second.process.clock.sleep(0.05)
        assert wal_key(dead, Slot(5)) not in world.keys("wal/")
        second.process.pause()
        # The zombie was further on than it seemed: slot 5 is now below its floor.
        write_slots(world, dead, 8, 9)
        world.place(checkpoint_key(dead, Slot(8)), b"not read here")
        await asyncio.sleep(301)
        second.process.resume()
        await attempt
        assert second.log.state.retired_ends == {first.epoch: 10}

    simulate(story, get_seconds_min=0.5, get_seconds_max=0.5)


def test_a_store_that_fails_leaves_the_rest_for_the_next_attempt() -> None:
    async def story(world: World) -> None:
        first, second = await restarted(world)
        world.store.fail_for(60, share=1.0)
        with pytest.raises(StoreError):
            await take_over_fenced(second)
        assert second.log.state.retired == {}
        await asyncio.sleep(120)
        await take_over_fenced(second)
        assert second.log.state.retired_ends == {first.epoch: 5}

    simulate(story)
