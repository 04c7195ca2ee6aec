"""The metadata log's end: which entries are lost, and how the log continues after them (C11).

The sound part is the newest readable snapshot and the entries after it that continue each other.
The entries above, up to the last one that any object in the bucket proves, are lost.

Accepting that, step by step, and the state if the process dies after each:

1. Objects above the sound end, and unreadable ones, are deleted, the highest first. The log is as
   damaged as before, and shows it.
2. Each lost number gets an entry with `LogEndAccepted`. With only some of them, the log still ends
   below the stamps: the next run finds fewer lost entries, and continues.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, replace

from tidelog.bucket.object_keys import (
    CHECKPOINT_FOLDER,
    WAL_FOLDER,
    CheckpointObject,
    MergedObjectKey,
    WalObject,
    parse_key,
)
from tidelog.bucket.views.reading import BucketAccess
from tidelog.coordinator.cluster.log.leases import list_leases
from tidelog.coordinator.cluster.log.log_view import LogView, following
from tidelog.coordinator.cluster.log.prefix import COLLECTION_PREFIX, LOG_PREFIX, LOG_SUFFIX
from tidelog.coordinator.cluster.log.snapshots import Snapshots
from tidelog.coordinator.cluster.log.stamps import found_stamps
from tidelog.coordinator.cluster.records.documents import checksum_of
from tidelog.coordinator.cluster.records.records import (
    EntryRange,
    LogEndAccepted,
    MetadataEntry,
    encode_entry,
)
from tidelog.coordinator.cluster.state.state import ClusterState
from tidelog.errors import CorruptObject
from tidelog.identifiers import Incarnation, MetadataStamp, Slot
from tidelog.storage.object_store import ObjectNotFound, ObjectStore
from tidelog.storage.sequence import NUMBER_DIGITS
from tidelog.wal.format.object_format import MERGED_FOLDER
from tidelog.wal.recover.wal_end import newest_stamps

NAME = "log-end"
"""The name under which the loss is accepted."""


@dataclass(frozen=True, slots=True)
class LogEnd:
    """The findings of a look at the metadata log."""

    good: ClusterState
    """The number after the last entry that is proved right."""
    last: int
    """The last entry that existed, as far as any object proves."""
    why: str
    superfluous: tuple[str, ...]
    """Objects to delete: unreadable snapshots, and entries above the sound end."""

    @property
    def is_whole(self) -> bool:
        return self.last == self.good.sequence

    @property
    def lost(self) -> EntryRange:
        """The lost entries; requires that there are some."""
        return EntryRange(self.good.sequence + 1, self.last)


async def find_log_end(access: BucketAccess) -> LogEnd:
    """Examine the log; nothing is changed.

    Raises InvalidConfiguration if there is no cluster, CorruptObject if even the log's beginning is
    lost, UnsupportedFormat and StoreError.
    """
    store = access.store
    snapshots = Snapshots(store, access.clock, access.offload)
    base, unreadable = await snapshots.newest_readable()
    listed = [number async for number in _entries(store)]
    good, why = await _follow(store, base or ClusterState(), None)
    if good.cluster is None and not listed and not unreadable:
        await access.cluster.refresh()
    if good.cluster is None:
        raise CorruptObject(
            _key(0), f"neither it nor a snapshot can be read ({why}): nothing can be repaired"
        )
    last = max([good.sequence, *listed])
    disagreeing = None
    async for stamp, source in _stamps(store, good):
        last = max(last, stamp.sequence)
        if stamp.sequence > good.sequence:
            why = why or f"{source} was written when it had {_key(stamp.sequence)}"
        elif not good.is_lost_entry(stamp.sequence) and not await _agrees(store, stamp):
            disagreeing = min(stamp.sequence, disagreeing or stamp.sequence)
            why = f"{source} was written when {_key(stamp.sequence)} was another entry"
    if disagreeing is not None:
        if base is not None and disagreeing <= base.sequence:
            raise CorruptObject(_key(disagreeing), f"{why}, and a snapshot stands for it already")
        good, _ = await _follow(store, base or ClusterState(), disagreeing)
    for incarnation in [each async for each in _incarnations(store)]:
        last = max(last, incarnation.epoch)
    above = [_key(number) for number in reversed(listed) if number > good.sequence]
    return LogEnd(good, last, why or "", (*above, *unreadable))


async def accept_log_end(access: BucketAccess, end: LogEnd) -> None:
    """Accept the lost entries. No broker may live meanwhile. StoreError: call again."""
    store, clock = access.store, access.clock
    for key in end.superfluous:
        await store.delete(key)
    if end.is_whole:
        return
    # Marks that were made by the old log do not apply to the new one.
    for key in [meta.key async for meta in store.list(COLLECTION_PREFIX)]:
        # No store takes the names of some foreign objects.
        if parse_key(key) is not None:
            await store.delete(key)
    snapshots = Snapshots(store, clock, access.offload)
    view = LogView(store, clock, access.settings, snapshots)
    await view.load(writing=True)
    for number in range(end.lost.first, end.last + 1):
        entry = MetadataEntry(
            sequence=number,
            writer_id=access.entropy.uuid().bytes,
            time_ms=clock.time_ms(),
            author=None,
            records=(LogEndAccepted(end.lost),),
            previous=view.state.checksum,
        )
        if not await view.put(entry, encode_entry(entry), view.state.apply(entry)):
            raise CorruptObject(_key(number), "a broker writes to the metadata log meanwhile")


async def _follow(
    store: ObjectStore, state: ClusterState, below: int | None
) -> tuple[ClusterState, str]:
    """The state after the last entry that continues the one before it, and why it is the last.

    Stops at the given entry, if any.
    """
    if state.sequence >= 0 and state.checksum is None:
        # A snapshot of the first release does not tell it.
        try:
            data = (await store.get(_key(state.sequence))).data
            state = replace(state, checksum=checksum_of(data))
        except ObjectNotFound:
            pass
    while below is None or state.sequence + 1 < below:
        number = state.sequence + 1
        try:
            data = (await store.get(_key(number))).data
            _, state = following(state, _key(number), number, data)
        except ObjectNotFound:
            return state, ""
        except CorruptObject as error:
            return state, str(error)
    return state, ""


async def _stamps(
    store: ObjectStore, state: ClusterState
) -> AsyncIterator[tuple[MetadataStamp, str]]:
    """All stamps, including those of incarnations whose registration is lost."""
    async for found in found_stamps(store, state):
        yield found
    async for key, lease in list_leases(store):
        incarnation = Incarnation(lease.broker_id, lease.epoch)
        newest = await newest_stamps(store, incarnation, Slot(0))
        if newest is not None:
            yield newest.stamps.metadata, key


async def _agrees(store: ObjectStore, stamp: MetadataStamp) -> bool:
    try:
        return checksum_of((await store.get(_key(stamp.sequence))).data) == stamp.checksum
    except ObjectNotFound:
        return True  # deleted below a snapshot


async def _incarnations(store: ObjectStore) -> AsyncIterator[Incarnation]:
    """The incarnations that have an object, by one listing request for each in each folder."""
    for folder in (WAL_FOLDER, CHECKPOINT_FOLDER, MERGED_FOLDER):
        after = folder
        while True:
            key = await anext((meta.key async for meta in store.list(folder, after)), None)
            if key is None:
                break
            found = parse_key(key)
            if not isinstance(found, WalObject | CheckpointObject | MergedObjectKey):
                # A foreign object: others may follow in its folder.
                after = key
                continue
            yield found.incarnation
            # Continue after all keys of this folder.
            after = key.rpartition("/")[0] + "0"


async def _entries(store: ObjectStore) -> AsyncIterator[int]:
    async for meta in store.list(LOG_PREFIX):
        digits = meta.key.removeprefix(LOG_PREFIX).removesuffix(LOG_SUFFIX)
        if digits.isascii() and digits.isdigit() and meta.key == _key(int(digits)):
            yield int(digits)


def _key(sequence: int) -> str:
    return f"{LOG_PREFIX}{sequence:0{NUMBER_DIGITS}d}{LOG_SUFFIX}"
