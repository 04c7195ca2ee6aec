"""Reads the bucket that is copied, in the order that `plan` explains. Nothing is written."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial
from typing import Final

from tidelog.bucket.copy.ends import Ends, Instant
from tidelog.bucket.copy.plan import Bases, TablesToCopy
from tidelog.bucket.fsck.metadata import entry_key
from tidelog.bucket.object_keys import STAGED_FOLDER, StateObject, parse_key
from tidelog.bucket.reachability import Anchor, named_handovers, needed_incarnations
from tidelog.bucket.views.reading import TABLES_AT_ONCE_MAX, BucketAccess
from tidelog.concurrency import all_results, read_all
from tidelog.coordinator.cluster.log.leases import read_durable_end
from tidelog.coordinator.cluster.records.topics import Topic
from tidelog.coordinator.cluster.state.incarnations import BrokerInfo
from tidelog.coordinator.snapshot_format import STATE_PREFIX
from tidelog.errors import MissingObject, Refused
from tidelog.identifiers import Incarnation, Slot
from tidelog.storage.object_store import Buffer, ObjectNotFound
from tidelog.storage.table.table_log import commit_key, hint_key, hinted_version
from tidelog.storage.table.table_state import NO_VERSION
from tidelog.wal.format.image_codec import Images
from tidelog.wal.format.object_format import MERGED_FOLDER, wal_key
from tidelog.wal.recover.wal_end import list_slots, proved_end
from tidelog.wal.write.checkpoint import checkpoint_key, decode_checkpoint, newest_checkpoint

WALS_AT_ONCE_MAX: Final = 16


class NeverStill(Refused):
    """The logs grew during each look. The copy does not open."""

    def __init__(self, url: str, looks: int, seconds: float, grown: int, watched: int) -> None:
        super().__init__(
            f"{url}: none of {looks} looks within {seconds:.0f} s found all {watched} logs where"
            f" the look before had left them; {grown} had grown at the last. Copied objects stay"
            " there. Run the command again with a longer --patience, closer to the store, or at a"
            " quieter time"
        )


class SourceChanged(Exception):
    """An object that the round needs is gone. A newer one took its place, or it is lost."""

    def __init__(self, key: str) -> None:
        super().__init__(key)
        self.key = key


class CopySource:
    """A bucket in use."""

    def __init__(self, access: BucketAccess) -> None:
        self._access = access
        self._store = access.store
        self._cluster = access.cluster
        self._wals = asyncio.Semaphore(WALS_AT_ONCE_MAX)

    async def bases(self) -> Bases:
        """Read the metadata log, the newest checkpoints and the named hand-over objects.

        Raises SourceChanged, CorruptObject, UnsupportedFormat, StoreError.
        """
        state = await self._cluster.refresh()
        anchors: dict[Incarnation, Anchor] = {}
        read: dict[str, Buffer] = {}

        async def anchor(owner: Incarnation) -> None:
            slot = await newest_checkpoint(self._store, owner)
            if slot is not None:
                key = checkpoint_key(owner, slot)
                read[key] = await self._get(key)
                checkpoint = await self._access.offload.run(decode_checkpoint, key, read[key])
                anchors[owner] = Anchor.of(slot, checkpoint.images)

        await read_all(anchor, needed_incarnations(state), self._wals)
        objects: set[str] = set()
        for key in named_handovers(state):
            read[key] = await self._get(key)
            objects |= set(Images(key, read[key]).objects)
        return Bases(state, anchors, frozenset(objects), read)

    async def tables(self, bases: Bases) -> TablesToCopy:
        """Read the tables of all topics, and find the coordinators' newest snapshots."""
        segments: dict[str, int] = {}
        others: list[str] = []
        hints: dict[str, Buffer] = {}

        async def table(topic: Topic) -> None:
            found = await self._table(topic, segments, others)
            hints.update(found)

        topics = [topic for topic in bases.state.topics.values() if not topic.internal]
        await read_all(table, topics, asyncio.Semaphore(TABLES_AT_ONCE_MAX))
        newest: dict[tuple[str, int], tuple[int, str]] = {}
        async for meta in self._store.list(STATE_PREFIX):
            snapshot = parse_key(meta.key)
            if isinstance(snapshot, StateObject):
                place = snapshot.topic, snapshot.partition
                found = snapshot.next_offset, meta.key
                newest[place] = max(newest.get(place, found), found)
        others += [key for _, key in newest.values()]
        return TablesToCopy(segments, others, hints)

    async def _table(
        self, topic: Topic, segments: dict[str, int], others: list[str]
    ) -> Mapping[str, Buffer]:
        """Add the objects of one table, and its hint, which was read before the table."""
        key = hint_key(topic.topic_id)
        try:
            hint = {key: (await self._store.get(key)).data}
        except ObjectNotFound:
            hint = {}
        log = await self._access.open_table(topic)
        state = log.state
        for number in state.partitions:
            for stored in state.partition(number).segments:
                segments[stored.segment.key(topic.topic_id)] = stored.segment.crc32c
        first = 0
        if hint:
            version = hinted_version(key, hint[key])
            others.append(log.checkpoint_key(version))
            first = version + 1
        if state.version != NO_VERSION:
            others += [commit_key(topic.topic_id, each) for each in range(first, state.version + 1)]
        return hint

    async def instant(self, bases: Bases, patience_seconds: float) -> Instant:
        """Find a moment at which the ends of all logs are known.

        Raises NeverStill, SourceChanged, CorruptObject, UnsupportedFormat, StoreError.
        """
        clock = self._access.clock
        began = clock.monotonic()
        floors = {owner: anchor.slot for owner, anchor in bases.anchors.items()}
        ends = Ends(await self._cluster.refresh(), floors)
        grown, looks = ends.growing, 0
        while True:
            await read_all(lambda owner: self._walk(ends, owner), grown, self._wals)
            looked_ms = clock.time_ms()
            looks += 1
            keys = [entry_key(ends.next_entry), *ends.next_slots()]
            found = await all_results(map(self._exists, keys))
            present = [key for key, exists in zip(keys, found, strict=True) if exists]
            instant = ends.instant(present, looked_ms, looks)
            if instant is not None:
                prove = partial(self._prove, instant.ends)
                await read_all(prove, instant.state.brokers.values(), self._wals)
                return instant
            seconds = clock.monotonic() - began
            if seconds > patience_seconds:
                raise NeverStill(self._store.url, looks, seconds, len(present), len(keys))
            known = set(ends.growing)
            ends.follow(await self._cluster.refresh())
            grown = [
                owner
                for owner in ends.growing
                if owner not in known or wal_key(owner, ends.end(owner)) in present
            ]

    async def loose(self) -> list[str]:
        """The listed merged and staged objects, without foreign ones."""
        return [
            meta.key
            for folder in (MERGED_FOLDER, STAGED_FOLDER)
            async for meta in self._store.list(folder)
            if parse_key(meta.key) is not None
        ]

    async def _walk(self, ends: Ends, owner: Incarnation) -> None:
        start = ends.end(owner)
        listed = list_slots(self._store, owner, start)
        ends.extend(owner, [(slot, meta.size) async for slot, meta in listed])

    async def _exists(self, key: str) -> bool:
        try:
            await self._store.head(key)
        except ObjectNotFound:
            return False
        return True

    async def _prove(self, ends: Mapping[Incarnation, Slot], info: BrokerInfo) -> None:
        """Check that no confirmed slot is missing at an end (C10).

        The lease alone proves the last slot: no later one tells of it.
        """
        owner, end = info.incarnation, ends[info.incarnation]
        told = await read_durable_end(self._store, info)
        if await proved_end(self._store, owner, end, told) <= end:
            return
        key = wal_key(owner, end)
        if await self._exists(key):
            return
        if (await newest_checkpoint(self._store, owner) or Slot(0)) > end:
            raise SourceChanged(key)
        raise MissingObject(
            key,
            "its writer had confirmed it. The copy would end there. See what is lost with tidelog"
            " bucket repair",
        )

    async def _get(self, key: str) -> Buffer:
        try:
            return (await self._store.get(key)).data
        except ObjectNotFound as error:
            raise SourceChanged(key) from error
