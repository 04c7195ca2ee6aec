"""The age from which a superfluous object is a fault."""

from __future__ import annotations

from tidelog.bucket.fsck.context import CheckContext
from tidelog.coordinator.cluster.log.prefix import LEASE_PREFIX, LOG_PREFIX, LOG_SUFFIX
from tidelog.coordinator.cluster.state.state import ClusterState
from tidelog.storage.object_store import ObjectNotFound
from tidelog.storage.sequence import NUMBER_DIGITS

ORPHAN_GRACES = 8
"""An orphan is a fault after so many times `log.delete.grace.ms` (80 minutes by default).

The broker must have lived that long, and the object been superfluous that long.
"""


async def orphaned_before_ms(context: CheckContext, state: ClusterState) -> int:
    """The time, by the store's clock, before which a superfluous object became an orphan.

    0 if no broker has lived long enough to delete it. The present is the time of the newest lease,
    which living brokers rewrite every few seconds. So brokers that have ended are not blamed for
    objects that they could not delete.
    """
    present_ms = 0
    async for meta in context.list(LEASE_PREFIX):
        present_ms = max(present_ms, meta.modified_ms)
    before_ms = present_ms - ORPHAN_GRACES * context.grace_ms
    epochs = [info.epoch for info in state.live_brokers()]
    if not epochs or await entry_put_ms(context, min(epochs)) > before_ms:
        return 0
    return before_ms


async def entry_put_ms(context: CheckContext, sequence: int) -> int:
    """The time of the put of an entry of the metadata log; long ago if it was deleted already."""
    key = f"{LOG_PREFIX}{sequence:0{NUMBER_DIGITS}d}{LOG_SUFFIX}"
    try:
        return (await context.access.store.head(key)).modified_ms
    except ObjectNotFound:
        return 0


def orphan_reason(since_ms: int, before_ms: int) -> str:
    """The text of the fault of an object that is superfluous since then."""
    seconds = (before_ms - since_ms) // 1000
    return f"superfluous for {seconds} s longer than brokers need to delete it"
