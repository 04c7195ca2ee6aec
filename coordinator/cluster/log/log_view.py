"""A process's view of the metadata log: how far it has read, and how long to believe that."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeAlias

from tidelog.clock import Clock
from tidelog.coordinator.cluster.log.prefix import LOG_PREFIX, LOG_SUFFIX
from tidelog.coordinator.cluster.log.snapshots import Snapshots
from tidelog.coordinator.cluster.records.bucket_format import check_supported
from tidelog.coordinator.cluster.records.documents import checksum_of
from tidelog.coordinator.cluster.records.records import (
    MetadataEntry,
    Record,
    decode_entry,
    identify_entry,
)
from tidelog.coordinator.cluster.records.settings import ClusterSettings
from tidelog.coordinator.cluster.state.state import ClusterState
from tidelog.coordinator.cluster.state.transitions import InvalidRecord
from tidelog.errors import CorruptObject, Fenced, MissingObject, UnsupportedFormat
from tidelog.identifiers import MetadataStamp
from tidelog.storage.object_store import Buffer, ObjectNotFound, ObjectStore
from tidelog.storage.sequence import AppendUndecided, Mine, SequenceGone
from tidelog.storage.sequence import Sequence as NumberedObjects

Subscriber: TypeAlias = Callable[[int, Sequence[Record]], None]
"""Called with each entry's number and records, once the state includes them."""


CHECKSUMS_KEPT = 4096
"""Of the newest entries; those of others are read again when they are asked for."""
DAMAGED_LOG_REMEDY = (
    "Nothing was changed. Restore the object from a copy of the bucket, or see what is lost with"
    " tidelog bucket repair"
)


class LogAbandoned(Fenced):
    """This process can no longer know what the metadata log says. A change that was under way may
    or may not have been made. The incarnation must end and start again from the bucket."""


