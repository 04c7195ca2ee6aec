"""A killed process breaks its connections, and is fenced before its lease ends (B2)."""

from __future__ import annotations

import asyncio

import pytest

from tests.unit.coordinator.cluster.members import (
    HEARTBEAT,
    PORT,
    SESSION,
    Member,
    fences,
    member,
    members,
    retirements,
    until,
)
from tests.unit.coordinator.cluster.world import World, simulate
from tidelog.coordinator.cluster.state.state import ClusterState
from tidelog.protocol.schemas.cluster.metadata import (
    DescribeClusterRequest,
    DescribeClusterResponse,
)
from tidelog.storage.object_store import StoreError

SOON = 1.0
"""On the fast path, a broker's partitions are absent for less than this time."""


async def connected(world: World, count: int) -> list[Member]:
    """Brokers connected to each other. The machines of dead processes stay reachable."""
    world.network.settings.silent_death_probability = 0.0
    brokers = await members(world, count, listening=True)
    await asyncio.sleep(10)
    return brokers


@pytest.mark.parametrize("count", [2, 3, 5])
@pytest.mark.parametrize("seed", range(3))
def test_a_killed_broker_is_fenced_and_taken_over_within_a_second(count: int, seed: int) -> None:
    async def story(world: World) -> None:
        brokers = await connected(world, count)
        dead = brokers[1]
        await dead.broker.create("flights", 2 * (count - 1))
        dead.kill()
        await until(lambda: retirements(world) == [dead.epoch], SOON)
        assert [each.owned(world) for each in brokers if each is not dead] == [2] * (count - 1)
        await asyncio.sleep(30)
        assert fences(world) == [dead.epoch]
        assert all(each.ended == [] for each in brokers if each is not dead)

    simulate(story, seed, slow_probability=0.0)


def test_a_dying_process_may_close_its_connections_before_its_listener() -> None:
    """The listener is still open, so the first attempts to connect are not refused."""

    async def story(world: World) -> None:
        brokers = await connected(world, 3)
        dead = brokers[1]
        for each in dead.served.connections:
            each.transport.abort()
        await asyncio.sleep(0.005)
        dead.kill()
        await until(lambda: retirements(world) == [dead.epoch], SOON)

    simulate(story, slow_probability=0.0)


def test_a_broker_connects_to_the_three_that_it_watches_once() -> None:
    async def story(world: World) -> None:
        brokers = await connected(world, 6)
        asked = [len(each.served.seen(DescribeClusterRequest)) for each in brokers]
        # A broker that registers moves the ring, so some connections were made in between.
        assert min(asked) >= 3
        await asyncio.sleep(600)
        assert [len(each.served.seen(DescribeClusterRequest)) for each in brokers] == asked
        watched = {
            f"b{n}.example": {f"b{(n + k) % 6}.example" for k in (1, 2, 3)} for n in range(6)
        }
        for host, others in watched.items():
            watchers = {each for each, theirs in watched.items() if host in theirs}
            assert set(world.network.peers(host)) == others | watchers

    simulate(story)


def test_broken_connections_to_living_brokers_are_made_again() -> None:
    async def story(world: World) -> None:
        brokers = await connected(world, 4)
        for _ in range(5):
            for each in brokers:
                world.network.reset_connections(each.broker.process.host)
            await asyncio.sleep(20)
        assert fences(world) == []
        brokers[2].kill()
        await until(lambda: fences(world) == [brokers[2].epoch], SOON)

    simulate(story)


def test_a_machine_that_does_not_answer_is_left_to_its_lease() -> None:
    """No host refuses the connection, so the network between may be cut."""

    async def story(world: World) -> None:
        brokers = await connected(world, 3)
        world.network.settings.silent_death_probability = 1.0
        brokers[1].kill()
        await asyncio.sleep(SESSION - HEARTBEAT)
        assert fences(world) == []
        await until(lambda: fences(world) == [brokers[1].epoch], 5 * HEARTBEAT)

    simulate(story)


def test_a_broker_that_refuses_and_has_not_named_itself_is_left_to_its_lease() -> None:
    """A starting broker has registered, but does not listen yet."""

    async def story(world: World) -> None:
        brokers = await connected(world, 3)
        starting = await member(world, 7, listening=False)
        await asyncio.sleep(60)
        assert fences(world) == []
        assert starting.ended == []
        assert all(each.ended == [] for each in brokers)

    simulate(story)


