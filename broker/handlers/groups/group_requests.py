"""Submits commands of handlers to group coordinators.

`ask` takes effect at once, so a connection's requests take effect in their order; the handler
awaits the reply later. A request refused before it reaches a coordinator gets the same kind of
reply as one that the coordinator refuses.
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
    """Submit a command to a group's coordinator. The awaitable raises CoordinatorRefused."""
    try:
        return broker.coordinators.groups.find(group_id).submit(command)
    except CoordinatorRefused as error:
        return _failed(error)


def ask_runtime(runtime: GroupRuntime, command: Command) -> Awaitable[Reply]:
    """Submit a command to one coordinator. The awaitable raises CoordinatorRefused."""
    try:
        return runtime.submit(command)
    except CoordinatorRefused as error:
        return _failed(error)


async def reply_of(kind: type[R], asked: Awaitable[Reply]) -> R:
    """The reply, which has this type. Raises CoordinatorRefused."""
    reply = await asked
    assert isinstance(reply, kind)
    return reply


def _failed(error: CoordinatorRefused) -> asyncio.Future[Reply]:
    future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
    future.set_exception(error)
    # Never awaited if another group of the request fails first: retrieve the error.
    future.exception()
    return future
