"""How a handler asks a group's coordinator.

`ask` decides at once, so that a connection's requests take effect in the order in which they came;
the answer is awaited later. What refuses a request before any coordinator sees it is answered in
the same way as what a coordinator refuses.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from tidelog.broker.coordinate.group_work import GroupRuntime
from tidelog.broker.handlers.services import GroupServices
from tidelog.coordinator.group.commands import Command, Reply
from tidelog.coordinator.runtime import CoordinatorRefused

R = TypeVar("R")


def ask(broker: GroupServices, group_id: str, command: Command) -> Awaitable[Reply]:
    """Put a command to the coordinator of a group. The awaitable raises CoordinatorRefused."""
    try:
        return broker.coordinators.groups.find(group_id).submit(command)
    except CoordinatorRefused as error:
        return _failed(error)


def ask_runtime(runtime: GroupRuntime, command: Command) -> Awaitable[Reply]:
    """Put a command to one coordinator. The awaitable raises CoordinatorRefused."""
    try:
        return runtime.submit(command)
    except CoordinatorRefused as error:
        return _failed(error)


async def reply_of(kind: type[R], asked: Awaitable[Reply]) -> R:
    """The reply, which is of this kind. Raises CoordinatorRefused."""
    reply = await asked
    assert isinstance(reply, kind)
    return reply


def _failed(error: CoordinatorRefused) -> asyncio.Future[Reply]:
    future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
    future.set_exception(error)
    # It may never be awaited, if another group of the same request fails first.
    future.exception()
    return future
