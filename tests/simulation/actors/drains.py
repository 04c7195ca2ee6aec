"""An operator begins and ends drains of some brokers while all other activity goes on."""

from __future__ import annotations

import asyncio
import random

from tests.simulation.cluster import Environment
from tidelog.broker.broker import Broker
from tidelog.coordinator.cluster.membership.draining import DrainRefused, drain_changes
from tidelog.coordinator.cluster.records.records import DrainChanged
from tidelog.coordinator.cluster.state.state import ClusterState
from tidelog.errors import Fenced, Refused
from tidelog.identifiers import BrokerId
from tidelog.storage.object_store import StoreError

_PAUSE_SECONDS_MEAN = 12.0
_DRAIN_SECONDS = (1.0, 12.0)


async def drain_now_and_then(
    broker: Broker, environment: Environment, chance: random.Random
) -> None:
    """Drain some broker by way of this one, until everything is healed.

    If this broker dies meanwhile, the drain stays. Another broker may end it.
    """
    await broker.ready.wait()
    while broker.running is not None and not environment.cluster.healed:
        await asyncio.sleep(chance.expovariate(1 / _PAUSE_SECONDS_MEAN))
        if broker.running is None:
            return
        live = broker.running.membership.state().live_brokers()
        drained = BrokerId(chance.choice([info.broker_id for info in live]))
        await change_drain(broker, environment, drained, draining=True)
        await asyncio.sleep(chance.uniform(*_DRAIN_SECONDS))
        await change_drain(broker, environment, drained, draining=False)


async def change_drain(
    broker: Broker, environment: Environment, broker_id: BrokerId, *, draining: bool
) -> None:
    """Begin or end a drain by way of a broker, if that broker still serves and the drain is
    allowed."""
    running = broker.running
    if running is None:
        return

    def build(state: ClusterState) -> tuple[DrainChanged, ...]:
        try:
            return drain_changes(state, broker_id, draining=draining)
        except DrainRefused:
            environment.cluster.counts["drains refused"] += 1
            return ()

    member = running.membership
    try:
        await member.metadata.append(member.incarnation.epoch, build)
        environment.cluster.counts["drains" if draining else "drains undone"] += 1
    except (Refused, StoreError):
        environment.cluster.counts["drains failed"] += 1
    except Fenced:
        # The broker ends.
        return