def test_a_newcomer_at_the_address_of_another_broker_is_not_mistaken() -> None:
    async def story(world: World) -> None:
        world.network.settings.silent_death_probability = 0.0
        first = await member(world, 1, listening=True)
        second = await member(world, 2, listening=True)
        other = DescribeClusterResponse(broker_epoch=first.epoch + 100)
        second.served.on(DescribeClusterRequest, lambda _: other)
        await asyncio.sleep(10)
        second.kill()
        await asyncio.sleep(SESSION - HEARTBEAT)
        assert fences(world) == []

    simulate(story)


def test_a_broker_that_cannot_renew_its_lease_fences_no_broker() -> None:
    """The broker has lost the store: the put of its own lease fails."""

    async def story(world: World) -> None:
        brokers = await connected(world, 2)
        world.store.isolate(brokers[0].broker.process, 30, prefix="cluster/lease/")
        brokers[1].kill()
        await asyncio.sleep(25)
        assert fences(world) == []

    simulate(story)


def test_a_renewal_of_the_lease_goes_on_when_the_metadata_log_cannot_be_read() -> None:
    """A cancelled put may be on its way to the store, and land after that of the next renewal."""

    async def story(world: World) -> None:
        watching, dead = await connected(world, 2)
        ends = []

        async def renew() -> None:
            try:
                await asyncio.sleep(1)
            except asyncio.CancelledError:
                ends.append("cancelled")
                raise
            ends.append("renewed")

        async def refresh() -> ClusterState:
            raise StoreError("cluster/log/1.json", "unreachable")

        watching.keeper.renew = renew  # type: ignore[method-assign]
        watching.broker.log.refresh = refresh  # type: ignore[method-assign]
        dead.kill()
        await asyncio.sleep(5)
        assert set(ends) == {"renewed"}
        # The task that follows the log has ended too.
        assert [str(each) for each in watching.ended] == ["cluster/log/1.json: unreachable"]

    simulate(story, slow_probability=0.0)


def test_the_second_of_two_deaths_is_left_to_its_lease_by_the_only_survivor() -> None:
    """No third broker answers the survivor, so the survivor's own network may be broken."""

    async def story(world: World) -> None:
        survivor, *dead = await connected(world, 3)
        for each in dead:
            each.kill()
        await asyncio.sleep(SESSION - HEARTBEAT)
        assert fences(world) == []
        await until(lambda: len(retirements(world)) == 2, 6 * HEARTBEAT)
        assert survivor.ended == []

    simulate(story)


def test_two_deaths_at_once_are_found_by_two_brokers() -> None:
    async def story(world: World) -> None:
        brokers = await connected(world, 5)
        dead = brokers[1:3]
        for each in dead:
            await each.broker.create(f"t{each.epoch}", 6)
        for each in dead:
            each.kill()
        await until(lambda: retirements(world) != [], SOON)
        await until(lambda: len(retirements(world)) == 2, 2 + 2 * SOON)
        assert sorted(fences(world)) == sorted(each.epoch for each in dead)
        living = [brokers[n] for n in (0, 3, 4)]
        assert [each.owned(world) for each in living] == [4, 4, 4]
        # The first dead broker's partitions did not go to the second one.
        topics = world.replayed().topics.values()
        assert max(len(tenures) for topic in topics for tenures in topic.partitions) == 2

    simulate(story)


def test_a_broker_that_returns_under_its_id_is_connected_again() -> None:
    async def story(world: World) -> None:
        await connected(world, 2)
        for _ in range(2):
            last = await member(world, 7, listening=True)
            await asyncio.sleep(2)
            last.kill()
            await until(lambda epoch=last.epoch: epoch in retirements(world), SOON)  # type: ignore[misc]
            await asyncio.sleep(SESSION)

    simulate(story)


def test_the_watch_connects_to_the_registered_port() -> None:
    """The watch connects to the address in the metadata log."""

    async def story(world: World) -> None:
        brokers = await connected(world, 2)
        info = brokers[0].broker.log.state.brokers[brokers[1].epoch]
        assert (info.host, info.port) == (brokers[1].broker.process.host, PORT)
        assert brokers[1].served.seen(DescribeClusterRequest)

    simulate(story)
