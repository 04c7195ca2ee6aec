"""The metadata log: the shell that reads and appends its entries (rules A1 to A4)."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NoReturn
from uuid import UUID

from tidelog.clock import Clock
from tidelog.coordinator.cluster.log.append_group import Build, Composition, compose
from tidelog.coordinator.cluster.log.log_view import LogView, Subscriber, abandoned
from tidelog.coordinator.cluster.log.prefix import check_unused
from tidelog.coordinator.cluster.log.snapshots import Snapshots
from tidelog.coordinator.cluster.log.stamps import found_stamps
from tidelog.coordinator.cluster.records.bucket_format import encode_cluster_id, new_cluster
from tidelog.coordinator.cluster.records.records import (
    ENTRY_BYTES_MAX,
    MetadataEntry,
    Record,
    encode_entry,
)
from tidelog.coordinator.cluster.records.settings import ClusterSettings
from tidelog.coordinator.cluster.state.state import ClusterState
from tidelog.entropy import Entropy
from tidelog.errors import CorruptObject, InvalidConfiguration, Refused, TidelogError
from tidelog.identifiers import Epoch, MetadataStamp
from tidelog.storage.object_store import (
    ObjectStore,
    StoreError,
    StoreNotApplied,
    StoreOutcomeUnknown,
)
from tidelog.storage.sightings import Sightings
from tidelog.workers.offload import InlineOffload, Offload

GROUP_BUILDS_MAX = 1000
_OPEN_ATTEMPTS_MAX = 5
_PAUSE_SECONDS_FIRST = 0.01
_PAUSE_SECONDS_MAX = 1.0

logger = logging.getLogger(__name__)


class EntryTooLarge(Refused):
    """The change exceeds the size of an entry; it was not made."""


@dataclass(frozen=True, slots=True)
class _WaitingAppend:
    author: Epoch | None
    build: Build
    done: asyncio.Future[int]


class MetadataLog:
    """One process's access to the metadata log. One operation at a time reads or appends.

    The log remains usable after StoreError (nothing was appended), Refused, and Fenced of a fenced
    author. After any other error (LogAbandoned, CorruptObject, UnsupportedFormat) the view is
    invalid: every later call raises the error again, and the incarnation must end.
    """

    def __init__(
        self,
        store: ObjectStore,
        clock: Clock,
        entropy: Entropy,
        settings: ClusterSettings,
        offload: Offload,
    ) -> None:
        """Callers use `open`."""
        self._store = store
        self._clock = clock
        self._entropy = entropy
        self._settings = settings
        self._snapshots = Snapshots(store, clock, offload)
        self._view = LogView(store, clock, settings, self._snapshots)
        self.read_ms: int | None = None
        """The wall clock's time of the last read to the log's end."""
        self._writing = False
        self._lock = asyncio.Lock()
        self._waiting: deque[_WaitingAppend] = deque()
        self._ended: Exception | None = None
        self._appender: asyncio.Task[None] | None = None
        self._snapshotter: asyncio.Task[None] | None = None

    @classmethod
    async def open(
        cls,
        store: ObjectStore,
        clock: Clock,
        entropy: Entropy,
        *,
        create: bool = False,
        writing: bool = True,
        settings: ClusterSettings | None = None,
        offload: Offload | None = None,
    ) -> MetadataLog:
        """The log of the cluster in `store`, read to its end.

        With `create`, an empty prefix becomes a new cluster. Without `writing` the log is
        read-only, and may be of a bucket that demands newer writers. Raises ForeignObjects,
        UnsupportedFormat, CorruptObject, StoreError; InvalidConfiguration if there is no cluster
        and `create` is false.
        """
        log = cls(store, clock, entropy, settings or ClusterSettings(), offload or InlineOffload())
        await log._load(create=create, writing=writing)
        return log

    @property
    def state(self) -> ClusterState:
        """The state after the last entry that this process has read or appended."""
        return self._view.state

    @property
    def settings(self) -> ClusterSettings:
        """The timings and limits in force for this process."""
        return self._settings

    @property
    def snapshots_seen(self) -> Sightings[str]:
        """How long this process has seen each snapshot, by key.

        The log deletes entries below a snapshot that is old enough.
        """
        return self._snapshots.seen

    def subscribe(self, subscriber: Subscriber, *kinds: type[Record]) -> Callable[[], None]:
        """Call `subscriber` for each further entry, in order; the returned function ends that.

        With `kinds`: only for entries that have a record of one of these kinds. The subscriber
        must not raise: its own state would then differ from the log.
        """
        return self._view.subscribe(subscriber, *kinds)

    async def append(self, author: Epoch | None, build: Build) -> int:
        """Make the change that `build` describes; return the number of its entry.

        Waiting changes share an entry. If another process's entry comes first, `build` is called
        again, so it always gets the exact state before its records. If `build` returns no records,
        the result is the number of the state that it saw. Its exceptions are raised here, but only
        on the newest state. `author` is None only before registration. A cancelled caller does not
        know whether the change was made.
        """
        self._require_usable()
        if not self._writing:
            raise RuntimeError("the metadata log was opened for reading")
        if len(self._waiting) >= self._settings.waiting_appends_max:
            raise Refused(f"{len(self._waiting)} changes of the metadata are waiting; try later")
        done: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._waiting.append(_WaitingAppend(author, build, done))
        if self._appender is None or self._appender.done():
            self._appender = asyncio.create_task(self._append_waiting(), name="metadata appender")
        return await done

    async def refresh(self) -> ClusterState:
        """Read the entries that other processes have appended."""
        async with self._lock:
            self._require_usable()
            try:
                await self._view.catch_up()
            except StoreError:
                raise
            except Exception as error:
                self._end(error)
                raise
            self.read_ms = self._clock.time_ms()
        return self.state

    async def verify(self, stamp: MetadataStamp, source: str) -> None:
        """Compare the log with the stamp that the writer of the object `source` had applied (rule
        C11).

        CorruptObject: the log is damaged, and this view of it is invalid. Also raises StoreError.
        """
        async with self._lock:
            self._require_usable()
            try:
                await self._view.verify(stamp, source)
            except StoreError:
                raise
            except Exception as error:
                self._end(error)
                raise

    async def includes(self, stamp: MetadataStamp) -> bool:
        """Whether an object with this stamp is of this log's history.

        Use it for objects that a broker does not need, and `verify` for the others. Raises
        CorruptObject and StoreError.
        """
        if stamp.sequence > self.state.sequence:
            await self.refresh()
        async with self._lock:
            self._require_usable()
            return await self._view.includes(stamp)

    async def follow(self, interval_ms: int) -> NoReturn:
        """Refresh for ever. Temporary errors of the store are logged; other errors are raised."""
        while True:
            await self._clock.sleep(interval_ms / 1000)
            try:
                await self.refresh()
            except (StoreNotApplied, StoreOutcomeUnknown) as error:
                logger.warning("cannot read the metadata log", extra={"why": str(error)})

    async def close(self) -> None:
        """Stop the background tasks. The outcome of a pending append stays unknown."""
        closed = abandoned("because it was closed")
        self._end(closed)
        tasks = [task for task in (self._appender, self._snapshotter) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        _settle(self._waiting, closed)
        self._waiting.clear()

    async def _load(self, *, create: bool, writing: bool) -> None:
        self._writing = writing
        for _ in range(_OPEN_ATTEMPTS_MAX):
            entries_read = await self._view.load(writing=writing)
            if self.state.cluster is not None:
                if writing:
                    await self._verify_stamps()
                if writing and entries_read >= 2 * self._settings.snapshot_interval_entries:
                    self._start_snapshot()
                return
            if not create:
                raise InvalidConfiguration(
                    f"{self._store.url} holds no cluster. Check the address; a broker creates a"
                    " cluster in an empty prefix"
                )
            if await check_unused(self._store):
                entry = self._next_entry(None, (new_cluster(self._new_cluster_uuid()),))
                await self._view.put(entry, encode_entry(entry), self.state.apply(entry))
        raise CorruptObject(self._view.key(0), "clusters are created and removed here repeatedly")

    async def _verify_stamps(self) -> None:
        """Compare the log with the stamps of all other writers, before anything is appended."""
        async for stamp, source in found_stamps(self._store, self.state):
            await self.verify(stamp, source)

    # --- appending ---

    async def _append_waiting(self) -> None:
        while self._waiting:
            group = self._next_group()
            try:
                async with self._lock:
                    self._require_usable()
                    await self._append_group(group)
            except StoreError as error:
                _settle(group, error)
            except asyncio.CancelledError:
                cut_off = abandoned("in the middle of an append")
                self._end(cut_off)
                _settle(group, cut_off)
                raise
            except Exception as error:  # noqa: BLE001 - raised to every waiting and later caller
                self._end(error)
                _settle(group, error)

    def _next_group(self) -> list[_WaitingAppend]:
        group = [self._waiting.popleft()]
        # A registration is alone in its entry, since the entry's number is the epoch.
        while (
            self._waiting
            and len(group) < GROUP_BUILDS_MAX
            and group[0].author is not None
            and group[0].author == self._waiting[0].author
        ):
            group.append(self._waiting.popleft())
        return group

    async def _append_group(self, group: list[_WaitingAppend]) -> None:
        """Append one entry for the group, or for its first part if an entry cannot hold all."""
        author = group[0].author
        deadline = self._clock.monotonic() + self._settings.append_timeout_ms / 1000
        pause_seconds = _PAUSE_SECONDS_FIRST
        just_read = False
        while True:
            composed = compose(self.state, author, [each.build for each in group])
            if composed.depends_on_state and not just_read:
                # A refusal and an empty change are answers too, and must not rest on an old state.
                before = self.state.sequence
                await self._view.catch_up()
                just_read = True
                if self.state.sequence != before:
                    continue
            if not composed.records:
                _settle_composed(group, composed, self.state.sequence)
                return
            entry = self._next_entry(author, composed.records)
            data = encode_entry(entry)
            if len(data) > ENTRY_BYTES_MAX:
                if len(group) == 1:
                    _settle(group, _too_large(len(data)))
                    return
                half = len(group) // 2
                self._waiting.extendleft(reversed(group[half:]))
                del group[half:]
                continue
            if await self._view.put(entry, data, composed.state.advanced(author)):
                self._snapshot_if_due()
                _settle_composed(group, composed, entry.sequence)
                return
            if self._clock.monotonic() >= deadline:
                key = self._view.key(entry.sequence)
                raise StoreNotApplied(key, "other entries came first; nothing was appended")
            # Random pauses keep several appending brokers from colliding again and again.
            await self._clock.sleep(self._entropy.uniform(0, pause_seconds))
            pause_seconds = min(2 * pause_seconds, _PAUSE_SECONDS_MAX)
            await self._view.catch_up()
            just_read = True

    def _next_entry(self, author: Epoch | None, records: tuple[Record, ...]) -> MetadataEntry:
        return MetadataEntry(
            sequence=self.state.sequence + 1,
            writer_id=self._entropy.uuid().bytes,
            time_ms=self._clock.time_ms(),
            author=author,
            records=records,
            previous=self.state.checksum,
        )

    def _new_cluster_uuid(self) -> UUID:
        while True:
            # As in Kafka: command lines must not take a cluster id for an option.
            identity = self._entropy.uuid()
            if not encode_cluster_id(identity).startswith("-"):
                return identity

    def _end(self, error: Exception) -> None:
        if self._ended is None:
            self._ended = error

    def _require_usable(self) -> None:
        if self._ended is not None:
            raise self._ended

    # --- snapshots ---

    def _snapshot_if_due(self) -> None:
        if self.state.sequence % self._settings.snapshot_interval_entries == 0:
            self._start_snapshot()

    def _start_snapshot(self) -> None:
        if self._snapshotter is None or self._snapshotter.done():
            self._snapshotter = asyncio.create_task(
                self._snapshot(self.state), name="metadata snapshot"
            )

    async def _snapshot(self, state: ClusterState) -> None:
        """Write a snapshot. The log is complete without it: a failure only slows the next
        opening."""
        about = {"sequence": state.sequence}
        try:
            await self._snapshots.write(state)
            deleted = await self._snapshots.collect(self._settings.delete_grace_ms)
        except TidelogError as error:
            logger.warning(
                "the metadata snapshot failed, or old entries were not deleted",
                extra={**about, "why": str(error)},
            )
        else:
            logger.info("metadata snapshot written", extra={**about, "deleted": deleted})


def _settle(group: Iterable[_WaitingAppend], error: Exception) -> None:
    for waiting in group:
        if not waiting.done.done():
            waiting.done.set_exception(error)


def _settle_composed(group: Sequence[_WaitingAppend], composed: Composition, sequence: int) -> None:
    for waiting, error in zip(group, composed.errors, strict=True):
        if waiting.done.done():
            continue
        if error is not None:
            waiting.done.set_exception(error)
        else:
            waiting.done.set_result(sequence)


def _too_large(size_bytes: int) -> EntryTooLarge:
    return EntryTooLarge(
        f"the change takes {size_bytes} bytes in the metadata log; an entry holds at most"
        f" {ENTRY_BYTES_MAX}. It was not made: split it"
    )