class LogView:
    """The state after the last entry that was read or put; for one caller at a time.

    How long it may be trusted (rule A2): entries are deleted only below a snapshot that is older
    than the grace, and every snapshot above our state was written after `_trusted_since`. So for
    the grace from then on no entry above our state can vanish, and none can be put a second time;
    after half of it no answer is believed, read or put. A view that was idle for long renews its
    trust by looking for snapshots above its state: where there are none, nothing above it was ever
    deleted.

    Raises StoreError, after which it may be used further, and CorruptObject, UnsupportedFormat and
    LogAbandoned, after which it may not.

    The log proves itself (rule C11): each entry names the checksum of the one before, and `verify`
    compares the view with what somebody else had applied. An entry that is lost, or is another than
    the one that was there, is CorruptObject.
    """

    def __init__(
        self, store: ObjectStore, clock: Clock, settings: ClusterSettings, snapshots: Snapshots
    ) -> None:
        self._store = store
        self._clock = clock
        self._snapshots = snapshots
        self._append_seconds = settings.append_timeout_ms / 1000
        self._trust_seconds = settings.delete_grace_ms / 1000 / 2
        self._entries = NumberedObjects(store, clock, LOG_PREFIX, LOG_SUFFIX, identify_entry)
        self._subscribers: list[Subscriber] = []
        self._trusted_since = clock.monotonic()
        self._writing = False
        self._checksums: dict[int, int] = {}
        self.state = ClusterState()

    def subscribe(self, subscriber: Subscriber) -> Callable[[], None]:
        """Call `subscriber` for each further entry, in order; returns the way to end that."""
        self._subscribers.append(subscriber)
        return lambda: self._subscribers.remove(subscriber)

    def key(self, sequence: int) -> str:
        """The object key of an entry."""
        return self._entries.key(sequence)

    async def load(self, *, writing: bool) -> int:
        """Read the newest snapshot and the entries after it; how many those are.

        `state.cluster` is None where there is no cluster yet; then it may be called again.
        """
        self._writing = writing
        self._trusted_since = self._clock.monotonic()
        snapshot = await self._snapshots.newest()
        if snapshot is not None:
            self._adopt(await self._with_checksum(snapshot), ())
        first = self.state.sequence
        await self.catch_up()
        await self._check_no_gap()
        return self.state.sequence - first

    async def catch_up(self) -> None:
        """Read what others have appended."""
        await self._renew_trust()
        started = self._clock.monotonic()
        async for found in self._entries.iterate(self.state.sequence + 1):
            self._require_trust()
            self._absorb(found.number, found.data)
        self._require_trust()
        # Whatever comes above our state was put after the read that found nothing there.
        self._trusted_since = started

    async def put(self, entry: MetadataEntry, data: bytes, after: ClusterState) -> bool:
        """Try to make `data`, which is `entry`, the next one; `after` is the state that it makes.

        False if another's entry took its number; the state includes that one then.
        """
        await self._renew_trust()
        started = self._clock.monotonic()
        trusted_seconds = self._trust_seconds - (started - self._trusted_since)
        seconds = min(self._append_seconds, trusted_seconds)
        try:
            result = await self._entries.append(entry.sequence, data, entry.writer_id, seconds)
        except (AppendUndecided, SequenceGone, CorruptObject, UnsupportedFormat) as error:
            raise abandoned(f"at entry {entry.sequence}: {error}") from error
        self._require_trust()
        if not isinstance(result, Mine):
            self._absorb(entry.sequence, result.data)
            return False
        self._trusted_since = started
        self._adopt(replace(after, checksum=checksum_of(data)), entry.records)
        return True

    async def verify(self, stamp: MetadataStamp, source: str) -> None:
        """Compare the log with what the writer of the object `source` had applied. MissingObject,
        CorruptObject: the log is damaged; the error names the entry."""
        if stamp.sequence > self.state.sequence:
            await self.catch_up()
        key = self.key(stamp.sequence)
        if stamp.sequence > self.state.sequence:
            raise MissingObject(
                self.key(self.state.sequence + 1),
                f"the metadata log ends before it, and {source} was written when it had {key}."
                f" {DAMAGED_LOG_REMEDY}",
            )
        if self.state.is_lost_entry(stamp.sequence):
            return
        checksum = await self._checksum(stamp.sequence)
        if checksum not in (None, stamp.checksum):
            raise CorruptObject(
                key,
                f"it is another entry than the one that was there when {source} was written"
                f" (checksum {checksum:08x}, not {stamp.checksum:08x}). {DAMAGED_LOG_REMEDY}",
            )

    async def _checksum(self, sequence: int) -> int | None:
        """Of an entry up to the view's end; None for one that was deleted below a snapshot."""
        known = self._checksums.get(sequence)
        if known is not None:
            return known
        try:
            stored = await self._entries.read(sequence)
        except ObjectNotFound:
            return None
        decode_entry(self.key(sequence), stored.data)
        return checksum_of(stored.data)

    async def _with_checksum(self, snapshot: ClusterState) -> ClusterState:
        """A snapshot of the first release has none; its entry stays as long as it does."""
        if snapshot.checksum is not None:
            return snapshot
        return replace(snapshot, checksum=await self._checksum(snapshot.sequence))

    async def _check_no_gap(self) -> None:
        """Entries end at the first that is absent; one that was lost must not pass for the end."""
        head = self.state.sequence
        start_after = self.key(head) if head >= 0 else ""
        async for meta in self._store.list(LOG_PREFIX, start_after=start_after):
            number = self._entries.number(meta.key)
            if number is None or number <= head:
                continue
            await self.catch_up()  # it may have come only now
            if self.state.sequence < number:
                raise MissingObject(
                    self.key(self.state.sequence + 1), f"it is missing, although {meta.key} exists"
                )
            return

    def _absorb(self, number: int, data: Buffer) -> None:
        """Apply another's entry."""
        entry, state = following(self.state, self.key(number), number, data)
        self._adopt(state, entry.records)

    def _adopt(self, state: ClusterState, records: Sequence[Record]) -> None:
        if self.state.cluster is None and state.cluster is not None:
            check_supported(state.cluster, self._store.url, writing=self._writing)
        self.state = state
        if state.checksum is not None:
            self._checksums[state.sequence] = state.checksum
            self._checksums.pop(state.sequence - CHECKSUMS_KEPT, None)
        for subscriber in tuple(self._subscribers):
            subscriber(state.sequence, records)

    async def _renew_trust(self) -> None:
        """Where the last look is long ago, see whether anything above our state may be deleted."""
        started = self._clock.monotonic()
        age_seconds = started - self._trusted_since
        if age_seconds <= self._trust_seconds / 2:
            return
        newest = await self._snapshots.newest_sequence()
        if newest is not None and newest > self.state.sequence:
            raise abandoned(
                f"at entry {self.state.sequence}: this process did not read it for"
                f" {age_seconds:.0f} s, and a snapshot at {newest} stands for entries that it has"
                " not seen"
            )
        self._trusted_since = started

    def _require_trust(self) -> None:
        seconds = self._clock.monotonic() - self._trusted_since
        if seconds > self._trust_seconds:
            raise abandoned(
                f"at entry {self.state.sequence}: an answer came {seconds:.0f} s after the last"
                f" look at the log's end, and after {self._trust_seconds:.0f} s (half of"
                " log.delete.grace.ms) none can be believed"
            )


def following(
    state: ClusterState, key: str, number: int, data: Buffer
) -> tuple[MetadataEntry, ClusterState]:
    """The entry in an object that is to follow a state, and the state after it. CorruptObject where
    it cannot, UnsupportedFormat. Pure."""
    entry = decode_entry(key, data)
    if entry.sequence != number:
        raise CorruptObject(key, f"it says that it is entry {entry.sequence}")
    before = state.checksum
    if None not in (entry.previous, before) and entry.previous != before:
        raise CorruptObject(
            key,
            f"it follows an entry with checksum {entry.previous:08x}, and the one before it has"
            f" {before:08x}: that one is another than the one that was there."
            f" {DAMAGED_LOG_REMEDY}",
        )
    try:
        after = state.apply(entry)
    except InvalidRecord as error:
        raise CorruptObject(key, f"it cannot follow the entries before it: {error}") from error
    if after.cluster is None:
        raise CorruptObject(key, "it does not create a cluster")
    return entry, replace(after, checksum=checksum_of(data))


def abandoned(why: str) -> LogAbandoned:
    """The error that ends an incarnation whose view of the log is worthless."""
    return LogAbandoned(
        f"the metadata log was abandoned {why}. What was being appended may or may not be there;"
        " this incarnation ends, and a new one starts from the bucket"
    )
