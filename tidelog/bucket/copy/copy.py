"""Copies a bucket in use. `plan` explains the order of reads, `target` the order of writes.

The copy runs in rounds. A round reads bases and tables, and copies the tables' segments, which are
the bulk. If that took long, the next round begins, and finds few new segments. Otherwise the round
finds the instant and copies the objects that the logs need. If an object is gone, the next round
begins.

If this process dies, the original is unchanged, and the copy does not open. The same command
continues it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from awscrt.checksums import crc32c

from tidelog.bucket.copy.ends import Instant
from tidelog.bucket.copy.plan import (
    Bases,
    CopiedTableLog,
    Needed,
    TablesToCopy,
    copied_state,
    copied_table_logs,
    hints_given_up,
    is_followed_by,
    needed,
    snapshots_ahead,
)
from tidelog.bucket.copy.record import CopyRecord
from tidelog.bucket.copy.source import CopySource, SourceChanged
from tidelog.bucket.copy.target import CopyTarget
from tidelog.bucket.fsck.context import Progress
from tidelog.bucket.fsck.metadata import entry_key
from tidelog.bucket.fsck.wal_checks import check_slot
from tidelog.bucket.object_keys import MergedObjectKey, WalObject, parse_key
from tidelog.bucket.views.reading import BucketAccess
from tidelog.concurrency import read_all
from tidelog.errors import CorruptObject, MissingObject, Refused
from tidelog.storage.object_store import Buffer, ObjectNotFound, ObjectStore

OBJECTS_AT_ONCE_MAX: Final = 8
"""Objects in memory at a time."""
BULK_SECONDS_MAX: Final = 60.0
"""After a longer copy of segments the next round begins: objects of old bases may be deleted."""
ROUNDS_MAX: Final = 100


@dataclass(slots=True)
class CopyReport:
    """The work of one run."""

    cluster_id: str = ""
    instant: Instant | None = None
    complete_ms: int = 0
    """The copier's clock, when the copy opened."""
    rounds: int = 0
    objects: int = 0
    """The number of objects that this run copied."""
    bytes: int = 0
    present: int = 0
    """The number of needed objects that the copy had already."""
    faults: dict[str, str] = field(default_factory=dict)
    """Lost and damaged objects of the original, which are the same in the copy."""


