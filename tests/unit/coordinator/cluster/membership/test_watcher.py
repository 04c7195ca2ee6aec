"""Running brokers watch each other. Dead brokers are fenced, and their partitions divided (B2,
C4)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from tests.unit.coordinator.cluster.members import (
    HEARTBEAT,
    SESSION,
    fences,
    member,
    members,
    retirements,
    until,
)
from tests.unit.coordinator.cluster.world import World, simulate, within
from tidelog.coordinator.cluster.log.leases import lease_key
from tidelog.coordinator.cluster.membership.service_watch import CannotServe
from tidelog.coordinator.cluster.records.documents import encode_document
from tidelog.coordinator.cluster.records.records import (
    BrokerFenced,
    LeaseResumed,
    Record,
)
from tidelog.errors import Fenced
from tidelog.identifiers import BrokerId, Epoch

FENCED_SECONDS_MAX = SESSION + 4 * HEARTBEAT
"""From the death of one broker to its fence, with a working store."""


@pytest.mark.parametrize("count", [2, 3, 5])
def test_a_dead_broker_is_fenced_and_its_partitions_are_divided(count: int) -> None:
    async def story(world: World) -> None:
        brokers = await members(world, count)
        dead, *others = brokers
        await dead.broker.create("flights", 3 * (count - 1))
        await asyncio.sleep(20)
        assert fences(world) == []
        dead.kill()
        await until(lambda: fences(world) == [dead.epoch], FENCED_SECONDS_MAX)
        await until(lambda: retirements(world) == [dead.epoch], 2.0)
        assert [each.owned(world) for each in others] == [3] * (count - 1)
        await asyncio.sleep(60)
        assert fences(world) == [dead.epoch]
        assert all(each.ended == [] for each in others)

    simulate(story)


def test_a_living_cluster_writes_nothing_and_reads_three_leases_a_heartbeat() -> None:
    async def story(world: World) -> None:
        brokers = await members(world, 5)
        await asyncio.sleep(10)
        before, entries = world.store.counts["get"], len(world.entries())
        await asyncio.sleep(600)
        reads = world.store.counts["get"] - before
        # Each heartbeat reads three leases, and the next entry of the metadata log.
        assert reads <= 4 * 5 * (600 / HEARTBEAT + 1)
        assert len(world.entries()) == entries
        assert all(each.ended == [] for each in brokers)

    simulate(story)


def test_two_deaths_are_fenced_one_after_the_other() -> None:
    async def story(world: World) -> None:
        brokers = await members(world, 5)
        await brokers[1].broker.create("flights", 6)
        await brokers[2].broker.create("delays", 6)
        await asyncio.sleep(10)
        brokers[1].kill()
        brokers[2].kill()
        await until(lambda: len(fences(world)) == 1, FENCED_SECONDS_MAX + HEARTBEAT)
        await asyncio.sleep(HEARTBEAT - 0.2)
        assert len(fences(world)) == 1
        await until(lambda: len(retirements(world)) == 2, 4 * HEARTBEAT)
        living = [brokers[n] for n in (0, 3, 4)]
        assert [each.owned(world) for each in living] == [4, 4, 4]

    simulate(story)


@pytest.mark.parametrize("count", [3, 4, 8])
def test_the_last_survivor_gets_everything(count: int) -> None:
    async def story(world: World) -> None:
        brokers = await members(world, count)
        for each in brokers:
            await each.broker.create(f"t{each.epoch}", 2)
        await asyncio.sleep(10)
        survivor, *others = brokers
        for each in others:
            each.kill()
        await until(lambda: len(retirements(world)) == count - 1, 2 * FENCED_SECONDS_MAX)
        assert survivor.owned(world) == 2 * count
        assert survivor.ended == []
        if count <= 4:
            # The survivor watches all brokers, so it gives no partition to a dead one, to take it
            # back later.
            topics = world.replayed().topics.values()
            assert max(len(tenures) for topic in topics for tenures in topic.partitions) == 2

    simulate(story)


@pytest.mark.parametrize("seed", range(3))
def test_an_outage_of_the_store_ends_without_a_fence(seed: int) -> None:
    async def story(world: World) -> None:
        brokers = await members(world, 5)
        await asyncio.sleep(10)
        world.store.fail_for(40, share=1.0)
        await asyncio.sleep(100)
        assert fences(world) == []
        assert all(each.ended == [] for each in brokers)
        clock = brokers[0].broker.process.clock
        assert all(each.keeper.fresh(clock.monotonic()) for each in brokers)

    simulate(story, seed)


@pytest.mark.parametrize("seed", range(3))
def test_a_store_that_takes_no_puts_ends_without_a_fence(seed: int) -> None:
    """GETs succeed all the time, so each watcher sees all the others silent."""

    async def story(world: World) -> None:
        brokers = await members(world, 5)
        await asyncio.sleep(10)
        world.store.fail_for(40, share=1.0, writes_only=True)
        await asyncio.sleep(100)
        assert fences(world) == []
        assert all(each.ended == [] for each in brokers)

    simulate(story, seed)


def test_a_stalled_broker_that_wakes_up_ends_itself() -> None:
    async def story(world: World) -> None:
        brokers = await members(world, 3)
        await brokers[1].broker.create("flights", 4)
        await asyncio.sleep(10)
        zombie = brokers[1]
        zombie.broker.process.pause()
        await until(lambda: retirements(world) == [zombie.epoch], FENCED_SECONDS_MAX + 2)
        zombie.broker.process.resume()
        await until(lambda: zombie.ended != [], 3 * HEARTBEAT)
        assert any(isinstance(error, Fenced) for error in zombie.ended)
        assert not zombie.keeper.fresh(zombie.broker.process.clock.monotonic())
        assert fences(world) == [zombie.epoch]

    simulate(story)


def test_watchers_that_stalled_with_the_others_fence_no_broker() -> None:
    """A machine with all brokers is suspended, and wakes up."""

    async def story(world: World) -> None:
        brokers = await members(world, 3)
        await asyncio.sleep(10)
        for each in brokers:
            each.broker.process.pause()
        await asyncio.sleep(120)
        for each in brokers:
            each.broker.process.resume()
            await asyncio.sleep(1.0)
        await asyncio.sleep(60)
        assert fences(world) == []
        resumed = [
            record.epoch
            for entry in world.entries()
            for record in entry.records
            if isinstance(record, LeaseResumed)
        ]
        assert sorted(resumed) == [each.epoch for each in brokers]

    simulate(story)


@pytest.mark.parametrize("steps", range(0, 60, 6))
def test_a_fencer_may_die_at_any_step(steps: int) -> None:
    async def story(world: World) -> None:
        brokers = await members(world, 4)
        dead, *others = brokers
        await dead.broker.create("flights", 6)
        await asyncio.sleep(10)
        fencer = brokers[3]  # the nearest ahead of broker 0 in the ring
        dying: list[Epoch] = []

        def follow(_: int, records: Sequence[Record]) -> None:
            if any(isinstance(record, BrokerFenced) for record in records) and not dying:
                dying.append(fencer.epoch)
                fencer.broker.process.kill_after_steps(1 + steps)

        fencer.broker.log.subscribe(follow)
        dead.kill()
        await until(lambda: dead.epoch in retirements(world), FENCED_SECONDS_MAX + 8 * HEARTBEAT)
        await until(lambda: fencer.epoch in retirements(world), 2 * FENCED_SECONDS_MAX)
        assert sorted(retirements(world)) == sorted([dead.epoch, fencer.epoch])
        assert [each.owned(world) for each in others[:2]] == [3, 3]

    simulate(story)


def test_a_broker_that_fences_itself_is_taken_over_at_once() -> None:
    async def story(world: World) -> None:
        brokers = await members(world, 3)
        stopping = brokers[1]
        await stopping.broker.create("flights", 4)
        await asyncio.sleep(10)
        fence = BrokerFenced(stopping.epoch)
        await stopping.broker.log.append(stopping.epoch, lambda _: (fence,))
        stopping.kill()
        await until(lambda: retirements(world) == [stopping.epoch], HEARTBEAT + 1)
        assert [each.owned(world) for each in (brokers[0], brokers[2])] == [2, 2]

    simulate(story)


def test_a_lease_of_a_newer_format_is_left_alone() -> None:
    """A watcher cannot judge the lease of a newer build. It does not fence that broker, and goes
    on."""

    async def story(world: World) -> None:
        watcher = await member(world, 1)
        newer = await world.broker(2, world.process("newer"))
        world.place(lease_key(BrokerId(2)), encode_document("tidelog.lease", 99, {}))
        await asyncio.sleep(60)
        assert watcher.ended == []
        assert world.replayed().is_live(newer.epoch)

    simulate(story)


@pytest.mark.parametrize("seed", range(6))
def test_store_faults_and_short_stalls_fence_no_broker_and_a_death_is_found(seed: int) -> None:
    async def story(world: World) -> None:
        random = world.loop.random
        brokers = await members(world, 4)
        await asyncio.sleep(5)
        settings = world.store.settings
        settings.slow_probability = 0.05
        settings.refused_probability = 0.02
        settings.reply_lost_probability = 0.02
        settings.unknown_seconds_max = 0.5
        for _ in range(40):
            victim = brokers[random.randrange(4)].broker.process
            victim.pause()
            await asyncio.sleep(random.uniform(0.0, 2.5))
            victim.resume()
            await asyncio.sleep(random.uniform(0.5, 3.0))
        assert fences(world) == []
        dead = brokers.pop(random.randrange(4))
        dead.kill()
        await until(lambda: retirements(world) == [dead.epoch], 60)
        assert all(each.ended == [] for each in brokers)

    simulate(story, seed)


# --- the own service ---


def test_a_broker_that_has_lost_the_wal_alone_ends_itself() -> None:
    async def story(world: World) -> None:
        brokers = await members(world, 3)
        writing = [within(each.broker.process, each.write()) for each in brokers]
        await asyncio.sleep(10)
        lost = brokers[1]
        world.store.isolate(lost.broker.process, 60, prefix="wal/")
        await until(lambda: lost.ended != [], SESSION + 4 * HEARTBEAT)
        assert [type(error) for error in lost.ended] == [CannotServe]
        assert all(each.ended == [] for each in brokers if each is not lost)
        for task in writing:
            task.cancel()

    simulate(story)


def test_a_wal_that_fails_for_all_ends_no_broker_before_the_deadline_of_its_uploads() -> None:
    async def story(world: World) -> None:
        brokers = await members(world, 3)
        writing = [within(each.broker.process, each.write()) for each in brokers]
        await asyncio.sleep(10)
        for each in brokers:
            world.store.isolate(each.broker.process, 20, prefix="wal/")
        await asyncio.sleep(60)
        assert all(each.ended == [] for each in brokers)
        assert fences(world) == []
        for task in writing:
            task.cancel()

    simulate(story)
