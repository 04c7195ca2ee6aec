"""The objects that may lie in a bucket's prefix before a cluster is created in it."""

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
"""The marks of each broker id's collector."""
COPY_KEY = "cluster/copy.json"
"""Says that the bucket is a copy (`tidelog bucket copy`)."""
PROBE_FOLDER = "probe/"
"""The store's start-up probe leaves objects here when interrupted; a cluster never does."""
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
    """Whether a cluster may be created here; False if another process has just created one.

    Raises ForeignObjects, naming the first object in key order, if there is any object besides
    probes.
    """
    async for meta in store.list():
        if meta.key.startswith(PROBE_FOLDER):
            continue
        # The creator of a cluster may already have put objects that come first in key order; its
        # log was there before them.
        if await _has_log(store):
            return False
        if await _holds(store, COPY_KEY):
            raise ForeignObjects(
                f"{store.url} holds an unfinished copy of a cluster. Nothing there was changed."
                " Finish it: run tidelog bucket copy again with the same two addresses"
            )
        if meta.key.startswith(DATA_FOLDERS):
            raise ForeignObjects(
                f"{store.url} holds {meta.key}, but no metadata log under {LOG_PREFIX}: a cluster"
                " was removed from here in part, or the address is slightly wrong."
                " Nothing there was changed. Check the address, or empty the prefix"
            )
        raise ForeignObjects(
            f"{store.url} holds {meta.key}, which is not Tidelog's. Nothing there was changed. Give"
            " the cluster a bucket or a prefix of its own"
        )
    return True


async def _holds(store: ObjectStore, key: str) -> bool:
    return any([meta.key == key async for meta in store.list(key)])


async def _has_log(store: ObjectStore) -> bool:
    for prefix in (LOG_PREFIX, SNAPSHOT_PREFIX):
        async for meta in store.list(prefix):
            if _NUMBERED.fullmatch(meta.key):
                return True
    return False
