"""When brokers are fenced, and a rule: one that has read its own fence ends (C9)."""

from __future__ import annotations

import asyncio

from tests.simulation.cluster import Environment
from tests.simulation.world.store import SimulatedStore, finish
from tidelog.broker.broker import Broker
from tidelog.coordinator.cluster.log.prefix import LOG_PREFIX
from tidelog.coordinator.cluster.records.records import (
    BrokerFenced,
    BrokerRegistered,
    decode_entry,
)
from tidelog.identifiers import Epoch

_LOOK_SECONDS = 0.1
_LOOKS_MAX = 5
"""Enough looks for all tasks to end. Seconds would not do, since a process may be paused."""


class FenceTimes:
    """Reads each entry of the metadata log when the store writes it."""

    def __init__(self, store: SimulatedStore) -> None:
        self._store = store
        self._processes: dict[Epoch, tuple[str, int]] = {}
        self.of: dict[tuple[str, int], float] = {}
        """When each process, by host and number, was fenced."""
        store.on_put = self._written

    def _written(self, key: str) -> None:
        if not key.startswith(LOG_PREFIX):
            return
        entry = decode_entry(key, finish(self._store.memory.get(key)).data)
        for record in entry.records:
            if isinstance(record, BrokerRegistered):
                process = record.process
                self._processes[Epoch(entry.sequence)] = (process.host, process.pid)
            elif isinstance(record, BrokerFenced):
                self.of.setdefault(self._processes[record.epoch], self._store.loop.time())


async def watch_fence(broker: Broker, environment: Environment) -> None:
    """Note a violation if the fenced process goes on.

    A broker that has closed its WAL serves nobody and stores nothing. As its last step it fences
    itself. For that it reads the metadata log, where it finds the fence of another process. A slow
    store may draw this out.
    """
    await broker.ready.wait()
    running = broker.running
    if running is None:
        return
    member = running.membership
    looks = 0
    while looks < _LOOKS_MAX:
        await asyncio.sleep(_LOOK_SECONDS)
        if running.tasks.wal.done():
            return
        info = member.state().brokers.get(member.incarnation.epoch)
        looks += info is None or info.fenced
    name = environment.process.name
    environment.cluster.violations.append(f"{name} has read its own fence and goes on")
