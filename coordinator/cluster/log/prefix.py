"""What may lie in a bucket's prefix before a cluster is created in it."""

from __future__ import annotations

import re

from tidelog.errors import ForeignObjects
from tidelog.storage.object_store import ObjectStore
from tidelog.storage.sequence import NUMBER_DIGITS

CLUSTER_FOLDER = "cluster/"
LOG_PREFIX = "cluster/log/"
LOG_SUFFIX = ".json"
SNAPSHOT_PREFIX = "cluster/snapshot/"
LEASE_PREFIX = "cluster/lease/"
COLLECTION_PREFIX = "cluster/collection/"
"""What the collectors of each broker id have observed so far."""
PROBE_FOLDER = "probe/"
"""What the store's start-up probe leaves behind when it is interrupted; never a cluster's."""
_NUMBERED = re.compile(rf"({LOG_PREFIX}|{SNAPSHOT_PREFIX})\d{{{NUMBER_DIGITS}}}{LOG_SUFFIX}")
DATA_FOLDERS = (
    CLUSTER_FOLDER,
    "wal/",
    "checkpoint/",
    "merged/",
    "handover/",
    "staged/",
    "state/",
    "topics/",
)


async def check_unused(store: ObjectStore) -> bool:
    """Whether a cluster may be created here; False if somebody has just created one.

    ForeignObjects, naming the first object in key order, if there is anything else than probes.
    """
    async for meta in store.list():
        if meta.key.startswith(PROBE_FOLDER):
            continue
        # Whoever has just created a cluster may have gone on with objects that come first in order;
        # its log was there before them.
        if await _has_log(store):
            return False
        if meta.key.startswith(DATA_FOLDERS):
            raise ForeignObjects(
                f"{store.url} holds {meta.key}, but no metadata log under {LOG_PREFIX}: a cluster"
                " was removed from here in part, or the address is not quite the right one."
                " Nothing there was changed. Check the address, or empty the prefix"
            )
        raise ForeignObjects(
            f"{store.url} holds {meta.key}, which is not Tidelog's. Nothing there was changed. Give"
            " the cluster a bucket or a prefix of its own"
        )
    return True


async def _has_log(store: ObjectStore) -> bool:
    for prefix in (LOG_PREFIX, SNAPSHOT_PREFIX):
        async for meta in store.list(prefix):
            if _NUMBERED.fullmatch(meta.key):
                return True
    return False
