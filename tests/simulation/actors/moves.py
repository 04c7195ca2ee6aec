"""A broker gives some partitions at a time to others, while all other activity goes on."""

from __future__ import annotations

import asyncio
import random

from tests.simulation.cluster import Environment
from tidelog.broker.broker import Broker
from tidelog.errors import Fenced
from tidelog.storage.object_store import StoreError
from tidelog.wal.write.slot_upload import WalLost

PAUSES_SECONDS_MEAN = (0.7, 2.5, 8.0)
"""Mean pauses between two moves of one broker. A run uses one of them."""
_PARTITIONS_MAX = 4


async def give_now_and_then(
    broker: Broker, environment: Environment, chance: random.Random, pause_seconds_mean: float
) -> None:
    """Move partitions while the broker serves, until everything is healed."""
    await broker.ready.wait()
    while broker.running is not None:
        await asyncio.sleep(chance.expovariate(1 / pause_seconds_mean))
        if environment.cluster.healed:
            return
        try:
            await give_some(broker, environment, chance)
        except StoreError:
            environment.cluster.counts["moves failed"] += 1
        except (Fenced, WalLost):
            return


async def give_some(broker: Broker, environment: Environment, chance: random.Random) -> None:
    """Give some partitions, including internal ones, each to a live broker."""
    running = broker.running
    if running is None:
        return
    mine = running.membership.incarnation.epoch
    others = [info.epoch for info in running.membership.state().live_brokers()]
    others = [epoch for epoch in others if epoch != mine]
    places = [each.log.partition for each in running.writes.partitions]
    if not others or not places:
        return
    chosen = chance.sample(places, chance.randint(1, min(_PARTITIONS_MAX, len(places))))
    given = await running.ownership.giving.give({place: chance.choice(others) for place in chosen})
    environment.cluster.counts["moves"] += 1
    environment.cluster.counts["partitions moved"] += len(given)
