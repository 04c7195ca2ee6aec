"""Writes a copy, so that it opens as a whole or not at all.

1. `cluster/copy.json` comes first. A broker refuses a bucket that holds it and no metadata log.
2. The objects of all logs and tables.
3. The snapshot of the metadata log: from here on the copy opens. Then entry 0.

The copier updates a complete copy in place, unless a broker has opened it. A put-if-absent of the
next metadata entry decides that: either a registration has this number, or a registration meets the
copier's object and fails. If the original shows that object too, it is the same bucket by another
address: the copier deletes the object and ends. Otherwise it deletes the snapshot, and steps 2 and
3 follow. It deletes the entry last. The copy does not open meanwhile. An operator who always needs
a copy that opens keeps two.

If the copier dies, the next run continues: each object is put whole, and existing ones stay.
"""

from __future__ import annotations

import asyncio
from collections.abc import Set as AbstractSet

from awscrt.checksums import crc32c

from tidelog.bucket.copy.record import CopyRecord, decode_copy_record, encode_copy_record
from tidelog.bucket.fsck.metadata import entry_key
from tidelog.clock import Clock
from tidelog.coordinator.cluster.log.prefix import (
    COPY_KEY,
    LOG_PREFIX,
    LOG_SUFFIX,
    PROBE_FOLDER,
    SNAPSHOT_PREFIX,
)
from tidelog.coordinator.cluster.log.snapshots import Snapshots
from tidelog.coordinator.cluster.state.state import ClusterState
from tidelog.errors import CorruptObject, Refused
from tidelog.storage.object_store import (
    Buffer,
    IfAbsent,
    ObjectNotFound,
    ObjectStore,
    PreconditionFailed,
)
from tidelog.storage.sequence import NUMBER_DIGITS
from tidelog.workers.offload import Offload


class CopyTarget:
    """The bucket that the copy goes to."""

    def __init__(self, store: ObjectStore, clock: Clock, offload: Offload) -> None:
        self._store = store
        self._clock = clock
        self._offload = offload
        self._keys: set[str] = set()
        self._recorded: CopyRecord | None = None
        self._damaged: set[str] = set()
        self._recording = asyncio.Lock()

    @property
    def keys(self) -> AbstractSet[str]:
        """The keys of the copy's objects, as of `look` and the puts since.

        Without the damaged ones of earlier runs: the original may have been restored.
        """
        return self._keys

    async def look(self) -> CopyRecord | None:
        """List the bucket, and return the record of the copy in it; None if the bucket is empty.

        Raises Refused if it holds anything else.
        """
        self._keys = {
            meta.key async for meta in self._store.list() if not meta.key.startswith(PROBE_FOLDER)
        }
        if not self._keys:
            return None
        if COPY_KEY in self._keys:
            found = decode_copy_record(COPY_KEY, (await self._store.get(COPY_KEY)).data)
            self._damaged = set(found.damaged)
            self._keys -= self._damaged
            return found
        raise Refused(
            f"{self._store.url} is not empty, and no copy that this command has begun: it holds"
            f" {min(self._keys)}. Nothing there was changed. Name an empty bucket or prefix"
        )

    @property
    def is_complete(self) -> bool:
        """Whether a broker could open the copy."""
        return bool(self._numbers(SNAPSHOT_PREFIX))

    async def begin(
        self, present: CopyRecord | None, record: CopyRecord, original: ObjectStore
    ) -> None:
        """Make the bucket an unfinished copy. `present`: the record that `look` has found.

        Raises Refused if a broker has opened the copy, or if the copy is the original itself.
        """
        if present is not None and self.is_complete:
            await self._unpublish(present.metadata.sequence, original)
        await self._record(record)

    async def _unpublish(self, sequence: int, original: ObjectStore) -> None:
        opened = Refused(
            f"a broker has opened the copy in {self._store.url}: it goes its own way since entry"
            f" {sequence + 1} of its metadata log. Nothing there was changed. Name an empty bucket"
            " or prefix"
        )
        entries = self._numbers(LOG_PREFIX)
        if self._numbers(SNAPSHOT_PREFIX) != [sequence] or max(entries, default=0) > sequence + 1:
            raise opened
        following = entry_key(sequence + 1)
        block = (await self._store.get(COPY_KEY)).data
        try:
            await self._store.put(following, block, IfAbsent())
        except PreconditionFailed:
            # The entry may be the block of an earlier run that died.
            if not await _is_block(self._store, following):
                raise opened from None
        self._keys.add(following)
        if await _is_block(original, following):
            await self.delete(following)
            raise Refused(
                f"{self._store.url} is {original.url} by another address, and cannot be copied"
                " onto itself. Nothing there was changed. Name another bucket or prefix"
            )
        # A broker may have passed this number since the bucket was listed.
        async for meta in self._store.list(SNAPSHOT_PREFIX):
            if meta.key not in self._keys:
                raise opened
        await self.delete(_snapshot_key(sequence))

    async def put(self, key: str, data: Buffer, *, is_damaged: bool = False) -> None:
        """Store an object, read it back and compare.

        The record names a damaged one first: a run that dies must not hide it from the next one.
        """
        if is_damaged and key not in self._damaged:
            # One put at a time: of two in flight the older record could land last.
            async with self._recording:
                self._damaged.add(key)
                assert self._recorded is not None
                await self._record(self._recorded)
        await self._store.put(key, data)
        stored = (await self._store.get(key)).data
        if len(stored) != len(data) or crc32c(stored) != crc32c(data):
            raise CorruptObject(
                key, f"{self._store.url} returns other bytes than were put there. Copy again"
            )
        if not is_damaged:
            self._damaged.discard(key)
        self._keys.add(key)

    async def holds(self, key: str, data: Buffer) -> bool:
        """Whether a present object is this one."""
        return bytes((await self._store.get(key)).data) == bytes(data)

    async def publish(self, state: ClusterState, identity: Buffer) -> None:
        """Let the copy open in this state. `identity`: entry 0 of the metadata log."""
        await self._record(CopyRecord(state.cluster_id, state.stamp))
        await Snapshots(self._store, self._clock, self._offload).write(state)
        self._keys.add(_snapshot_key(state.sequence))
        for number in self._numbers(LOG_PREFIX):
            if number > 0:
                await self.delete(entry_key(number))
        await self._store.put(entry_key(0), identity)
        self._keys.add(entry_key(0))

    async def _record(self, record: CopyRecord) -> None:
        self._recorded = record._replace(damaged=tuple(sorted(self._damaged)))
        await self._store.put(COPY_KEY, encode_copy_record(self._recorded))
        self._keys.add(COPY_KEY)

    def _numbers(self, prefix: str) -> list[int]:
        digits = [
            key.removeprefix(prefix).removesuffix(LOG_SUFFIX)
            for key in self._keys
            if key.startswith(prefix)
        ]
        return sorted(int(each) for each in digits if each.isascii() and each.isdigit())

    async def delete(self, key: str) -> None:
        """Delete an object."""
        await self._store.delete(key)
        self._keys.discard(key)


async def _is_block(store: ObjectStore, key: str) -> bool:
    """Whether a copier has put its record in the place of an entry of the metadata log."""
    try:
        decode_copy_record(key, (await store.get(key)).data)
    except (CorruptObject, ObjectNotFound):
        return False
    return True


def _snapshot_key(number: int) -> str:
    return f"{SNAPSHOT_PREFIX}{number:0{NUMBER_DIGITS}d}{LOG_SUFFIX}"
