"""Workers of a simulated process: in the same thread, but in their own time."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Final, ParamSpec, TypeVar

from tidelog.workers.offload import InlineOffload, RemoteObject

P = ParamSpec("P")
T = TypeVar("T")

SECONDS_MAX: Final = 0.005


class SimulatedOffload(InlineOffload):
    """Lets other tasks run before the work is done, as threads and processes do."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance

    async def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        await self._wait()
        return await super().run(function, *args, **kwargs)

    async def place(
        self, factory: Callable[P, T], *args: P.args, **kwargs: P.kwargs
    ) -> RemoteObject[T]:
        await self._wait()
        return await super().place(factory, *args, **kwargs)

    async def _wait(self) -> None:
        await asyncio.sleep(self._chance.uniform(0, SECONDS_MAX))
