"""The rule on fenced processes: one that could still serve has to end, one that ends may."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from tests.simulation.rules.fence_watch import watch_fence
from tests.simulation.world.loop import SimulatedLoop


@pytest.mark.parametrize("has_closed_its_wal", [False, True])
def test_a_fenced_process_may_only_end(has_closed_its_wal: bool) -> None:
    violations: list[str] = []
    environment: Any = SimpleNamespace(
        process=SimpleNamespace(name="broker-1"), cluster=SimpleNamespace(violations=violations)
    )

    async def watch() -> None:
        ready = asyncio.Event()
        ready.set()
        wal = asyncio.get_running_loop().create_future()
        membership = SimpleNamespace(
            state=lambda: SimpleNamespace(brokers={7: SimpleNamespace(fenced=True)}),
            incarnation=SimpleNamespace(epoch=7),
        )
        running = SimpleNamespace(membership=membership, tasks=SimpleNamespace(wal=wal))
        if has_closed_its_wal:
            wal.set_result(None)
        broker: Any = SimpleNamespace(ready=ready, running=running)
        await watch_fence(broker, environment)

    with SimulatedLoop(1) as loop:
        loop.run(watch())
    assert bool(violations) is not has_closed_its_wal
