"""A process's view of the metadata log: its read position, and how long the view is valid."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple, TypeAlias

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
from tidelog.coordinator.cluster.state.draft import InvalidRecord
from tidelog.coordinator.cluster.state.state import ClusterState
from tidelog.errors import CorruptObject, Fenced, MissingObject, UnsupportedFormat
from tidelog.identifiers import MetadataStamp
from tidelog.storage.object_store import Buffer, ObjectNotFound, ObjectStore
from tidelog.storage.sequence import AppendUndecided, Mine, SequenceGone
from tidelog.storage.sequence import Sequence as NumberedObjects

Subscriber: TypeAlias = Callable[[int, Sequence[Record]], None]
"""Called with each entry's number and records, after the state has applied them."""


CHECKSUMS_KEPT = 4096
"""The newest entries whose checksums are cached; others are read again on demand."""
DAMAGED_LOG_REMEDY = (
    "Nothing was changed. Restore the object from a copy of the bucket, or see what is lost with"
    " tidelog bucket repair"
)


class _Subscription(NamedTuple):
    subscriber: Subscriber
    kinds: tuple[type[Record], ...]


class LogAbandoned(Fenced):
    """This process can no longer know the content of the metadata log.

    A pending change may or may not have been made. The incarnation must end and start again from
    the bucket.
    """


class LogView:
    """The state after the last entry that was read or put. It serves one caller at a time.

    Its validity (rule A2): entries are deleted only below a snapshot older than the grace. Every
    snapshot above this state was written after `_trusted_since`. So within the grace from then on
    no entry above the state can vanish, and none can be put a second time. After half of the grace
    the view believes no answer to a read or a put. A view that was idle for long looks for
    snapshots above its state. If there are none, no entry above it was ever deleted, and the view
    is valid again.

    After StoreError the view remains usable. After CorruptObject, UnsupportedFormat and
    LogAbandoned it does not.

    The log proves itself (rule C11): each entry names the checksum of the one before, and `verify`
    compares the view with another process's stamp. A lost or replaced entry is CorruptObject.
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
        self._subscriptions: list[_Subscription] = []
        self._trusted_since = clock.monotonic()
        self._writing = False
        self._checksums: dict[int, int] = {}
        self.state = ClusterState()

    def subscribe(self, subscriber: Subscriber, *kinds: type[Record]) -> Callable[[], None]:
        """Call `subscriber` for each further entry, in order; the returned function ends that.

        With `kinds`: only for entries that have a record of one of these kinds.
        """
        subscription = _Subscription(subscriber, kinds)
        self._subscriptions.append(subscription)
        return lambda: self._subscriptions.remove(subscription)

    def key(self, sequence: int) -> str:
        """The object key of an entry."""
        return self._entries.key(sequence)

    async def load(self, *, writing: bool) -> int:
        """Read the newest snapshot and the entries after it; return the number of those entries.

        `state.cluster` is None if there is no cluster yet; then `load` may be called again.
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
        """Read the entries that other processes have appended."""
        await self._renew_trust()
        started = self._clock.monotonic()
        async for found in self._entries.iterate(self.state.sequence + 1):
            self._require_trust()
            self._absorb(found.number, found.data)
        self._require_trust()
        # Any later entry was put after the read that found the end.
        self._trusted_since = started

    async def put(self, entry: MetadataEntry, data: bytes, after: ClusterState) -> bool:
        """Try to append `entry`, encoded as `data`; `after` is the state after it.

        False if another entry took its number; the state then includes that entry.
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
        """Compare the log with the stamp that the writer of the object `source` had applied.

        MissingObject, CorruptObject: the log is damaged; the error names the entry.
        """
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

    async def includes(self, stamp: MetadataStamp) -> bool:
        """Whether the log has the stamp's entry, or had it and it is deleted below a snapshot.

        False for an entry behind the view's end.
        """
        if stamp.sequence > self.state.sequence:
            return False
        if self.state.is_lost_entry(stamp.sequence):
            return True
        return await self._checksum(stamp.sequence) in (None, stamp.checksum)

    async def _checksum(self, sequence: int) -> int | None:
        """The checksum of an entry up to the view's end; None if it was deleted below a
        snapshot."""
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
        """Add the checksum that snapshots of the first release lack. Their entry is kept."""
        if snapshot.checksum is not None:
            return snapshot
        return replace(snapshot, checksum=await self._checksum(snapshot.sequence))

    async def _check_no_gap(self) -> None:
        """Check that no entry exists beyond the end: a lost entry must not look like the end."""
        head = self.state.sequence
        start_after = self.key(head) if head >= 0 else ""
        async for meta in self._store.list(LOG_PREFIX, start_after=start_after):
            number = self._entries.number(meta.key)
            if number is None or number <= head:
                continue
            await self.catch_up()  # the entry may be new
            if self.state.sequence < number:
                raise MissingObject(
                    self.key(self.state.sequence + 1), f"it is missing, although {meta.key} exists"
                )
            return

    def _absorb(self, number: int, data: Buffer) -> None:
        """Apply another process's entry."""
        entry, state = following(self.state, self.key(number), number, data)
        self._adopt(state, entry.records)

    def _adopt(self, state: ClusterState, records: Sequence[Record]) -> None:
        if self.state.cluster is None and state.cluster is not None:
            check_supported(state.cluster, self._store.url, writing=self._writing)
        self.state = state
        if state.checksum is not None:
            self._checksums[state.sequence] = state.checksum
            self._checksums.pop(state.sequence - CHECKSUMS_KEPT, None)
        for subscriber, kinds in tuple(self._subscriptions):
            if not kinds or any(isinstance(record, kinds) for record in records):
                subscriber(state.sequence, records)

    async def _renew_trust(self) -> None:
        """After a long pause, check that no entry above the state may have been deleted."""
        started = self._clock.monotonic()
        age_seconds = started - self._trusted_since
        if age_seconds <= self._trust_seconds / 2:
            return
        newest = await self._snapshots.newest_sequence()
        if newest is not None and newest > self.state.sequence:
            raise abandoned(
                f"at entry {self.state.sequence}: this process did not read it for"
                f" {age_seconds:.0f} s, and a snapshot at {newest} replaced entries that it has"
                " not seen"
            )
        self._trusted_since = started

    def _require_trust(self) -> None:
        seconds = self._clock.monotonic() - self._trusted_since
        if seconds > self._trust_seconds:
            raise abandoned(
                f"at entry {self.state.sequence}: an answer came {seconds:.0f} s after the last"
                f" read of the log's end, and after {self._trust_seconds:.0f} s (half of"
                " log.delete.grace.ms) no answer is valid"
            )


def following(
    state: ClusterState, key: str, number: int, data: Buffer
) -> tuple[MetadataEntry, ClusterState]:
    """The entry in an object that follows a state, and the state after it. Pure.

    Raises CorruptObject if it cannot follow, UnsupportedFormat.
    """
    entry = decode_entry(key, data)
    if entry.sequence != number:
        raise CorruptObject(key, f"it says that it is entry {entry.sequence}")
    before = state.checksum
    if None not in (entry.previous, before) and entry.previous != before:
        raise CorruptObject(
            key,
            f"it follows an entry with checksum {entry.previous:08x}, and the one before it has"
            f" {before:08x}: the entry before it has been replaced."
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
    """The error that ends an incarnation with an invalid view of the log."""
    return LogAbandoned(
        f"the metadata log was abandoned {why}. A pending entry may or may not be there;"
        " this incarnation ends, and a new one starts from the bucket"
    )
