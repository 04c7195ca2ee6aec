"""The stamps in the bucket: which metadata entries their writers had applied (C11)."""

from __future__ import annotations

from collections.abc import AsyncIterator

from tidelog.coordinator.cluster.log.leases import list_leases
from tidelog.coordinator.cluster.state.state import ClusterState
from tidelog.errors import CorruptObject
from tidelog.identifiers import MetadataStamp, Slot
from tidelog.storage.object_store import ByteRange, ObjectNotFound, ObjectStore
from tidelog.wal.format.object_format import wal_key
from tidelog.wal.recover.wal_end import newest_stamps
from tidelog.wal.write.checkpoint import (
    CHECKPOINT_HEADER_BYTES,
    checkpoint_key,
    decode_checkpoint_header,
    newest_checkpoint,
)


async def found_stamps(
    store: ObjectStore, state: ClusterState
) -> AsyncIterator[tuple[MetadataStamp, str]]:
    """The stamps, each with the key of its object.

    They come from all leases, and from the newest checkpoint and the newest slot of each
    incarnation that is not retired. An incarnation applies the log in order, so its newest stamp
    covers all that it wrote. An unreadable object has none. Raises StoreError, UnsupportedFormat.
    """
    async for key, lease in list_leases(store):
        if lease.metadata is not None:
            yield lease.metadata, key
    for info in state.brokers.values():
        floor = await newest_checkpoint(store, info.incarnation)
        if floor is not None:
            key = checkpoint_key(info.incarnation, floor)
            stamp = await _of_checkpoint(store, key)
            if stamp is not None:
                yield stamp, key
        found = await newest_stamps(store, info.incarnation, floor or Slot(0))
        if found is not None:
            slot, stamps = found
            yield stamps.metadata, wal_key(info.incarnation, slot)


async def _of_checkpoint(store: ObjectStore, key: str) -> MetadataStamp | None:
    try:
        stored = await store.get(key, ByteRange(0, CHECKPOINT_HEADER_BYTES))
        return decode_checkpoint_header(key, stored.data).metadata
    except (ObjectNotFound, CorruptObject):
        return None