class BucketCopy:
    """One run of the command."""

    def __init__(
        self,
        access: BucketAccess,
        target: CopyTarget,
        progress: Progress,
        patience_seconds: float,
    ) -> None:
        self._access = access
        self._store: ObjectStore = access.store
        self._source = CopySource(access)
        self._target = target
        self._progress = progress
        self._patience_seconds = patience_seconds
        self._at_once = asyncio.Semaphore(OBJECTS_AT_ONCE_MAX)
        self._missing: str | None = None
        """The object that the previous round did not find."""
        self._lost: set[str] = set()
        self._is_compared = False
        """Whether table logs and snapshots of earlier runs were compared with the original."""
        self.report = CopyReport()

    async def run(self) -> CopyReport:
        """Copy, and let the copy open.

        Raises Refused, CorruptObject, UnsupportedFormat, StoreError.
        """
        await self._begin()
        while True:
            self.report.rounds += 1
            try:
                instant = await self._round()
            except SourceChanged as gone:
                self._note_missing(gone.key)
                continue
            if instant is not None:
                break
        identity = (await self._store.get(entry_key(0))).data
        await self._target.publish(copied_state(instant), identity)
        self.report.instant = instant
        self.report.complete_ms = self._access.clock.time_ms()
        return self.report

    async def plan(self) -> dict[str, bool]:
        """The objects that a run would need now, and whether each is in the copy. Writes nothing.

        Raises as `run` does.
        """
        await self._target_record()
        while True:
            self.report.rounds += 1
            try:
                bases = await self._source.bases()
                tables = await self._source.tables(bases)
                instant = await self._source.instant(bases, self._patience_seconds)
                logs = needed(bases, instant, await self._source.loose())
            except SourceChanged as gone:
                self._note_missing(gone.key)
                continue
            self.report.instant = instant
            keys = [*tables.segments, *tables.others, *tables.hints, *bases.read, *logs.keys]
            return {key: key in self._target.keys for key in keys}

    async def _begin(self) -> None:
        present = await self._target_record()
        state = self._access.cluster.state
        record = CopyRecord(state.cluster_id, state.stamp)
        await self._target.begin(present, record, self._store)

    async def _target_record(self) -> CopyRecord | None:
        """The record of the copy to continue. Raises Refused if it is of another cluster."""
        state = await self._access.cluster.refresh()
        self.report.cluster_id = state.cluster_id
        present = await self._target.look()
        if present is None:
            return None
        other = Refused(
            f"the target holds a copy of cluster {present.cluster_id}, up to entry"
            f" {present.metadata.sequence} of its metadata log, and {self._store.url} is cluster"
            f" {state.cluster_id} with another history. Nothing there was changed. Name an empty"
            " bucket or prefix"
        )
        if present.cluster_id != state.cluster_id:
            raise other
        try:
            await self._access.cluster.verify(present.metadata, "the copy")
        except CorruptObject:
            raise other from None
        return present

    async def _round(self) -> Instant | None:
        """The instant of the copy; None if the next round must find it. Raises SourceChanged."""
        clock = self._access.clock
        bases = await self._source.bases()
        tables = await self._source.tables(bases)
        began = clock.monotonic()
        await self._copy_tables(tables)
        if clock.monotonic() - began > BULK_SECONDS_MAX and self.report.rounds < ROUNDS_MAX:
            return None
        instant = await self._source.instant(bases, self._patience_seconds)
        if not is_followed_by(bases, instant):
            return None
        await self._copy_logs(bases, needed(bases, instant, await self._source.loose()))
        return instant

    async def _copy_tables(self, tables: TablesToCopy) -> None:
        async def segment(key: str) -> None:
            await self._copy(key, tables.segments[key])

        await read_all(segment, self._absent(tables.segments), self._at_once)
        if not self._is_compared:
            logs = copied_table_logs(tables, self._target.keys)
            await read_all(self._drop_other_history, logs, self._at_once)
            present = self._target.keys
            for key in [*snapshots_ahead(tables, present), *hints_given_up(tables, present)]:
                await self._target.delete(key)
            self._is_compared = True
        await read_all(self._copy, self._absent(tables.others), self._at_once)
        for key, data in tables.hints.items():
            await self._put(key, data)

    async def _drop_other_history(self, log: CopiedTableLog) -> None:
        """Delete the copy's part of a table log that a repair of the original has cut since.

        The repaired log has other objects under the same keys. The highest version goes first: what
        is left after a death shows it to the next run.
        """
        is_other, common = log.is_ahead, log.newest_common
        if not is_other and common is not None:
            try:
                data = (await self._store.get(common)).data
            except ObjectNotFound as error:
                raise SourceChanged(common) from error
            is_other = not await self._target.holds(common, data)
        if is_other:
            for key in reversed(log.keys):
                await self._target.delete(key)

    async def _copy_logs(self, bases: Bases, logs: Needed) -> None:
        await read_all(self._copy, self._absent(logs.keys), self._at_once)
        for key in self._absent(logs.seals):
            try:
                await self._copy(key)
            except SourceChanged:
                continue
        for key, data in bases.read.items():
            await self._put(key, data)

    def _absent(self, keys: Iterable[str]) -> list[str]:
        """The keys that the copy lacks. Objects are immutable: a sound one of the key is the
        same."""
        keys = list(keys)
        absent = [key for key in keys if key not in self._target.keys]
        if self.report.rounds == 1:
            self.report.present += len(keys) - len(absent)
        return [key for key in absent if key not in self._lost]

    async def _copy(self, key: str, checksum: int | None = None) -> None:
        """Copy an object as it is. Raises SourceChanged if it is gone."""
        try:
            data = (await self._store.get(key)).data
        except ObjectNotFound as error:
            raise SourceChanged(key) from error
        fault = await self._access.offload.run(_fault, key, data, checksum)
        if fault is not None:
            self.report.faults[key] = fault
        await self._put(key, data, is_damaged=fault is not None)

    async def _put(self, key: str, data: Buffer, *, is_damaged: bool = False) -> None:
        await self._target.put(key, data, is_damaged=is_damaged)
        self.report.objects += 1
        self.report.bytes += len(data)
        self._progress(key)

    def _note_missing(self, key: str) -> None:
        """Note an object that a round did not find. After two rounds in a row it is lost.

        The copy lacks a lost object as well. Raises MissingObject if a further round needs it.
        """
        if key in self._lost:
            raise MissingObject(key, "it is listed, and no round could read it")
        if key == self._missing:
            self._lost.add(key)
            self.report.faults[key] = "the original lacks it"
        self._missing = key


def _fault(key: str, data: Buffer, checksum: int | None) -> str | None:
    """Why an object's own checksums do not match; None if they do."""
    if checksum is not None:
        return None if crc32c(data) == checksum else "its checksum is not the one in its table"
    if not isinstance(parse_key(key), WalObject | MergedObjectKey):
        return None
    try:
        check_slot(key, data)
    except CorruptObject as error:
        return error.why
    return None
