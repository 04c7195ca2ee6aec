"""The polite end: finish requests, flush the WAL, write a checkpoint, fence oneself.

The WAL's flush keeps what was accepted. The other steps serve the successor alone: a death before
or within such a step leaves the successor more to read, or lets it wait for the lease. A step that
fails does the same; the broker logs it and goes on.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

from tidelog.broker.coordinate.coordinators import Coordinators
from tidelog.broker.running import RunningBroker
from tidelog.coordinator.cluster.log.metadata_log import MetadataLog
from tidelog.coordinator.cluster.membership.openings import Openings
from tidelog.coordinator.cluster.records.records import BrokerFenced
from tidelog.errors import Refused
from tidelog.identifiers import Incarnation, Slot
from tidelog.storage.object_store import StoreError
from tidelog.wal.write.checkpoint import Checkpointer

logger = logging.getLogger(__name__)


async def shut_down(running: RunningBroker) -> None:
    """End politely; everything accepted is durable when this returns."""
    writes, coordinators = running.writes, running.coordination.coordinators
    timeout_ms = running.settings.now().integer("shutdown.timeout.ms")
    await leave_snapshots(coordinators, timeout_ms)
    # Joins that wait for other members, and fetches for records, would hold up the end.
    coordinators.close()
    running.reads.fetcher.close()
    await running.server.close()
    # No client waits for what these tasks still append, and nothing may follow the WAL's end.
    await _ended(running.tasks.appending)
    await leave_checkpoint(writes.checkpointer)
    await writes.wal.close()
    await running.tasks.wal
    durable_end = writes.wal.durable_end
    membership = running.membership
    membership.fence.disregard()
    await fence_oneself(membership.metadata, writes.openings, membership.incarnation, durable_end)
    for task in running.tasks.background:
        task.cancel()


async def _ended(tasks: Sequence[asyncio.Task[Any]]) -> None:
    """Cancel tasks and see them end."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def leave_snapshots(coordinators: Coordinators, timeout_ms: int) -> None:
    """Save the successor time. Without them, it replays more of the coordinators' logs."""
    try:
        async with asyncio.timeout(timeout_ms / 1000):
            await coordinators.snapshot()
    except TimeoutError:
        logger.warning("there was no time for the last snapshots")
    except StoreError as error:
        logger.warning("a last snapshot could not be written", extra={"why": str(error)})


async def leave_checkpoint(checkpointer: Checkpointer) -> None:
    """Save the successor more time. Without it, it reads more of the WAL."""
    try:
        await checkpointer.checkpoint()
    except StoreError as error:
        logger.warning("the last checkpoint could not be written", extra={"why": str(error)})


async def fence_oneself(
    metadata: MetadataLog, openings: Openings, incarnation: Incarnation, durable_end: Slot
) -> None:
    """A successor need not wait for the lease. Without it, it waits."""
    epoch = incarnation.epoch
    try:
        await openings.flush()
        await metadata.append(epoch, lambda _: (BrokerFenced(epoch, durable_end),))
    except (Refused, StoreError) as error:
        logger.warning("the broker could not say farewell", extra={"why": str(error)})
