"""What a broker that ends politely does for its successor, each step on its own.

None of it is needed: who dies before or within a step leaves its successor more to read, or lets it
wait for the lease, and so does a step that fails. It is said in the log and passed over.
"""

from __future__ import annotations

import asyncio
import logging

from tidelog.broker.coordinate.coordinators import Coordinators
from tidelog.coordinator.cluster.log.metadata_log import MetadataLog
from tidelog.coordinator.cluster.membership.openings import Openings
from tidelog.coordinator.cluster.records.records import BrokerFenced
from tidelog.errors import Refused
from tidelog.identifiers import Incarnation, Slot
from tidelog.storage.object_store import StoreError
from tidelog.wal.write.checkpoint import Checkpointer

logger = logging.getLogger(__name__)


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
