"""The metadata log's snapshots: the newest, a new one, and the deletion of obsolete objects."""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import dataclass

from tidelog.clock import Clock
from tidelog.coordinator.cluster.log.prefix import LOG_PREFIX, LOG_SUFFIX, SNAPSHOT_PREFIX
from tidelog.coordinator.cluster.state.state import ClusterState
from tidelog.coordinator.cluster.state.state_snapshot import decode_snapshot, encode_snapshot
from tidelog.errors import CorruptObject, MissingObject
from tidelog.storage.object_store import (
    IfAbsent,
    ObjectMeta,
    ObjectNotFound,
    ObjectStore,
    PreconditionFailed,
)
from tidelog.storage.sequence import NUMBER_DIGITS
from tidelog.storage.sightings import Sightings
from tidelog.storage.superseded import retry_if_superseded
from tidelog.workers.offload import Offload

SNAPSHOT_SUFFIX = ".json"

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _ListedSnapshot:
    sequence: int
    meta: ObjectMeta


class Snapshots:
    """`cluster/snapshot/<sequence>.json`, each the state after that entry of the log."""

    def __init__(self, store: ObjectStore, clock: Clock, offload: Offload) -> None:
        self._store = store
        self._clock = clock
        self._offload = offload
        self.seen: Sightings[str] = Sightings()
        """How long each snapshot has been there, by key."""

    async def newest_sequence(self) -> int | None:
        """The sequence of the newest snapshot; None if there is none."""
        listed = await self._list()
        return listed[-1].sequence if listed else None

    async def newest(self) -> ClusterState | None:
        """The newest snapshot's state.

        Raises CorruptObject rather than return an older one, and StoreError.
        """
        # F4: a snapshot is deleted only when a newer one has been listed for long.
        return await retry_if_superseded(self._newest)

    async def _newest(self) -> ClusterState | None:
        listed = await self._list()
        if not listed:
            return None
        try:
            return await self._read(listed[-1])
        except ObjectNotFound as error:
            raise MissingObject(error.key, "it is listed but cannot be read") from error

    async def newest_readable(self) -> tuple[ClusterState | None, list[str]]:
        """The newest readable snapshot's state, and the keys of newer unreadable ones.

        For the repair of a damaged log.
        """
        unreadable: list[str] = []
        for listed in reversed(await self._list()):
            try:
                return await self._read(listed), unreadable
            except (CorruptObject, ObjectNotFound):
                unreadable.append(listed.meta.key)
        return None, unreadable

    async def write(self, state: ClusterState) -> None:
        """Make the state durable. Another process's snapshot of the same entry is equivalent."""
        data = await self._offload.run(encode_snapshot, state, self._clock.time_ms())
        with suppress(PreconditionFailed):
            await self._store.put(_key(state.sequence), data, IfAbsent())
        self.seen.record(_key(state.sequence), self._clock.monotonic())

    async def collect(self, grace_ms: int) -> int:
        """Delete the entries and snapshots below a snapshot older than the grace (A2).

        A snapshot is old when this process has seen it for longer than the grace by its monotonic
        clock (`Sightings`): no wall clock can make one look old. All entries below a snapshot
        existed before it. Entry 0, the bucket's identity, and the snapshot's own entry stay.
        Returns the number of deleted objects.
        """
        listed = await self._list()
        aged = self.seen.seen_for(grace_ms / 1000, self._clock.monotonic())
        if not aged:
            return 0
        newest = max(aged)
        horizon = next((each for each in listed if each.meta.key == newest), None)
        if horizon is None:
            return 0
        # This object alone replaces the deleted ones, so it must be sound.
        await self._read(horizon)
        obsolete = [each.meta.key for each in listed if each.sequence < horizon.sequence]
        async for meta in self._store.list(LOG_PREFIX, start_after=_entry_key(0)):
            if meta.key >= _entry_key(horizon.sequence):
                break
            obsolete.append(meta.key)
        for key in obsolete:
            await self._store.delete(key)
        return len(obsolete)

    async def _list(self) -> list[_ListedSnapshot]:
        listed = []
        async for meta in self._store.list(SNAPSHOT_PREFIX):
            digits = meta.key.removeprefix(SNAPSHOT_PREFIX).removesuffix(SNAPSHOT_SUFFIX)
            if digits.isascii() and digits.isdigit() and meta.key == _key(int(digits)):
                listed.append(_ListedSnapshot(int(digits), meta))
        self.seen.look([each.meta.key for each in listed], self._clock.monotonic())
        return listed

    async def _read(self, listed: _ListedSnapshot) -> ClusterState:
        stored = await self._store.get(listed.meta.key)
        state = await self._offload.run(decode_snapshot, listed.meta.key, stored.data)
        if state.sequence != listed.sequence:
            raise CorruptObject(listed.meta.key, f"it holds the state after {state.sequence}")
        return state


def _key(sequence: int) -> str:
    return f"{SNAPSHOT_PREFIX}{sequence:0{NUMBER_DIGITS}d}{SNAPSHOT_SUFFIX}"


def _entry_key(sequence: int) -> str:
    return f"{LOG_PREFIX}{sequence:0{NUMBER_DIGITS}d}{LOG_SUFFIX}"
