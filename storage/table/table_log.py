"""The table log of a topic: commits by put-if-absent, checkpoints, clean-up.

Its entries are a Delta Lake log, so that other engines can read the table. The rules are A1 to A3,
E1 to E3 and G1 of `docs/architecture/rules.md`; `docs/formats/table.md` has the bytes.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, TypeAlias

from tidelog.clock import Clock
from tidelog.crash_points import NO_CRASH_POINTS, CrashPoint, CrashPoints
from tidelog.entropy import Entropy
from tidelog.errors import CorruptObject, MissingObject
from tidelog.identifiers import TopicId
from tidelog.storage.object_store import (
    Buffer,
    IfAbsent,
    IfMatch,
    ObjectNotFound,
    ObjectStore,
    PreconditionFailed,
    StoreNotApplied,
)
from tidelog.storage.segment.segment import table_prefix
from tidelog.storage.sequence import NUMBER_DIGITS, AppendUndecided, Mine, Sequence
from tidelog.storage.sightings import Sightings
from tidelog.storage.table.table_change import (
    Commit,
    PartitionChange,
    decode_commit,
    encode_commit,
    writer_id_of,
)
from tidelog.storage.table.table_checkpoint import capture, decode_checkpoint, encode_checkpoint
from tidelog.storage.table.table_schema import metadata
from tidelog.storage.table.table_state import NO_VERSION, CommitRefusal, TableState
from tidelog.workers.offload import Offload

LOG_FOLDER: Final = "_delta_log/"
CHECKPOINT_COMMITS: Final = 50
"""Commits after which a checkpoint is due: the most that a reader replays after one."""
DELETE_GRACE_SECONDS: Final = 600.0
"""`log.delete.grace.ms`: how long an entry stays after a checkpoint has superseded it."""
REMOVED_RETENTION_MS: Final = 24 * 3600 * 1000
"""How long checkpoints name removed segments."""
APPEND_DEADLINE_SECONDS: Final = 30.0
COMMIT_ATTEMPTS: Final = 32
"""Attempts of one commit. Each lost attempt means that another writer's commit succeeded."""
CLEAN_UP_DELETES_MAX: Final = 1000
_OPEN_ATTEMPTS = 5
_FRESH_SHARE = 0.25


@dataclass(frozen=True, slots=True)
class TableCommitted:
    """The change is durable."""

    version: int


class SegmentsTooOld(StoreNotApplied):
    """A collector may already treat the commit's segments as garbage. Nothing was committed."""


CommitResult: TypeAlias = TableCommitted | CommitRefusal


@dataclass(frozen=True, slots=True)
class _Hint:
    """The contents of `_last_checkpoint`. Its version only grows."""

    version: int
    etag: str


def log_prefix(topic_id: TopicId) -> str:
    """The key prefix of all objects of a topic's table log."""
    return table_prefix(topic_id) + LOG_FOLDER


def commit_key(topic_id: TopicId, version: int) -> str:
    return f"{log_prefix(topic_id)}{version:0{NUMBER_DIGITS}d}.json"


def hint_key(topic_id: TopicId) -> str:
    """The key of the object that names a table's newest checkpoint."""
    return f"{log_prefix(topic_id)}_last_checkpoint"


def hinted_version(key: str, data: Buffer) -> int:
    """The version of the checkpoint that the object at `key` names. Raises CorruptObject."""
    try:
        version = int(json.loads(bytes(data))["version"])
    except (ValueError, KeyError, TypeError, OverflowError) as error:
        raise CorruptObject(key, f"it does not decode: {error!r}") from None
    if not 0 <= version < 10**NUMBER_DIGITS:
        raise CorruptObject(key, "it names a version that no checkpoint can have")
    return version


