"""The implementation of `tidelog bucket repair`."""

from __future__ import annotations

import asyncio
from collections.abc import Collection

from tidelog.bucket.fsck.context import Progress
from tidelog.bucket.views.bucket import Bucket
from tidelog.clock import SystemClock
from tidelog.coordinator.cluster.membership import processes
from tidelog.entropy import SystemEntropy
from tidelog.repair.repair import DamageSurvey, Processes, accept, survey
from tidelog.storage.stores.location import open_reader, open_store
from tidelog.wal.settings import WalSettings
from tidelog.workers.offload import ThreadOffload

THREADS = 2


def repair_bucket(url: str, accepted: Collection[str], progress: Progress) -> DamageSurvey:
    """Accept the named losses, if any, and return the survey of the remaining ones.

    `progress` is as for `survey`. Raises as `accept` does.
    """
    return asyncio.run(_repair(url, accepted, progress))


async def _repair(url: str, accepted: Collection[str], progress: Progress) -> DamageSurvey:
    clock, entropy, offload = SystemClock(), SystemEntropy(), ThreadOffload(THREADS)
    store = open_store(url, clock, entropy) if accepted else open_reader(url, clock, entropy)
    try:
        if accepted:
            in_flight_max = WalSettings().uploads_in_flight_max
            bucket = Bucket.unread(store, clock, entropy, offload)
            me = Processes(processes.current(), processes.is_running)
            await accept(bucket.access, accepted, me, in_flight_max, progress)
        access = Bucket.unread(store, clock, entropy, offload).access
        return await survey(access, progress=progress)
    finally:
        offload.close()
        await store.close()
