"""Partitions that leave a broker and come back as other objects, between two of its steps.

This tries how waiting work survives a move. A partition without work in progress is replaced by a
new object with its image, in the same tenure. Work that waits for the old object must be refused
(C3). A long compaction needs its partition, so this ends when all is healed.
"""

from __future__ import annotations

import asyncio
import random

from tests.simulation.cluster import Environment
from tidelog.broker.broker import Broker
from tidelog.broker.partitions.partitions import Partition, PartitionRegistry
from tidelog.wal.log.partition_log import PartitionLog

_PAUSE_SECONDS_MEAN = 0.3


async def reopen_now_and_then(
    broker: Broker, environment: Environment, chance: random.Random
) -> None:
    """Reopen partitions while the broker serves, until everything is healed."""
    await broker.ready.wait()
    while not environment.cluster.healed:
        await asyncio.sleep(chance.expovariate(1 / _PAUSE_SECONDS_MEAN))
        running = broker.running
        if running is None:
            continue
        partitions = running.writes.partitions
        # A checkpoint in progress cannot tell the new object from the old one: both have the same
        # tenure.
        async with running.writes.checkpointer.paused():
            idle = [each for each in partitions if _is_idle(each)]
            if idle:
                _reopen(partitions, chance.choice(idle))


def _is_idle(partition: Partition) -> bool:
    """Whether all of it is durable. Coordinators keep to their partitions."""
    log = partition.log
    if partition.fault is not None or partition.is_internal:
        return False
    return log.high_watermark == log.next_offset and log.image().log_start == log.log_start


def _reopen(registry: PartitionRegistry, partition: Partition) -> None:
    image = partition.log.image()
    registry._remove(image.partition)
    registry._by_name.clear()
    fresh = Partition(partition.topic_name, PartitionLog.from_image(image), partition.limits)
    fresh.opened = partition.opened
    registry._add(image.partition, fresh)
    if fresh.opened:
        registry.checkpointed.add(fresh.log)
