"""A rule on brokers: one that has read its own fence ends (C9)."""

from __future__ import annotations

import asyncio

from tests.simulation.cluster import Environment
from tidelog.broker.broker import Broker

_LOOK_SECONDS = 0.1
_LOOKS_MAX = 5
"""Enough looks for all tasks to end. Seconds would not do, since a process may be paused."""


async def watch_fence(broker: Broker, environment: Environment) -> None:
    """Note a violation if the fenced process goes on."""
    await broker.ready.wait()
    running = broker.running
    if running is None:
        return
    member = running.membership
    looks = 0
    while looks < _LOOKS_MAX:
        await asyncio.sleep(_LOOK_SECONDS)
        info = member.state().brokers.get(member.incarnation.epoch)
        looks += info is None or info.fenced
    name = environment.process.name
    environment.cluster.violations.append(f"{name} has read its own fence and goes on")
