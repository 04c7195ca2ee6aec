"""Incarnations that write a few batches, one after the other, and damage to their slots."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from tests.properties.wal.batches import incarnation, topic_partition
from tests.properties.wal.worlds import Broker, World
from tests.simulation.world.loop import SimulatedLoop
from tidelog.identifiers import Slot
from tidelog.wal.format.object_format import wal_key
from tidelog.wal.recover.recovery import Recovered

P = [topic_partition(number) for number in range(4)]
FIRST, SECOND, THIRD = incarnation(1), incarnation(2), incarnation(3)


def story(tell: Callable[[World], Awaitable[None]]) -> None:
    """Run a story in virtual time. All partitions belong to the first incarnation."""
    with SimulatedLoop(7) as loop:
        world = World(loop, 7)
        world.assign(P, FIRST)

        async def told() -> None:
            await tell(world)

        loop.run(told(), seconds_max=10_000)


@asynccontextmanager
async def life(world: World, epoch: int = 1) -> AsyncIterator[Broker]:
    """An incarnation that begins with the objects in the bucket, and is sealed at the end."""
    owner = incarnation(epoch)
    recovered = await world.recover(owner)
    assert not recovered.failures
    broker = Broker(world, epoch, recovered.images)
    running = asyncio.create_task(broker.run())
    yield broker
    running.cancel()
    world.ends[owner] = await world.seal(owner, world.bucket)


def slot_key(slot: int, epoch: int = 1) -> str:
    return wal_key(incarnation(epoch), Slot(slot))


def ends_at(recovered: Recovered) -> list[int | None]:
    """Each partition's next offset, or None for a partition that failed."""
    return [None if p in recovered.failures else recovered.images[p].next_offset for p in P]


async def three_lives_in_one(world: World) -> None:
    """Slots 0: p0, 1: p0, 2: p1 opens, 3: p1, 4: p0."""
    async with life(world) as broker:
        for partition in (P[0], P[0], P[1], P[1], P[0]):
            await broker.produce(partition)
    assert ends_at(await world.recover()) == [3, 2, 0, 0]
