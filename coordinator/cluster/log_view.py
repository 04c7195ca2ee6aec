"""A process's view of the metadata log: how far it has read, and how long to believe that."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from tidelog.clock import Clock
from tidelog.coordinator.cluster.bucket_format import check_supported
from tidelog.coordinator.cluster.prefix import LOG_PREFIX, LOG_SUFFIX
from tidelog.coordinator.cluster.records import (
    Entry,
    Record,
    decode_entry,
    identify_entry,
)
from tidelog.coordinator.cluster.settings import ClusterSettings
from tidelog.coordinator.cluster.snapshots import Snapshots
from tidelog.coordinator.cluster.state import ClusterState
from tidelog.coordinator.cluster.transitions import InvalidRecord
from tidelog.errors import CorruptObject, Fenced, UnsupportedFormat
from tidelog.storage.object_store import Buffer, ObjectStore
from tidelog.storage.sequence import AppendUndecided, Mine, SequenceGone
from tidelog.storage.sequence import Sequence as NumberedObjects

Subscriber: TypeAlias = Callable[[int, Sequence[Record]], None]
"""Called with each entry's number and records, once the state includes them."""


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
            self._adopt(snapshot, ())
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

    async def put(self, entry: Entry, data: bytes, after: ClusterState) -> bool:
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
        self._adopt(after, entry.records)
        return True

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
                raise CorruptObject(
                    self.key(self.state.sequence + 1), f"it is missing, although {meta.key} exists"
                )
            return

    def _absorb(self, number: int, data: Buffer) -> None:
        """Apply another's entry."""
        key = self.key(number)
        entry = decode_entry(key, data)
        if entry.sequence != number:
            raise CorruptObject(key, f"it says that it is entry {entry.sequence}")
        try:
            state = self.state.apply(entry)
        except InvalidRecord as error:
            raise CorruptObject(key, f"it cannot follow the entries before it: {error}") from error
        if state.cluster is None:
            raise CorruptObject(key, "it does not create a cluster")
        self._adopt(state, entry.records)

    def _adopt(self, state: ClusterState, records: Sequence[Record]) -> None:
        if self.state.cluster is None and state.cluster is not None:
            check_supported(state.cluster, self._store.url, writing=self._writing)
        self.state = state
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


def abandoned(why: str) -> LogAbandoned:
    """The error that ends an incarnation whose view of the log is worthless."""
    return LogAbandoned(
        f"the metadata log was abandoned {why}. What was being appended may or may not be there;"
        " this incarnation ends, and a new one starts from the bucket"
    )
