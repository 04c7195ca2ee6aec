"""A polite end: give the partitions to other brokers, finish requests, flush the WAL, write a
checkpoint, fence the own incarnation.

The WAL's flush keeps all accepted records. The other steps only help the successor. If the process
dies before or within such a step, the successor reads more, or waits for the lease. A step that
fails has the same effect; the broker logs it and continues.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

from tidelog.broker.coordinate.coordinators import Coordinators
from tidelog.broker.running import RunningBroker
from tidelog.coordinator.cluster.log.metadata_log import MetadataLog
from tidelog.coordinator.cluster.membership.assignment import spread
from tidelog.coordinator.cluster.membership.tenure_reports import TenureReports
from tidelog.coordinator.cluster.records.records import BrokerFenced
from tidelog.errors import Refused
from tidelog.identifiers import Incarnation, Slot
from tidelog.storage.object_store import StoreError
from tidelog.wal.write.checkpoint import Checkpointer

logger = logging.getLogger(__name__)

DRAINED_AT_ONCE_MAX = 256
"""Partitions that are given at a time: few, so that those of coordinators go first."""


async def shut_down(running: RunningBroker) -> None:
    """End politely; all accepted records are durable when this returns."""
    writes, coordinators = running.writes, running.coordination.coordinators
    timeout_ms = running.settings.now().integer("shutdown.timeout.ms")
    await leave_snapshots(coordinators, timeout_ms)
    if running.settings.now().boolean("controlled.shutdown.enable"):
        await drain(running, timeout_ms)
    # Joins that wait for other members, and fetches that wait for records, would delay the end.
    coordinators.close()
    running.reads.fetcher.close()
    await running.server.close()
    # No client waits for these tasks' appends, and nothing may follow the WAL's end or the fence.
    await _ended(running.tasks.appending)
    await leave_checkpoint(writes.checkpointer)
    await writes.wal.close()
    await running.tasks.wal
    durable_end = writes.wal.durable_end
    membership = running.membership
    membership.fence.disregard()
    await fence_self(
        membership.metadata, writes.tenure_reports, membership.incarnation, durable_end
    )
    await running.server.release()
    for task in running.tasks.background:
        task.cancel()


async def drain(running: RunningBroker, timeout_ms: int) -> None:
    """Give all partitions to the other live brokers, which would else have to take them over."""
    try:
        async with asyncio.timeout(timeout_ms / 1000):
            # Other brokers may give partitions to this one until it has fenced itself.
            while await _give_all(running):
                pass
    except TimeoutError:
        logger.warning("shutdown.timeout.ms was too short for giving the partitions away")
    except (Refused, StoreError) as error:
        logger.warning("partitions could not be given away", extra={"why": str(error)})


async def _give_all(running: RunningBroker) -> int:
    me = running.membership.incarnation.epoch
    owners = spread(running.membership.state(), me, avoided=frozenset({me}))
    moves = [(place, owner) for place, owner in owners.items() if owner != me]
    given = 0
    for begin in range(0, len(moves), DRAINED_AT_ONCE_MAX):
        some = dict(moves[begin : begin + DRAINED_AT_ONCE_MAX])
        given += len(await running.ownership.giving.give(some))
    return given


async def _ended(tasks: Sequence[asyncio.Task[Any]]) -> None:
    """Cancel tasks and wait for their ends."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def leave_snapshots(coordinators: Coordinators, timeout_ms: int) -> None:
    """Write snapshots. Without them, the successor replays more of the coordinators' logs."""
    try:
        async with asyncio.timeout(timeout_ms / 1000):
            await coordinators.snapshot()
    except TimeoutError:
        logger.warning("shutdown.timeout.ms was too short for the last snapshots")
    except StoreError as error:
        logger.warning("a last snapshot could not be written", extra={"why": str(error)})


async def leave_checkpoint(checkpointer: Checkpointer) -> None:
    """Write a checkpoint. Without it, the successor reads more of the WAL."""
    try:
        await checkpointer.checkpoint()
    except StoreError as error:
        logger.warning("the last checkpoint could not be written", extra={"why": str(error)})


async def fence_self(
    metadata: MetadataLog,
    tenure_reports: TenureReports,
    incarnation: Incarnation,
    durable_end: Slot,
) -> None:
    """Fence the own incarnation. Without that, a successor waits for the lease to expire.

    A failed report does not prevent it: the successor only keeps more of the old WALs.
    """
    epoch = incarnation.epoch
    try:
        await tenure_reports.flush()
    except (Refused, StoreError) as error:
        logger.warning("opened partitions could not be reported", extra={"why": str(error)})
    try:
        await metadata.append(epoch, lambda _: (BrokerFenced(epoch, durable_end),))
    except (Refused, StoreError) as error:
        logger.warning("the broker could not fence itself", extra={"why": str(error)})