class TableLog:
    """One topic's table, as one process reads and changes it.

    Staleness: an entry is deleted only when a checkpoint at or above it is older than the grace. So
    a writer that saw entry n + 1 absent less than the grace ago cannot create a number that was
    used and deleted (A2). `commit` refreshes a view older than a quarter of the grace. It rejects
    answers that come more than half of the grace after the view.
    """

    def __init__(
        self,
        store: ObjectStore,
        clock: Clock,
        entropy: Entropy,
        offload: Offload,
        topic_id: TopicId,
        topic: str,
        grace_seconds: float = DELETE_GRACE_SECONDS,
        crash_points: CrashPoints = NO_CRASH_POINTS,
        checkpoints_seen: Sightings[int] | None = None,
    ) -> None:
        """Use `open`. `topic` is the name that other engines show."""
        self._store = store
        self._clock = clock
        self._entropy = entropy
        self._offload = offload
        self._topic = topic
        self._grace_seconds = grace_seconds
        self._crash_points = crash_points
        self._checkpoints_seen = Sightings() if checkpoints_seen is None else checkpoints_seen
        self._prefix = log_prefix(topic_id)
        self._hint_key = hint_key(topic_id)
        self._sequence = Sequence(store, clock, self._prefix, ".json", self._identify)
        self._lock = asyncio.Lock()
        self._seen_at = float("-inf")
        self._checkpointed = NO_VERSION
        self.state = TableState(topic_id)
        """The state at the version that was read or committed last. Callers must not change it."""

    @classmethod
    async def open(
        cls,
        store: ObjectStore,
        clock: Clock,
        entropy: Entropy,
        offload: Offload,
        topic_id: TopicId,
        topic: str,
        grace_seconds: float = DELETE_GRACE_SECONDS,
        crash_points: CrashPoints = NO_CRASH_POINTS,
        checkpoints_seen: Sightings[int] | None = None,
    ) -> TableLog:
        """The table's current state. A table without a commit has NO_VERSION.

        `checkpoints_seen`: what this process has observed of the topic's checkpoints, which
        `clean_up` needs and adds to.

        It costs a read of the hint, of the checkpoint and of the commits after it, and a listing of
        later keys. CorruptObject names the wrong or missing object.
        """
        log = cls(
            store,
            clock,
            entropy,
            offload,
            topic_id,
            topic,
            grace_seconds,
            crash_points,
            checkpoints_seen,
        )
        async with log._lock:
            await log._open()
        return log

    @property
    def topic_id(self) -> TopicId:
        return self.state.topic_id

    @property
    def checkpoint_due(self) -> bool:
        """True if CHECKPOINT_COMMITS commits follow the newest checkpoint."""
        return self.state.version - self._checkpointed >= CHECKPOINT_COMMITS

    @property
    def is_busy(self) -> bool:
        """True while a commit or a refresh is under way."""
        return self._lock.locked()

    def key(self, version: int) -> str:
        return self._sequence.key(version)

    def checkpoint_key(self, version: int) -> str:
        return f"{self._prefix}{version:0{NUMBER_DIGITS}d}.checkpoint.parquet"

    async def refresh(self) -> int:
        """Read other writers' commits; returns the current version."""
        async with self._lock:
            await self._refresh()
            return self.state.version

    async def commit(
        self, changes: tuple[PartitionChange, ...], begun_at: float | None = None
    ) -> CommitResult:
        """Make the changes one version of the table, or return why they are invalid.

        `begun_at` (the clock's `monotonic`): none of the added segments was put before this time. A
        collector may delete an unlisted segment once its table has advanced the grace after the
        put. So after each refresh `commit` checks that the segments are younger than half of the
        grace. If they are older, it raises SegmentsTooOld and commits nothing.

        | Outcome | Meaning |
        |---|---|
        | CommitRefusal | the table has changed: read `state`, drop what it has, continue (E2) |
        | StoreNotApplied | nothing was committed |
        | AppendUndecided | the commit may be, or become, durable; the next call resolves it first |
        """
        if not changes:
            raise ValueError("a commit changes at least one partition")
        async with self._lock:
            looked = self._is_stale()
            if looked:
                await self._refresh()
            for _ in range(COMMIT_ATTEMPTS):
                refusal = self.state.refusal(changes)
                if refusal is not None:
                    # This view may be stale, and the change valid in the current state.
                    if looked:
                        return refusal
                    await self._refresh()
                    looked = True
                    continue
                self._refuse_if_old(begun_at)
                if await self._append(changes):
                    return TableCommitted(self.state.version)
                looked = True
            raise StoreNotApplied(
                self._prefix, f"{COMMIT_ATTEMPTS} commits of others came first; nothing was applied"
            )

    async def fence(self) -> int:
        """Commit a version without changes, and return its number.

        A concurrent writer that was about to commit reads this version first and checks the age of
        its segments again. Raises as `commit` does.
        """
        async with self._lock:
            for _ in range(COMMIT_ATTEMPTS):
                if self._is_stale():
                    await self._refresh()
                if await self._append(()):
                    return self.state.version
            raise StoreNotApplied(
                self._prefix, f"{COMMIT_ATTEMPTS} commits of others came first; nothing was applied"
            )

    def _refuse_if_old(self, begun_at: float | None) -> None:
        if begun_at is None:
            return
        age = self._clock.monotonic() - begun_at
        if age > self._grace_seconds / 2:
            raise SegmentsTooOld(
                self._prefix,
                f"segments were written {age:.0f} s ago and may be collected; nothing was"
                " committed. Write them again",
            )

    async def write_checkpoint(self) -> int:
        """Write a checkpoint of the current version, point readers to it, and return the version.

        ValueError for a table without a commit.
        """
        if self.state.version == NO_VERSION:
            raise ValueError(f"{self._prefix}: a table without a commit has no checkpoint")
        self.state.forget_removed(self._clock.time_ms() - REMOVED_RETENTION_MS)
        checkpoint = capture(self.state)
        file = await self._offload.run(encode_checkpoint, checkpoint)
        # Another writer's checkpoint of the same version has the same content.
        with suppress(PreconditionFailed):
            await self._store.put(self.checkpoint_key(checkpoint.version), file.pieces, IfAbsent())
        self._crash_points.hit(CrashPoint.TABLE_CHECKPOINT_STORED)
        hint = {
            "version": checkpoint.version,
            "size": checkpoint.actions,
            "sizeInBytes": file.size_bytes,
            "numOfAddFiles": len(checkpoint.segments),
        }
        await self._point_to(checkpoint.version, json.dumps(hint).encode())
        self._checkpointed = max(self._checkpointed, checkpoint.version)
        self._note_checkpoint(checkpoint.version)
        return checkpoint.version

    async def clean_up(self) -> int:
        """Delete commits and checkpoints below a checkpoint that is older than the grace, oldest
        first.

        Returns the number of deleted objects: at most CLEAN_UP_DELETES_MAX. A checkpoint is old if
        this process has observed it for longer than the grace by its monotonic clock (`Sightings`),
        from the opening that read it, its put, or a listing on. So no wall clock can make a
        checkpoint look old. A restarted process waits again.
        """
        hint = await self._read_hint()
        if hint is None:
            return 0
        found: list[tuple[int, str]] = []
        checkpoints: list[int] = []
        async for meta in self._store.list(self._prefix):
            version = self._sequence.number(meta.key)
            if version is None:
                version = self._checkpoint_version(meta.key)
                if version is None:
                    continue
                if version <= hint.version:
                    checkpoints.append(version)
            found.append((version, meta.key))
        now = self._clock.monotonic()
        self._checkpoints_seen.look(checkpoints, now)
        aged = self._checkpoints_seen.seen_for(self._grace_seconds, now)
        kept = max(aged, default=NO_VERSION)
        needless = [key for version, key in found if version < kept][:CLEAN_UP_DELETES_MAX]
        for key in needless:
            self._crash_points.hit(CrashPoint.TABLE_ENTRY_NEEDLESS)
            await self._store.delete(key)
        return len(needless)

    def _note_checkpoint(self, version: int) -> None:
        """A checkpoint is in the store. Those below the newest one that is old do not matter."""
        now = self._clock.monotonic()
        self._checkpoints_seen.record(version, now)
        old = self._checkpoints_seen.seen_for(self._grace_seconds, now)
        self._checkpoints_seen.forget(set(old) - {max(old, default=version)})

    async def _open(self) -> None:
        missing: str | None = None
        for _ in range(_OPEN_ATTEMPTS):
            seen_at = self._clock.monotonic()
            # A missing object was cleaned up after the hint was read, or is lost. A second read of
            # the hint tells which (rule F4).
            lost = await self._read_all()
            if lost is None:
                self._seen_at = seen_at
                return
            if lost == missing:
                raise MissingObject(lost, "it is missing, and later ones are there")
            missing = lost
        raise StoreNotApplied(self._prefix, "the log changed while it was read; nothing was done")

    async def _read_all(self) -> str | None:
        """Read the newest checkpoint and later commits; returns the key of a missing object."""
        hint = await self._read_hint()
        topic_id = self.state.topic_id
        if hint is None:
            self.state, self._checkpointed = TableState(topic_id), NO_VERSION
        else:
            key = self.checkpoint_key(hint.version)
            try:
                stored = await self._store.get(key)
            except ObjectNotFound:
                return key
            self.state = await self._offload.run(
                decode_checkpoint, key, stored.data, topic_id, hint.version
            )
            self._checkpointed = hint.version
            self._note_checkpoint(hint.version)
        await self._replay()
        while await self._has_more():
            version = self.state.version
            await self._replay()
            if self.state.version == version:
                return self.key(version + 1)
        return None

    async def _refresh(self) -> None:
        seen_at = self._clock.monotonic()
        hint = await self._read_hint()
        if hint is not None and hint.version > self.state.version:
            # The missing commits may already be deleted.
            await self._open()
            return
        await self._replay()
        self._seen_at = seen_at

    async def _replay(self) -> None:
        """Apply the commits after the current version, up to the first absent one."""
        async for entry in self._sequence.iterate(self.state.version + 1):
            await self._apply(entry.number, entry.data)

    async def _apply(self, version: int, data: Buffer) -> None:
        key = self.key(version)
        commit = await self._offload.run(decode_commit, key, data, self.state.topic_id)
        self.state.apply(key, version, commit)

    async def _append(self, changes: tuple[PartitionChange, ...]) -> bool:
        """True if the changes became the next version.

        If another writer's commit took it, that commit and later ones are applied, and the result
        is False.
        """
        version, now_ms = self.state.version + 1, self._clock.time_ms()
        described = metadata(self.state.topic_id, self._topic, now_ms) if version == 0 else None
        commit = Commit(
            writer_id=self._entropy.uuid().bytes,
            timestamp_ms=now_ms,
            changes=changes,
            metadata=described,
        )
        data = encode_commit(commit)
        seen_at, self._seen_at = self._seen_at, float("-inf")
        started_at = self._clock.monotonic()
        # Together with the greatest age of a view this makes half of the grace (A2).
        seconds = min(APPEND_DEADLINE_SECONDS, self._grace_seconds * _FRESH_SHARE)
        result = await self._sequence.append(version, data, commit.writer_id, seconds)
        answered_at = self._clock.monotonic()
        if answered_at - seen_at > self._grace_seconds / 2:
            raise AppendUndecided(
                self.key(version),
                f"the answer came {answered_at - seen_at:.0f} s after the log was read, and may be"
                " about an entry that was deleted since; the commit may or may not be there",
            )
        if isinstance(result, Mine):
            self.state.apply(self.key(version), version, commit)
            # Entries above this one are put later.
            self._seen_at = started_at
            return True
        await self._apply(version, result.data)
        await self._replay()
        self._seen_at = answered_at
        return False

    def _is_stale(self) -> bool:
        age = self._clock.monotonic() - self._seen_at
        return age > self._grace_seconds * _FRESH_SHARE

    async def _has_more(self) -> bool:
        """True if the listing has a commit above the current version."""
        after = self.key(self.state.version) if self.state.version > NO_VERSION else ""
        async for meta in self._store.list(self._prefix, after):
            if self._sequence.number(meta.key) is not None:
                return True
        return False

    async def _read_hint(self) -> _Hint | None:
        try:
            stored = await self._store.get(self._hint_key)
        except ObjectNotFound:
            return None
        return _Hint(hinted_version(self._hint_key, stored.data), stored.etag)

    async def _point_to(self, version: int, data: bytes) -> None:
        """Put the hint, unless the stored hint has the same or a newer version."""
        while True:
            hint = await self._read_hint()
            if hint is not None and hint.version >= version:
                return
            try:
                await self._store.put(
                    self._hint_key, data, IfAbsent() if hint is None else IfMatch(hint.etag)
                )
                return
            except PreconditionFailed:
                # Another writer moved the hint forward. It only moves forward, so this loop ends.
                continue

    def _checkpoint_version(self, key: str) -> int | None:
        digits = key.removeprefix(self._prefix).removesuffix(".checkpoint.parquet")
        if not (digits.isascii() and digits.isdigit()):
            return None
        return int(digits) if key == self.checkpoint_key(int(digits)) else None

    def _identify(self, data: Buffer) -> bytes:
        return writer_id_of(f"{self._prefix}...", data)
