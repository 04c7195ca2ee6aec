"""After any failure, acknowledged records are there once, in order, and all processes agree on a
WAL's end."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from tests.properties.wal.batches import incarnation, topic_partition
from tests.properties.wal.worlds import Broker, World
from tests.simulation.world.loop import SimulatedLoop
from tidelog.errors import Fenced
from tidelog.identifiers import TopicPartition
from tidelog.storage.stores.faulty import FaultRates
from tidelog.wal.recover.recovery import Recovered, recover
from tidelog.wal.settings import WalSettings
from tidelog.wal.write.writer import WalLost
from tidelog.workers.offload import InlineOffload

PARTITIONS = [topic_partition(number) for number in range(5)]
RATES = FaultRates(
    refused=0.02, request_lost=0.03, answer_lost=0.05, late=0.03, slow=0.05, late_seconds_max=2.0
)
SETTINGS = WalSettings(
    linger_ms=5,
    object_bytes_max=1_500,
    buffer_bytes_max=6_000,
    upload_deadline_ms=20_000,
    checkpoint_interval_bytes=8_000,
)
LIMITED = replace(SETTINGS, puts_a_second_max=20)
"""Slots wait for their turn when the process is killed."""
INCARNATIONS = 4


async def check(world: World, recovered: Recovered) -> None:
    """Every acknowledged record is at its offset, and no record is there that was not written."""
    assert not recovered.failures
    for partition in PARTITIONS:
        image = recovered.images[partition]
        values = await world.read(image)
        for offset, value in world.truth.acknowledged.get(partition, {}).items():
            assert values[offset] == value
        epochs = [tenure.leader_epoch for tenure in world.tenures[partition]]
        for offset, value in values.items():
            written = [world.truth.appended.get((partition, epoch, offset)) for epoch in epochs]
            assert value in written
        assert len(set(values.values())) == len(values)


async def read_while_written(world: World, partition: TopicPartition) -> None:
    """A reader of the bucket sees at least the records that were acknowledged when it began
    (G2)."""
    store = world.patient_store()
    while True:
        least = world.truth.acknowledged_end(partition)
        tenures = list(world.tenures[partition])
        found = await recover(
            store, world.clock, InlineOffload(), {partition: tenures}, dict(world.ends)
        )
        if tenures == world.tenures[partition]:
            assert not found.failures
            assert found.images[partition].next_offset >= least
        await world.clock.sleep(world.entropy.uniform(0, 2.0))


async def live(world: World, epoch: int, images: Recovered) -> None:
    """One incarnation produces, and is killed or cut off or neither. Two others seal its WAL."""
    broker = Broker(world, epoch, images.images, LIMITED if epoch % 2 else SETTINGS)
    entropy, clock = world.entropy, world.clock
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(broker.run())
        producers = [
            tasks.create_task(broker.keep_producing(partition, 0.05))
            for partition in PARTITIONS
            for _ in range(2)
        ]
        reader = tasks.create_task(read_while_written(world, PARTITIONS[0]))
        await clock.sleep(entropy.uniform(0.1, 6.0))
        if entropy.uniform(0, 1) < 0.3:
            running.cancel()
        elif entropy.uniform(0, 1) < 0.3:
            # A long pause of its network: its requests arrive long after it has been fenced.
            broker.store.pause()
        store = world.patient_store()
        first, second = await asyncio.gather(
            world.seal(broker.incarnation, store),
            world.seal(broker.incarnation, world.patient_store()),
        )
        assert first == second
        assert first >= broker.writer.durable_end
        broker.store.resume()
        await clock.sleep(entropy.uniform(0.0, 40.0))
        # A zombie that learned nothing finds out by itself, or was killed above.
        await asyncio.gather(running, *producers, return_exceptions=True)
        assert running.cancelled() or isinstance(broker.ended_by, Fenced | WalLost)
        await world.settled()
        assert await world.seal(broker.incarnation, store) == first
        assert first >= broker.writer.durable_end
        reader.cancel()
    world.ends[broker.incarnation] = first


async def history(world: World) -> None:
    """Several incarnations, one after the other. Each begins with the bucket that the last one
    left."""
    world.assign(PARTITIONS, incarnation(1))
    for epoch in range(1, INCARNATIONS + 1):
        recovered = await world.recover(incarnation(epoch))
        await check(world, recovered)
        await live(world, epoch, recovered)
        world.assign(PARTITIONS, incarnation(epoch + 1))
    await check(world, await world.recover(incarnation(INCARNATIONS + 1)))


@pytest.mark.parametrize("seed", range(12))
def test_acknowledged_values_survive_crashes_and_zombies(seed: int) -> None:
    with SimulatedLoop(seed) as loop:
        world = World(loop, seed, RATES)
        loop.run(history(world), seconds_max=100_000)
    # A run without any event proves nothing.
    assert sum(map(len, world.truth.acknowledged.values())) > 60
